"""Each program of examples/torch/ runs with gloo and with ringd, and both have the same losses.

A sum of two numbers has one order. So with two ranks everything is equal bit for bit, parameters
too, and that is demanded. So it is where a program only moves data, or adds by itself in the order
of the ranks, with any number of them. Elsewhere gloo and ringd add in different orders: their sums
differ by some units in the last place (6e-8, relative), and in runs as short as these the losses
by less than 1e-6.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.serial, pytest.mark.timeout(900)]

TOP = Path(__file__).resolve().parents[2]
EXAMPLES = TOP / "examples" / "torch"
BACKENDS = ("gloo", "ringd")
TOLERANCE = 1e-6
TIMEOUT_S = 200.0
COMPILE_S = 400
NEED = {
    "with_lightning": "lightning",
    "with_accelerate": "accelerate",
    "with_deepspeed": "deepspeed",
}


@dataclass(frozen=True)
class Said:
    """What the ranks of a run have printed.

    Attributes:
        losses: by run (of one process, 0 mostly), rank and step.
        parameters: digests by run, stage of a pipeline, and rank.
        kept: how many numbers each rank has between steps, where a program says it.
    """

    losses: dict[tuple[int, int, int], float]
    parameters: dict[tuple[int, int, int], str]
    kept: list[int]

    @classmethod
    def of(cls, text: str) -> Said:
        losses, parameters, kept = {}, {}, []
        for said in json_lines(text):
            run, rank = said.get("run", 0), said["rank"]
            if "loss" in said:
                losses[run, rank, said["step"]] = said["loss"]
            if "parameters" in said:
                parameters[run, said.get("stage", 0), rank] = said["parameters"]
            if "kept" in said:
                kept.append(said["kept"])
        return cls(losses, parameters, kept)

    def replicas_are_equal(self) -> bool:
        """One digest for each stage of each run."""
        copies = {(run, stage) for run, stage, _ in self.parameters}
        digests = {(run, stage, text) for (run, stage, _), text in self.parameters.items()}
        return 0 < len(copies) == len(digests)

    def it_learns(self) -> bool:
        """The last quarter of the steps has lower losses than the first one."""
        steps = sorted(self.losses, key=lambda key: key[2])
        quarter = len(steps) // 4
        first, last = (
            sum(self.losses[key] for key in keys) for keys in (steps[:quarter], steps[-quarter:])
        )
        return last < first


def environment() -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RINGD_")}
    # deepspeed compiles what it finds a compiler for, by the ninja that is installed with it, and
    # looks for a GPU if it isn't told
    path = os.pathsep.join((str(Path(sys.executable).parent), env.get("PATH", os.defpath)))
    return env | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PATH": path}


@functools.cache
def compile_deepspeed() -> None:
    """What DeepSpeed compiles at its first use on a machine, into torch's cache of extensions.

    It is longer than a run may take, and a run that is killed amid it leaves a lock behind, for
    which all later ones wait. The alarm is an interrupt: torch takes its lock away.
    """
    program = f"""
import signal
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.alarm({COMPILE_S})
from deepspeed.comm.torch import build_shm_op
build_shm_op()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


Run = Callable[..., Said]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """``run(example, size, *arguments)``: all ranks of a program, as torchrun would start them."""
    launcher = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "launcher.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        cwd=TOP,
        text=True,
    )
    assert launcher.stdin is not None
    assert launcher.stdout is not None

    def ranks(example: str, size: int, *arguments: str) -> Said:
        folder = tmp_path_factory.mktemp(example)
        request = {
            "script": str(EXAMPLES / f"{example}.py"),
            "arguments": [argument.replace("FOLDER", str(folder)) for argument in arguments],
            "size": size,
            "folder": str(folder),
            "timeout_s": TIMEOUT_S,
        }
        print(json.dumps(request), file=launcher.stdin, flush=True)
        codes = json.loads(launcher.stdout.readline())
        texts = [(folder / f"{rank}.err").read_text() for rank in range(size)]
        assert codes == [0] * size, "\n".join(texts)
        return Said.of("\n".join((folder / f"{rank}.out").read_text() for rank in range(size)))

    yield ranks
    launcher.stdin.close()
    assert launcher.wait(timeout=30) == 0


