"""Each program of examples/ runs on two ranks, and prints what its collectives must give."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.serial, pytest.mark.timeout(120)]

TOP = Path(__file__).resolve().parents[2]
EXAMPLES = TOP / "examples"
TOLERANCE = 1e-5
"""Of the losses, relative; the docstring of queue_ring.py states it."""
EPOCHS = "3"


def started(*command: str) -> list[str]:
    """Run a command; the lines that it printed, of all ranks."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RINGD_")}
    done = subprocess.run(
        command,
        cwd=TOP,
        env=env | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def ranks_of(program: str, *arguments: str) -> list[str]:
    """Run a program on two ranks; its lines without the launcher's prefixes."""
    launcher = (sys.executable, "-m", "ringd", "run", "-n", "2", "--")
    lines = started(*launcher, sys.executable, str(EXAMPLES / program), *arguments)
    return [re.sub(r"^\[[01]\] ", "", line) for line in lines]


def on_both(*texts: str) -> Counter[str]:
    return Counter(f"rank {rank} of 2: {text}" for rank in (0, 1) for text in texts)


def test_hello_torch_prints_sum_average_and_maximum() -> None:
    expected = on_both("sum [3.0, 3.0, 3.0, 3.0]", "average 0.5", "largest rank 1")
    assert Counter(ranks_of("hello_torch.py")) == expected


def test_hello_numpy_prints_the_result_of_each_collective() -> None:
    text = (
        "rank {} of 2: broadcast [7, 42], all_gather [0, 10], reduce_scatter {}, all_reduce [3.0]"
    )
    expected = {text.format(0, "[0.0, 2.0]"), text.format(1, "[4.0, 6.0]")}
    assert set(ranks_of("hello_numpy.py")) == expected


def test_hello_asyncio_prints_three_operations_in_the_order_of_its_awaits() -> None:
    lines = ranks_of("hello_asyncio.py")
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(f"rank {rank} ")]
        expected = [f"rank {rank} of 2: operation {i} gives {2 * i + 1}" for i in (2, 0, 1)]
        assert own == expected


def test_pipeline_gives_back_what_its_two_stages_compute() -> None:
    expected = ["ranks (0, 1): 8 micro-batches came back, the sums are right"]
    assert ranks_of("pipeline.py") == expected


def test_shuffle_moves_every_record_to_the_owner_of_its_key() -> None:
    records = [
        np.random.default_rng(rank).integers((100, 1000), size=(10_000, 2)) for rank in (0, 1)
    ]
    keys = np.bincount(np.concatenate(records)[:, 0])
    (line,) = ranks_of("shuffle.py")
    told = re.fullmatch(r"all moved: True; key (\d+) is in (\d+) records", line)
    assert told is not None, line
    key, times = map(int, told.groups())
    assert times == keys[key] == keys.max()


def losses(lines: list[str]) -> list[float]:
    return [float(line.split()[-1]) for line in lines if line.startswith("step ")]


def accuracy(lines: list[str]) -> float:
    found = re.fullmatch(r"accuracy (\S+) after .*", lines[-1])
    assert found is not None, lines[-1]
    return float(found[1])


def test_data_parallel_and_its_twin_of_queues_have_the_same_losses() -> None:
    ours = ranks_of("data_parallel.py", "--epochs", EPOCHS)
    twin = started(sys.executable, str(EXAMPLES / "queue_ring.py"), "-n", "2", "--epochs", EPOCHS)
    assert len(losses(ours)) == len(losses(twin)) > 5
    for a, b in zip(losses(ours), losses(twin), strict=True):
        assert math.isclose(a, b, rel_tol=TOLERANCE)
    assert losses(ours)[-1] < 0.9 * losses(ours)[0]
    assert abs(accuracy(ours) - accuracy(twin)) < 0.01


def test_elastic_digits_takes_the_same_steps_on_both_ranks() -> None:
    lines = ranks_of("elastic_digits.py", "--steps", "21")
    assert set(Counter(lines).values()) == {2}  # losses and weights are equal on both
    steps = [line.split() for line in dict.fromkeys(lines) if line.startswith("step ")]
    assert [words[1] for words in steps] == ["0", "10", "20"]
    told = [float(words[3]) for words in steps]
    assert told == sorted(told, reverse=True)


def test_the_readme_names_every_example_and_its_links_lead_to_files() -> None:
    page = (EXAMPLES / "README.md").read_text()
    linked = set(re.findall(r"\]\(([^)#/]+\.py)\)", page))
    assert {path.name for path in EXAMPLES.glob("*.py")} == linked
    for program in linked:
        docstring = (EXAMPLES / program).read_text().split('"""')[1]
        commands = re.findall(r"^Run it with: (.*)$", docstring, re.MULTILINE)
        assert commands
        assert f"`{commands[0]}`" in page
