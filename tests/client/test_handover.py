"""Answers that a program gets once: whatever cuts its call short, the next reform() tells them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ringd_client
from ringd.errors import MembershipChangedError, RingdError
from ringd_client import Communicator, Reform
from tests.client.points import Handler
from tests.client.stub_daemon import StubDaemon

LINES = 400
"""More than any of these calls has; how many that are depends on timing."""


class Interrupted(Exception):
    """What a handler raises."""


def interrupt() -> None:
    raise Interrupted


def agree(comm: Communicator) -> bool:
    return comm.agree(True)


def agree_with_a_handle(comm: Communicator) -> bool:
    return comm.agree_async(True).wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("work", [agree, agree_with_a_handle])
def test_an_agreement_is_told_once_wherever_a_handler_raises(
    comm: Communicator, daemon: StubDaemon, work: Callable[[Communicator], bool]
) -> None:
    """The others commit when the daemon has done the agree, and so must this rank."""
    work(comm)
    told_by_reform = 0
    for at in range(LINES):
        comm.reform(timeout_s=5)
        daemon.submitted.clear()
        answers: list[bool | None] = []
        with Handler(at, interrupt) as point, contextlib.suppress(Interrupted, RingdError):
            answers.append(work(comm))
        line = point.line
        answers.append(comm.reform(timeout_s=5).agreed)
        assert answers.count(True) == len(daemon.submitted), line
        told_by_reform += answers[-1] is True
    assert 3 < told_by_reform < at


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_epoch_is_told_once_wherever_a_handler_raises(
    comm: Communicator, daemon: StubDaemon
) -> None:
    """And with it the agreement of the last one, which the program has not heard."""
    comm.reform()
    told_later = 0
    for at in range(LINES):
        before = daemon.epoch
        comm.agree_async(True)
        told: list[Reform] = []
        with Handler(at, interrupt) as point, contextlib.suppress(Interrupted, RingdError):
            told.append(comm.reform(timeout_s=5))
        line = point.line
        if not told:
            _calls_are_refused_until_it_is_told(comm, daemon, line)
            told_later += daemon.epoch > before
            told.append(comm.reform(timeout_s=5))
        assert [change.epoch for change in told] == [before + 1], line
        assert daemon.epoch == comm.epoch == before + 1, line
        assert told[0].agreed is True, line
        comm.barrier(timeout_s=5)
    assert 3 < told_later < at


def _calls_are_refused_until_it_is_told(comm: Communicator, daemon: StubDaemon, line: str) -> None:
    epoch = comm._state.epoch
    try:
        comm.isend(np.ones(1), 0, timeout_s=5).wait()
    except MembershipChangedError:
        comm.status(timeout_s=5)  # answered after the reform: what the daemon says is read
        began = daemon.epoch > epoch  # else it was not sent
        words = f"learn of epoch {daemon.epoch}" if began else r"call reform\(\), and"
        with pytest.raises(MembershipChangedError, match=words):
            comm.isend(np.ones(1), 0)
    else:
        assert daemon.epoch == epoch, line


# ------------------------------------------------------------ the asyncio twin


async def cut_short(at: int, call: Callable[[], Any]) -> tuple[list[Any], str]:
    """What a call gave whose task is cancelled soon after the client's ``at``-th line; that line.

    Tasks are cancelled by callbacks of the loop, which come when the present one has ended.
    """
    loop = asyncio.get_running_loop()
    got: list[Any] = []

    async def work() -> None:
        got.append(await call())

    task = asyncio.create_task(work())
    with Handler(at, lambda: loop.call_soon(task.cancel)) as point:
        await asyncio.wait([task])
    return got, point.line


def test_an_agreement_is_told_once_wherever_its_await_is_cancelled(daemon: StubDaemon) -> None:
    async def main() -> None:
        async with await ringd_client.connect_async(socket=daemon.path, timeout_s=5) as comm:
            told_by_reform = 0
            for at in range(LINES):
                daemon.submitted.clear()
                answers, line = await cut_short(at, lambda: comm.agree(True))
                answers.append((await comm.reform(timeout_s=5)).agreed)
                assert answers.count(True) == len(daemon.submitted) == 1, line
                told_by_reform += answers[-1] is True
            assert 3 < told_by_reform < at

    asyncio.run(main())


def test_an_epoch_is_told_once_wherever_its_await_is_cancelled(daemon: StubDaemon) -> None:
    async def main() -> None:
        async with await ringd_client.connect_async(socket=daemon.path, timeout_s=5) as comm:
            told_later = 0
            for at in range(LINES):
                before = daemon.epoch
                comm.agree(True)
                told, line = await cut_short(at, lambda: comm.reform(timeout_s=5))
                if not told:
                    told_later += 1
                    told.append(await comm.reform(timeout_s=5))
                (change,) = told
                assert (change.epoch, change.agreed) == (before + 1, True), line
                assert daemon.epoch == comm.epoch == before + 1, line
                await comm.barrier(timeout_s=5)
            assert 3 < told_later < at

    asyncio.run(main())
