"""The elastic example: a rank is killed at step 30, a fresh one joins at step 60, nothing is lost.

What each step must give comes from a run of one process, without any failure.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

TOP = Path(__file__).resolve().parents[2]
EXAMPLES = TOP / "examples"
DEATH, BIRTH, STEPS = 30, 60, 90
LINE = re.compile(r"\[(\d)\] step (\d+) loss (\S+) weights (\S+) ranks ([\d ]+)")
TOLERANCE = 2e-3
"""Of the losses, relative: gradients are added in another order, and Adam makes more of it."""


class Alone:
    """What ``Work`` needs of a communicator, for one process."""

    rank, world_size, ranks = 0, 1, (0,)

    def empty(self, shape: int) -> torch.Tensor:
        return torch.empty(shape)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def example(name: str) -> Any:
    """A program of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def undisturbed(work: Any, capsys: pytest.CaptureFixture[str]) -> list[float]:
    """The loss of each step when nothing fails."""
    while work.step < STEPS:
        work.commit(work.gradients(Alone()), Alone())
    return [float(line.split()[3]) for line in capsys.readouterr().out.splitlines()]


def run(*command: str) -> list[str]:
    """Run a job to its good end; the lines that its ranks printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RINGD_")}
    done = subprocess.run(
        [sys.executable, "-m", "ringd", "run", "-n", "3", *command],
        cwd=TOP,
        env=env,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("victim", "point"), [(0, "agree"), (1, "commit"), (2, "reduce")])
def test_no_step_is_lost_or_counted_twice_whoever_dies(
    victim: int, point: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program = (sys.executable, str(EXAMPLES / "elastic_drill.py"), "--victim", str(victim))
    when = ("--at", str(DEATH), "--point", point, "--rejoin", str(BIRTH), "--steps", str(STEPS))
    lines = run("--max-restarts", "2", "--", *program, *when)

    steps: dict[int, list[int]] = defaultdict(list)
    weights: dict[int, set[str]] = defaultdict(set)
    members: dict[int, set[str]] = defaultdict(set)
    losses = {}
    for told in filter(None, map(LINE.fullmatch, lines)):
        step = int(told[2])
        steps[int(told[1])].append(step)
        losses[step] = float(told[3])
        weights[step].add(told[4])
        members[step].add(told[5])
    lived = list(range(STEPS))
    dead = [*range(DEATH), *range(BIRTH, STEPS)]
    assert steps == {rank: dead if rank == victim else lived for rank in range(3)}
    assert all(len(seen) == 1 for seen in weights.values()), weights

    others = [str(rank) for rank in range(3) if rank != victim]
    assert members[DEATH - 1] == {"0 1 2"}
    assert members[DEATH + 1] == members[BIRTH - 1] == {" ".join(others)}
    assert members[BIRTH] == {" ".join([*others, str(victim)])}  # old members come first

    torch.manual_seed(10)  # as rank 0 of epoch 1 has it
    expected = undisturbed(example("elastic_digits").Work(Alone(), print_every=1), capsys)
    assert len(expected) == STEPS
    for step, loss in enumerate(expected):
        assert math.isclose(losses[step], loss, rel_tol=TOLERANCE), (step, losses[step], loss)
    means = [sum(losses[k] for k in range(start, start + 10)) for start in (0, DEATH, BIRTH, 80)]
    assert means == sorted(means, reverse=True)
    assert means[-1] < means[0] / 2
    accuracies = {line.partition("accuracy ")[2].split()[0] for line in lines if "accuracy" in line}
    assert len(accuracies) == 1
    assert float(accuracies.pop()) > 0.85
