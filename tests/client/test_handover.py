"""Answers that a program gets once: whatever cuts its call short, the next reform() tells them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

import ringd_client
from ringd.errors import MembershipChangedError
from ringd_client import AsyncCommunicator, Communicator, Reform
from tests.client.points import Handler, points_in
from tests.client.stub_daemon import StubDaemon


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
    for at in range(points_in(lambda: work(comm)) + 1):
        comm.reform(timeout_s=5)
        daemon.submitted.clear()
        answers: list[bool | None] = []
        with Handler(at, interrupt) as point, contextlib.suppress(Interrupted):
            answers.append(work(comm))
        answers.append(comm.reform(timeout_s=5).agreed)
        assert answers.count(True) == len(daemon.submitted), point.line
        told_by_reform += answers[-1] is True
    assert told_by_reform > 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_epoch_is_told_once_wherever_a_handler_raises(
    comm: Communicator, daemon: StubDaemon
) -> None:
    """And with it the agreement of the last one, which the program has not heard."""
    comm.reform()
    told_later = 0
    for at in range(points_in(lambda: comm.reform(timeout_s=5)) + 1):
        before = daemon.epoch
        comm.agree_async(True)
        told: list[Reform] = []
        with Handler(at, interrupt) as point, contextlib.suppress(Interrupted):
            told.append(comm.reform(timeout_s=5))
        submitted = len(daemon.submitted)
        if not told:
            _calls_are_refused_until_it_is_told(comm, daemon, point.line)
            told_later += daemon.epoch > before
            assert len(daemon.submitted) == submitted or daemon.epoch == before, point.line
            told.append(comm.reform(timeout_s=5))
        assert [change.epoch for change in told] == [before + 1], point.line
        assert daemon.epoch == comm.epoch == before + 1, point.line
        assert told[0].agreed is True, point.line
        comm.barrier(timeout_s=5)
    assert told_later > 3


def _calls_are_refused_until_it_is_told(comm: Communicator, daemon: StubDaemon, line: str) -> None:
    epoch = comm.epoch
    try:
        comm.isend(daemon_message(), 0, timeout_s=5).wait()
    except MembershipChangedError:
        comm.status(timeout_s=5)  # answered after the reform: what the daemon says is read
        with pytest.raises(MembershipChangedError, match=rf"learn of epoch {daemon.epoch}"):
            comm.isend(daemon_message(), 0)
    else:
        assert daemon.epoch == epoch, line


def daemon_message() -> object:
    import numpy as np

    return np.ones(1)


# ------------------------------------------------------------ the asyncio twin


async def cut_short(comm: AsyncCommunicator, at: int, call: Callable[[], object]) -> list[object]:
    """What the call gave, if its task was not cancelled at the client's ``at``-th line."""
    got: list[object] = []

    async def work() -> None:
        got.append(await call())  # type: ignore[misc]

    task = asyncio.create_task(work())
    with Handler(at, lambda: task.cancel() and None):
        await asyncio.wait([task])
    return got


def test_an_agreement_is_told_once_wherever_its_await_is_cancelled(daemon: StubDaemon) -> None:
    async def main() -> None:
        async with await ringd_client.connect_async(socket=daemon.path, timeout_s=5) as comm:
            told_by_reform = 0
            for at in range(150):
                daemon.submitted.clear()
                answers = await cut_short(comm, at, lambda: comm.agree(True))
                answers.append((await comm.reform(timeout_s=5)).agreed)
                assert answers.count(True) == len(daemon.submitted), at
                told_by_reform += answers[-1] is True
            assert 3 < told_by_reform < 150  # and there are fewer lines than that

    asyncio.run(main())


def test_an_epoch_is_told_once_wherever_its_await_is_cancelled(daemon: StubDaemon) -> None:
    async def main() -> None:
        async with await ringd_client.connect_async(socket=daemon.path, timeout_s=5) as comm:
            told_later = 0
            for at in range(200):
                before = daemon.epoch
                comm.agree(True)
                told = await cut_short(comm, at, lambda: comm.reform(timeout_s=5))
                if not told:
                    told_later += 1
                    told.append(await comm.reform(timeout_s=5))
                (change,) = told
                assert isinstance(change, Reform)
                assert (change.epoch, change.agreed) == (before + 1, True), at
                assert daemon.epoch == comm.epoch == before + 1, at
                await comm.barrier(timeout_s=5)
            assert 3 < told_later < 200

    asyncio.run(main())
