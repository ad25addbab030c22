"""The driver of ``ringd bench --stages``: a job as it is and a traced one, round after round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ringd.bench.crew import Crew
from ringd.bench.figures import Case, operations
from ringd.bench.matrix import Matrix
from ringd.bench.places import Start, ThisHost, worker_environment
from ringd.bench.report import report
from ringd.bench.stages.figures import Samples, row
from ringd.bench.stages.path import Call, calls
from ringd.bench.stages.table import print_row
from ringd.bench.table import progress
from ringd.errors import RingdError
from ringd.launch.python import own_module

WORKER, LAUNCHER = "ringd.bench.stages.worker", "ringd.bench.stages.launcher"
PLAIN, TRACED, DAEMON = "ringd", "traced", "daemon"
"""Who takes orders: trainers of the two jobs, and the daemons of the traced one."""


def run(matrix: Matrix, *, rounds: int, json_path: Path | None, quick: bool) -> int:
    """Measure, print a table of each case, write JSON.

    Args:
        matrix: of ringd's cases alone; each call is one request, so there is no sendrecv.

    Returns:
        0, or 1 if a result was wrong.

    Raises:
        RingdError: a worker failed, or a round has more marks than a process keeps.
    """
    cases = {n: [case for block in matrix.blocks(n) for case in block] for n in matrix.world_sizes}
    rows: list[dict[str, Any]] = []
    with progress(rounds * sum(map(len, cases.values()))) as step:
        for n in matrix.world_sizes:
            with Crew([PLAIN, TRACED, DAEMON], n, BothJobs()) as crew:
                rows += [_measure(crew, case, rounds, quick, step) for case in cases[n]]
    machine = report(json_path, rows, "stages")["machine"]
    for found in rows:
        print_row(found, machine)
    return 0 if all(r["ok"] for r in rows) else 1


class BothJobs:
    """Where ranks run: a :class:`~ringd.bench.places.Place`.

    The daemons of the traced job come by themselves, as its launcher starts them.
    """

    def starts(self, impl: str, n: int, folder: Path, control: Path) -> Iterator[Start]:
        """See :class:`~ringd.bench.places.Place`."""
        if impl == PLAIN:
            yield from ThisHost(WORKER).starts(impl, n, folder, control)
        elif impl == TRACED:
            worker = own_module(WORKER, control, TRACED)
            command = own_module(LAUNCHER, control, "run", "-n", n, "--", *worker)
            yield Start(command, worker_environment())


def _measure(crew: Crew, case: Case, rounds: int, quick: bool, step: Any) -> dict[str, Any]:
    """One case: a round of either job, then the next, in the other order."""
    samples = Samples()
    timed = operations(case.size_bytes, quick=quick)
    order = {
        "do": "measure",
        "op": case.op,
        "count": case.count,
        "dtype": case.dtype,
        "algorithm": case.algorithm,
        "memory": case.memory,
        "operations": timed,
    }
    for number in range(rounds):
        for who in (PLAIN, TRACED) if number % 2 else (TRACED, PLAIN):
            _marks(crew, DAEMON)  # of the time between; and it wakes what has slept, for either
            answers = crew.order(who, **order)
            if who == PLAIN:
                samples.add_untraced(answers)
            else:
                samples.add_traced(answers, _calls(crew, timed))
        step(f"{case.op} n={case.n} {case.size_bytes} B")
    return row(case, samples)


def _calls(crew: Crew, timed: int) -> list[Sequence[Call]]:
    """The timed calls of the last round, of each rank: those at its end."""
    trainers, daemons = _marks(crew, TRACED), _marks(crew, DAEMON)
    return [calls(*both)[-timed:] for both in zip(trainers, daemons, strict=True)]


def _marks(crew: Crew, who: str) -> list[list[int]]:
    """What was marked since the last time, of each rank.

    Raises:
        RingdError: there were more than a process keeps.
    """
    answers = crew.order(who, do="take")
    if any(answer["lost"] for answer in answers):
        raise RingdError("a round has more marks than a process keeps: trace smaller calls")
    return [answer["marks"] for answer in answers]
