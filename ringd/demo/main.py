"""The driver of ``ringd demo``: the parts in order, their tables, JSON and plots."""

from __future__ import annotations

import importlib.util
import json
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from ringd.bench.report import machine
from ringd.demo import fault, plots, report, timing, traffic, training, verify
from ringd.demo.job import Job
from ringd.errors import ConfigError

SCHEMA = 1
WORLD_SIZE = 4
SMALLER_WORLDS = (2, 3)
KILLED = 128 + signal.SIGKILL
"""What ``ringd run`` exits with when a trainer was killed."""

Report = dict[str, Any]


def run(*, json_path: Path | None, plot_dir: Path | None) -> int:
    """Run the demo and print its tables.

    Args:
        json_path: gets all rows: {schema, verify, bytes, timing, training, fault, ok}.
        plot_dir: gets timing.png and bytes.png.

    Returns:
        0, or 1 if a row failed.

    Raises:
        ConfigError: a package is missing, or there is no place for the output; before anything
            was started.
        RingdError: a rank could not be started, or ended.
    """
    _check_surroundings(json_path, plot_dir)
    begun = time.monotonic()
    console = report.console()
    found: Report = {"schema": SCHEMA}
    with ExitStack() as stack:
        _parts_of_one_job(found, console, stack)
    _fault(found, console)
    found["ok"] = is_ok(found)
    if json_path is not None:
        json_path.write_text(json.dumps(found, indent=1) + "\n")
        console.print(f"rows: {json_path}", highlight=False)
    if plot_dir is not None:
        for path in plots.draw(plot_dir, timing=found["timing"], traffic=found["bytes"]):
            console.print(f"plot: {path}", highlight=False)
    seconds = time.monotonic() - begun
    console.print(f"\n{report.mark(found['ok'])}: all five parts, in {seconds:.0f} s")
    return 0 if found["ok"] else 1


def _check_surroundings(json_path: Path | None, plot_dir: Path | None) -> None:
    """Whatever can be missing is missed before half a minute of work, not after it."""
    wanted = {"sklearn": "scikit-learn"} | ({"matplotlib": "matplotlib"} if plot_dir else {})
    missing = [name for module, name in wanted.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(
            f"the demo needs {' and '.join(missing)}: install it with pip install 'ringd[demo]'"
        )
    if json_path is not None and not json_path.parent.is_dir():
        raise ConfigError(f"--json {json_path}: there is no folder {json_path.parent}")
    if plot_dir is not None:
        try:
            plot_dir.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigError(f"--plot {plot_dir}: {exc.strerror}") from None


def _parts_of_one_job(found: Report, console: Console, stack: ExitStack) -> None:
    """Parts 1 to 4, by the same four ranks: torch is loaded once."""
    with report.progress(len(verify.batches(WORLD_SIZE)) + 1) as step:
        job = stack.enter_context(Job(WORLD_SIZE))
        step("form gloo's group")
        job.order("gloo", store=str(job.folder / "gloo"))
        found["verify"] = verify.run(job, step)
    console.print(report.verify(found["verify"]))
    for line in report.failures(found["verify"]):
        console.print(line, markup=False)
    with report.progress(len(SMALLER_WORLDS) + 1) as step:
        found["bytes"] = []
        for n in SMALLER_WORLDS:
            with Job(n) as smaller:
                found["bytes"] += traffic.run(smaller, step)
        found["bytes"] += traffic.run(job, step)
    console.print(report.traffic(found["bytes"]))
    with report.progress(timing.steps()) as step:
        found["timing"] = timing.run(job, step)
    console.print(report.timing(found["timing"], _machine()))
    with report.progress(training.STEPS) as step:
        found["training"] = training.run(job, step)
    console.print(report.training(found["training"]))


def _fault(found: Report, console: Console) -> None:
    """Part 5, in a job of its own: it does not survive."""
    with report.progress(fault.STEPS) as step, Job(WORLD_SIZE, exit_code=KILLED) as job:
        found["fault"] = fault.run(job, step)
    console.print(report.fault(found["fault"]))


def is_ok(found: Report) -> bool:
    """Whether every row holds."""
    rows = [*found["verify"], *found["bytes"], *found["timing"]]
    return all(row["ok"] for row in [*rows, found["training"], found["fault"]])


def _machine() -> str:
    facts = machine()
    return f"{facts['cpu']}, {facts['cores']} cores"
