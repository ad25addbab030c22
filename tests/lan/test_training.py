"""Training between hosts: DDP by torchrun with an agent per host, and elastic training."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringd.lab.lab import Lab
from ringd.lab.spec import OWN_LOOPBACK, TWO_INTERFACES
from tests.lan.conftest import MakeGroup, MakeLab
from tests.processes.harness import ROOT, environment, until

DDP = Path(__file__).parent / "ddp.py"
ELASTIC = ROOT / "examples" / "elastic_digits.py"
PORT = 29500
STEPS = 1_000_000
"""More than anybody waits for."""
AGAIN = 3
"""So many steps are looked at when all train again."""
START_S = 150.0
"""For programs that import torch and scikit-learn on all hosts at once, on a crowded machine."""
Begin = Callable[..., "Running"]


class Running:
    """A program on a host, and what it says."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path, name: str) -> None:
        self.path = folder / name
        with self.path.open("wb") as output:
            self.process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder
            )

    @property
    def said(self) -> str:
        return self.path.read_text(errors="replace")

    def end(self) -> str:
        """Its output, when it has ended well."""
        code = self.process.wait(START_S)
        assert code == 0, self.said[-3000:]
        return self.said


@pytest.fixture
def begin(folder: Path, owner: str) -> Iterator[Begin]:
    """``begin(lab, host, "script.py", …, VARIABLE="x")``."""
    started: list[Running] = []

    def start(lab: Lab, host: int, *words: object, **variables: object) -> Running:
        command = [*lab.enter(host), sys.executable, *map(str, words)]
        path = f"{ROOT}:{ROOT / 'client'}"
        env = environment(owner, PYTHONPATH=path, **variables)
        started.append(Running(command, env, folder, f"out{len(started)}"))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


def trained(begin: Begin, lab: Lab, backend: str) -> dict[int, dict[str, Any]]:
    """What each rank says, with an agent of torchrun on each host."""
    n = lab.spec.hosts
    agents = [
        begin(
            lab, host, "-m", "torch.distributed.run", "--nnodes", n, "--nproc-per-node", 1,
            "--node-rank", host, "--master-addr", lab.address(0), "--master-port", PORT,
            DDP, backend,
            GLOO_SOCKET_IFNAME=lab.spec.interface, TORCH_DEVICE_BACKEND_AUTOLOAD=0,
        )
        for host in range(n)
    ]  # fmt: skip
    lines = [line for agent in agents for line in agent.end().splitlines() if line[:1] == "{"]
    return {told["rank"]: told for told in map(json.loads, lines)}


@pytest.mark.parametrize("quirks", [(), (OWN_LOOPBACK,), (TWO_INTERFACES,)])
def test_ddp_by_torchrun_with_an_agent_per_host_gives_what_gloo_gives(
    lab: MakeLab, begin: Begin, quirks: tuple[str, ...]
) -> None:
    made = lab("3x1gbit", quirks=quirks)
    wanted = trained(begin, made, "gloo")
    got = trained(begin, made, "ringd")
    assert sorted(got) == sorted(wanted) == [0, 1, 2]
    for rank in range(3):
        assert got[rank]["losses"] == pytest.approx(wanted[rank]["losses"], rel=1e-4)
        assert got[rank]["weights"] == got[0]["weights"], "all ranks have the same bits"


def steps(output: str) -> dict[int, tuple[str, str]]:
    """By step, the weights and the ranks that a rank has printed; none is there twice."""
    found = re.findall(r"^step (\d+) loss \S+ weights (\S+) ranks (.*)$", output, re.MULTILINE)
    assert len({step for step, _, _ in found}) == len(found)
    return {int(step): (weights, ranks) for step, weights, ranks in found}


def test_elastic_training_goes_on_without_a_host_that_is_cut_off_and_with_it_when_it_is_back(
    lab: MakeLab, group: MakeGroup, begin: Begin
) -> None:
    made = lab("4x1gbit")
    job = group(made, start=False, apart=True)
    job.start_daemons()
    ranks = [
        begin(made, rank, ELASTIC, "--steps", STEPS, RINGD_SOCKET=job.socket(rank))
        for rank in range(3)
    ]
    until(lambda: "ranks 0 1 2" in ranks[0].said, "all train", START_S)
    made.cut([2])
    until(lambda: "ranks 0 1\n" in ranks[0].said, "two train", START_S)
    made.heal([2])
    until(lambda: returned(ranks[0].said) and returned(ranks[2].said), "three again", START_S)
    for rank in ranks:
        rank.process.kill()
        rank.process.wait()
    first, second, third = (steps(rank.said) for rank in ranks)
    common = min(len(first), len(second))
    assert list(first)[:common] == list(range(0, 10 * common, 10)), "no step is missing"
    assert list(first.items())[:common] == list(second.items())[:common]
    again = [step for step in third if step in first and step > max(two_trained(first))]
    assert len(again) >= AGAIN
    assert all(third[step] == first[step] for step in again), "the same weights, those of all"


def two_trained(by_step: dict[int, tuple[str, str]]) -> list[int]:
    """The steps without the third."""
    return [step for step, (_, ranks) in by_step.items() if ranks == "0 1"]


def returned(output: str) -> bool:
    """Whether a rank has printed some steps of all three since the third was let in."""
    begun = max(output.rfind("ranks 0 1\n"), output.rfind("has ranks (0, 1, 2)"))
    return begun >= 0 and output.count("ranks 0 1 2\n", begun) >= AGAIN