def torchrun(size: int, example: str, *arguments: str, restarts: int = 0, **variables: str) -> str:
    """The same by the real one; what it prints."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(size), "--max-restarts", str(restarts)),
            *(str(EXAMPLES / f"{example}.py"), *arguments),
        ],
        env=environment() | variables,
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def compare(ours: Said, theirs: Said, *, exact: bool) -> None:
    """Losses of the same steps, equal; parameters the same on all ranks that have them."""
    assert ours.losses.keys() == theirs.losses.keys()
    assert ours.parameters.keys() == theirs.parameters.keys()
    assert ours.replicas_are_equal()
    assert ours.it_learns()
    if exact:
        assert ours == theirs
    for key, loss in ours.losses.items():
        assert abs(loss - theirs.losses[key]) < TOLERANCE, key


def exact(example: str, size: int, *arguments: str) -> Any:
    return pytest.param(example, size, arguments, True, id=_name(example, size, arguments))


def close(example: str, size: int, *arguments: str) -> Any:
    return pytest.param(example, size, arguments, False, id=_name(example, size, arguments))


def _name(example: str, size: int, arguments: tuple[str, ...]) -> str:
    return "-".join((example, *(a.strip("-") for a in arguments), str(size)))


QUICK = [
    exact("ddp", 2),
    exact("ddp", 2, "--variant", "bf16"),
    close("zero_optimizer", 3),
    exact("zero_stages", 2, "--stage", "3"),
    close("fsdp2", 4, "--mesh", "hybrid"),
    exact("pipeline", 3, "--schedule", "1f1b"),
    exact("tensor_parallel", 2),
    exact("parameter_server", 3),
]

LONG = [
    *(exact("ddp", 2, "--variant", variant) for variant in ("views", "no_sync", "fp16")),
    *(close("ddp", size, "--variant", "plain") for size in (3, 4)),
    close("ddp", 3, "--variant", "views"),
    close("ddp", 3, "--variant", "no_sync"),
    exact("zero_optimizer", 2),
    *(exact("zero_stages", 2, "--stage", stage) for stage in "12"),
    *(close("zero_stages", 3, "--stage", stage) for stage in "123"),
    exact("fsdp2", 2),
    close("fsdp2", 3),
    exact("fsdp1", 2),
    close("fsdp1", 3),
    exact("pipeline", 2),
    exact("pipeline", 3),
    exact("pipeline", 2, "--schedule", "1f1b"),
    close("tensor_parallel", 4),
    exact("dtensor", 2),
    close("dtensor", 4),
    exact("parameter_server", 4, "--way", "gather"),
    exact("parameter_server", 5),
    exact("checkpoint", 2, "--folder", "FOLDER/checkpoint"),
    close("checkpoint", 3, "--folder", "FOLDER/checkpoint"),
    exact("pretrain", 4, "--folder", "FOLDER"),
    exact("with_lightning", 2),
    exact("with_accelerate", 2),
    *(exact("with_deepspeed", 2, "--stage", stage) for stage in "123"),
]

CASES = ("example", "size", "arguments", "is_exact")


@pytest.mark.parametrize(CASES, QUICK)
def test_losses_and_parameters_are_those_of_gloo(
    run: Run, example: str, size: int, arguments: tuple[str, ...], is_exact: bool
) -> None:
    theirs, ours = (run(example, size, *arguments, "--backend", name) for name in BACKENDS)
    compare(ours, theirs, exact=is_exact)


@pytest.mark.slow
@pytest.mark.parametrize(CASES, LONG)
def test_and_so_they_are_for_every_variant(
    run: Run, example: str, size: int, arguments: tuple[str, ...], is_exact: bool
) -> None:
    package = NEED.get(example)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")
    if package == "deepspeed":
        compile_deepspeed()
    theirs, ours = (run(example, size, *arguments, "--backend", name) for name in BACKENDS)
    compare(ours, theirs, exact=is_exact)


@pytest.mark.slow
def test_four_ways_of_averaging_gradients_have_the_same_losses(run: Run) -> None:
    ways = ("gather", "messages", "all_reduce", "ddp")
    for size in (2, 3):
        gloo = run("four_ways", size, "--way", "ddp", "--backend", "gloo")
        for way in ways:
            compare(run("four_ways", size, "--way", way), gloo, exact=size == 2)


@pytest.mark.slow
def test_each_stage_of_zero_keeps_less_and_learns_the_same(run: Run) -> None:
    stages = [run("zero_stages", 2, "--stage", stage) for stage in "123"]
    numbers = 65 * 64 + 65 * 64 + 65 * 10
    halved = (2, 3, 4)  # of Adam's two, gradients and parameters, with two ranks
    assert [said.kept for said in stages] == [[(8 - n) * numbers // 2] * 2 for n in halved]
    assert len({tuple(sorted(said.parameters.items())) for said in stages}) == 1


@pytest.mark.slow
def test_the_parameter_server_of_native_calls_gives_the_same_bits(run: Run) -> None:
    for way in ("messages", "gather"):
        theirs = run("parameter_server", 3, "--way", way, "--backend", "gloo")
        program = EXAMPLES / "parameter_server_native.py"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "ringd", "run", "-n", "3", "--"),
                *(sys.executable, str(program), "--way", way),
            ],
            env=environment(),
            cwd=TOP,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        ours = Said.of(re.sub(r"^\[\d\] ", "", done.stdout, flags=re.MULTILINE))
        compare(ours, theirs, exact=True)


def test_a_run_goes_on_from_its_checkpoint(run: Run) -> None:
    said = run("checkpoint", 2, "--folder", "FOLDER/checkpoint", "--steps", "8")
    again = {key: loss for key, loss in said.losses.items() if key[0] == 1}
    assert len(again) == 2 * 4
    assert all(loss == said.losses[0, rank, step] for (_, rank, step), loss in again.items())
    assert len(set(said.parameters.values())) == 1


@pytest.mark.parametrize("lost", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_a_job_that_lost_a_rank_has_the_losses_of_one_that_did_not(
    run: Run, tmp_path: Path, lost: int
) -> None:
    steps = ("--steps", "12", "--save-every", "5")
    whole = run("pretrain", 4, "--folder", "FOLDER", *steps, "--backend", "gloo")
    disturbed = torchrun(
        4,
        "pretrain",
        *("--folder", str(tmp_path), *steps),
        *("--lose-rank", str(lost), "--lose-step", "8"),
        restarts=1,
    )
    assert (tmp_path / "last").read_text() == "10"
    compare(Said.of(disturbed), whole, exact=True)


@pytest.mark.slow
def test_buckets_travel_while_the_backward_pass_computes(tmp_path: Path) -> None:
    """Both clocks are CLOCK_MONOTONIC; without overlap no bucket could arrive in the midst."""
    accounting = tmp_path / "ops.jsonl"
    printed = torchrun(2, "overlap", "--steps", "6", RINGD_ACCOUNTING=str(accounting))
    buckets = [op for op in json_lines(accounting.read_text()) if op["op"] == "all_reduce"]
    passes = [said for said in json_lines(printed) if said.get("step", 0) > 0]
    assert len(passes) == 2 * 5  # in step 0 DDP finds out in which order gradients come
    arrived = [
        op
        for said in passes
        for op in buckets
        if op["rank"] == said["rank"]
        and said["began_ns"] < op["start_ns"] < op["end_ns"] < said["last_gradient_ns"]
    ]
    assert len(arrived) >= len(passes)


def test_the_readme_names_every_program_and_its_links_lead_to_files() -> None:
    page = (EXAMPLES / "README.md").read_text()
    linked = set(re.findall(r"\]\(([^)#/]+)\)", page))
    assert {path.name for path in EXAMPLES.glob("*.py")} - {"common.py"} == linked
    for program in linked:
        docstring = (EXAMPLES / program).read_text().split('"""')[1]
        commands = re.findall(r"^Run it with: (.*)$", docstring, re.MULTILINE)
        assert commands
        assert f"`{commands[0]}`" in page
