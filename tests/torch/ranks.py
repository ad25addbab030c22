"""Ranks for tests of the torch backend: N processes run one program under several backends.

They are forked by a server that has imported torch already, so they cost little. A program is a
function of ``tests.torch.programs`` that uses torch.distributed and nothing of ours; what it
returns under gloo is what is expected under ringd.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.processes.harness import MARK

Program = Callable[..., Any]
BOTH = ("gloo", "ringd")
PATIENCE_S = 60.0
GROUP_TIMEOUT_S = 30.0

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["tests.torch.preloaded"])


class ProgramFailed(AssertionError):
    """A rank raised, hung or died."""


def run(
    program: Program,
    n: int,
    sockets: Sequence[Path],
    backends: Sequence[str] = BOTH,
    *,
    owner: str,
    may_die: Sequence[int] = (),
    within_s: float = PATIENCE_S,
    **arguments: Any,
) -> dict[str, list[Any]]:
    """By backend, what the program returned on each rank.

    Args:
        sockets: of standing daemons; empty: ranks start their own.
        owner: whose processes they are.
        may_die: ranks that need not answer; their results are None.
        within_s: for all of it.

    Raises:
        ProgramFailed: with the traceback of each rank that failed, or where it hangs.
    """
    with tempfile.TemporaryDirectory(prefix="ringd-torch-") as place:
        ranks = [
            _Rank(
                _Task(
                    program,
                    r,
                    n,
                    str(sockets[r]) if sockets else "",
                    place,
                    backends,
                    owner,
                    arguments,
                )
            )
            for r in range(n)
        ]
        deadline = time.monotonic() + within_s
        answers = [rank.answer(deadline) for rank in ranks]
    failed = [
        f"rank {r}:\n{text}" for r, (text, _) in enumerate(answers) if text and r not in may_die
    ]
    if failed:
        raise ProgramFailed("\n".join(failed))
    return {b: [results.get(b) for _, results in answers] for b in backends}


@dataclass(frozen=True, slots=True)
class _Task:
    """What a process is to do."""

    program: Program
    rank: int
    n: int
    socket: str
    place: str
    backends: Sequence[str]
    owner: str
    arguments: dict[str, Any]


class _Rank:
    """One process."""

    def __init__(self, task: _Task) -> None:
        self._ours, theirs = _server.Pipe(duplex=False)
        self._log = Path(task.place, f"stack{task.rank}")
        self._process = _server.Process(target=_main, args=(theirs, task))
        self._process.start()
        theirs.close()

    def answer(self, deadline: float) -> tuple[str, dict[str, Any]]:
        """Its error, if any, and its results by backend."""
        try:
            if not self._ours.poll(max(deadline - time.monotonic(), 0.0)):
                self._process.kill()
                self._process.join()
                stack = self._log.read_text() if self._log.exists() else ""
                return f"not done in time\n{stack}", {}
            failure, results = torch.load(io.BytesIO(self._ours.recv_bytes()), weights_only=False)
            return failure, results
        except (EOFError, OSError):
            self._process.join()
            return f"ended with {self._process.exitcode}", {}
        finally:
            self._process.join(10)
            self._ours.close()


def _main(answer: Connection, task: _Task) -> None:
    for name in [name for name in os.environ if name.startswith("RINGD_")]:
        del os.environ[name]
    os.environ[MARK] = task.owner
    if task.socket:
        os.environ["RINGD_SOCKET"] = task.socket
    torch.set_num_threads(1)
    stack = os.open(Path(task.place, f"stack{task.rank}"), os.O_WRONLY | os.O_CREAT)
    faulthandler.dump_traceback_later(PATIENCE_S - 10, file=stack)
    results: dict[str, Any] = {}
    failure = ""
    try:
        for backend in task.backends:
            torch.manual_seed(0)
            results[backend] = _under(backend, task)
    except BaseException:
        failure = traceback.format_exc()
    faulthandler.cancel_dump_traceback_later()
    packed = io.BytesIO()
    torch.save((failure, results), packed)
    answer.send_bytes(packed.getvalue())
    answer.close()


def _under(backend: str, task: _Task) -> Any:
    dist.init_process_group(
        backend,
        init_method=f"file://{task.place}/{backend.replace(':', '-')}",
        rank=task.rank,
        world_size=task.n,
        timeout=timedelta(seconds=GROUP_TIMEOUT_S),
    )
    try:
        return task.program(**task.arguments)
    finally:
        with contextlib.suppress(AssertionError):  # a program may have destroyed it
            dist.destroy_process_group()


def same(expected: Any, got: Any) -> bool:
    """Equality that goes into containers and compares tensors with shape, dtype and values."""
    if isinstance(expected, torch.Tensor):
        return (
            isinstance(got, torch.Tensor)
            and expected.dtype == got.dtype
            and torch.equal(expected, got)
        )
    if isinstance(expected, dict):
        return expected.keys() == got.keys() and all(same(v, got[k]) for k, v in expected.items())
    if isinstance(expected, (list, tuple)):
        return len(expected) == len(got) and all(map(same, expected, got))
    return bool(expected == got)
