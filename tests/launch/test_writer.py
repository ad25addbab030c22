"""The launcher's output, where whoever reads it stops to: nothing else may wait for that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringd.launch import writer as writers
from ringd.launch.writer import MAX_QUEUED_BYTES, Writer
from tests.processes.harness import ROOT, processes_of, until
from tests.processes.job import Job, start_job

ENDS_WITHIN_S = 30.0
LINE = "x" * 99 + "\n"


def is_full(fd: int) -> bool:
    """Whether a pipe takes nothing more: the kernel has no page left for it, however few bytes are
    in each."""
    room = select.poll()
    room.register(fd, select.POLLOUT)
    return not room.poll(0)


def read_all(fd: int) -> bytes:
    """To the end of the pipe, waiting for it."""
    os.set_blocking(fd, True)
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    return b"".join(parts)


# ---------------------------------------------------------------- whole jobs


class Unread:
    """A job whose stdout is a pipe of ours."""

    def __init__(self, folder: Path, owner: str, n: int, script: str, *flags: str) -> None:
        folder.mkdir(exist_ok=True)
        os.mkfifo(folder / "out")
        self._path = folder / "out"
        self.pipe = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        self.job: Job = start_job(n, ["sh", "-c", script], folder, owner, *flags)

    def await_full(self) -> None:
        ours = os.open(self._path, os.O_WRONLY)
        try:
            until(lambda: is_full(ours), "the pipe is full")
        finally:
            os.close(ours)

    def await_error(self, text: str) -> None:
        until(lambda: text in self.job.err, f"{text!r} is said", ENDS_WITHIN_S)

    def close(self) -> None:
        os.close(self.pipe)
        if self.job.process.poll() is None:
            self.job.process.kill()
        self.job.process.wait()


@pytest.fixture
def start(folder: Path, owner: str) -> Iterator[Callable[..., Unread]]:
    jobs: list[Unread] = []

    def begin(n: int, script: str) -> Unread:
        jobs.append(Unread(folder / "job", owner, n, script))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


def test_a_failure_is_seen_and_a_signal_heard_while_nobody_reads_the_output(
    start: Callable[..., Unread], folder: Path, owner: str
) -> None:
    go = folder / "go"
    prints = f"yes {'x' * 99} | head -c 4000000"
    dies = f"until [ -e {go} ]; do sleep 0.05; done; kill -9 $$"
    unread_job = start(2, f"if [ $RINGD_RANK = 0 ]; then {prints}; else {dies}; fi")
    unread_job.await_full()
    go.touch()
    unread_job.await_error("rank 1 failed (signal SIGKILL); ending the job")
    process = unread_job.job.process
    until(lambda: set(processes_of(owner)) <= {process.pid}, "all but the launcher ended")
    process.send_signal(signal.SIGINT)
    assert process.wait(ENDS_WITHIN_S) == 137, "the signal came after the failure"
    assert "bytes of output are lost, as nobody reads them" in unread_job.job.err
    assert "Traceback" not in unread_job.job.err


def test_a_signal_ends_a_job_whose_output_nobody_reads(start: Callable[..., Unread]) -> None:
    unread_job = start(1, f"yes {'x' * 99}")
    unread_job.await_full()
    unread_job.job.process.send_signal(signal.SIGTERM)
    assert unread_job.job.process.wait(ENDS_WITHIN_S) == 143


def test_a_reader_that_comes_after_the_end_gets_all(
    start: Callable[..., Unread], owner: str
) -> None:
    unread_job = start(1, f"yes {'x' * 99} | head -n 5000; echo that was all")
    process = unread_job.job.process
    unread_job.await_full()
    until(lambda: set(processes_of(owner)) == {process.pid}, "only the launcher is left")
    lines = read_all(unread_job.pipe).decode().splitlines()
    assert lines == [f"[0] {'x' * 99}"] * 5000 + ["[0] that was all"]
    assert process.wait(ENDS_WITHIN_S) == 0


# ---------------------------------------------------------------- the writer


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends to read and to write."""
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        with contextlib.suppress(OSError):
            os.close(fd)


async def test_who_wants_to_print_waits_for_room_and_no_longer(pipe: tuple[int, int]) -> None:
    read, write = pipe
    writer = Writer(write)
    count = 2 * MAX_QUEUED_BYTES // len(LINE)
    for _ in range(count):
        writer.put(LINE)
    room = asyncio.create_task(writer.room())
    await asyncio.to_thread(until, lambda: is_full(write), "the pipe is full")
    assert not room.done()
    reading = asyncio.create_task(asyncio.to_thread(read_all, read))
    await room
    assert writer.queued < MAX_QUEUED_BYTES
    await writer.drain(ENDS_WITHIN_S)
    os.close(write)
    assert await reading == LINE.encode() * count
    writer.close()


async def test_what_may_not_wait_is_dropped_at_twice_the_bound_and_that_is_said(
    pipe: tuple[int, int],
) -> None:
    read, write = pipe
    writer = Writer(write)
    offered = 3 * MAX_QUEUED_BYTES // len(LINE)
    for at in range(offered):
        if at == offered // 3:  # from here on the thread is stuck, so it makes no room between
            await asyncio.to_thread(until, lambda: is_full(write), "the pipe is full")
        writer.offer(LINE)
    assert writer.queued <= 2 * MAX_QUEUED_BYTES + len(LINE)
    reading = asyncio.create_task(asyncio.to_thread(read_all, read))
    await writer.drain(ENDS_WITHIN_S)
    writer.offer("the next\n")
    await writer.drain(ENDS_WITHIN_S)
    os.close(write)
    *lines, note, last = (await reading).decode().splitlines()
    assert set(lines) == {LINE.rstrip()}
    assert note.startswith("ringd: ")
    assert int(note.split()[1]) == offered - len(lines)
    assert last == "the next"
    writer.close()


async def test_once_nobody_can_read_all_is_thrown_away(pipe: tuple[int, int]) -> None:
    read, write = pipe
    writer = Writer(write)
    for _ in range(2 * MAX_QUEUED_BYTES // len(LINE)):
        writer.put(LINE)
    os.close(read)
    await writer.room()
    await writer.drain(ENDS_WITHIN_S)
    assert writer.queued == 0
    writer.close()


async def test_a_pipe_that_somebody_made_non_blocking_is_written_whole(
    pipe: tuple[int, int],
) -> None:
    read, write = pipe
    os.set_blocking(write, False)
    writer = Writer(write)
    for _ in range(5000):
        writer.put(LINE)
    await asyncio.to_thread(until, lambda: is_full(write), "the pipe is full")
    reading = asyncio.create_task(asyncio.to_thread(read_all, read))
    await writer.drain(ENDS_WITHIN_S)
    os.close(write)
    assert await reading == LINE.encode() * 5000
    writer.close()


async def test_the_end_waits_for_a_reader_only_so_long_and_says_what_is_lost(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DRAIN_S", "DRAIN_SIGNALLED_S", "DRAIN_LAST_S"):
        monkeypatch.setattr(writers, name, 0.05)
    writer = Writer(pipe[1])
    for _ in range(5000):
        writer.put(LINE)
    said: list[str] = []
    await writers.last_lines(writer, Writer(None), asyncio.Event(), said.append)
    assert [text.split(" bytes ")[1] for text in said] == [
        "of output are lost, as nobody reads them"
    ]


def test_an_interpreter_ends_while_a_writer_is_stuck(pipe: tuple[int, int]) -> None:
    program = """
from ringd.launch.writer import Writer
writer = Writer(1)
writer.put("x" * 200_000)
input()
raise SystemExit(7)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=pipe[1], cwd=ROOT
    )
    until(lambda: is_full(pipe[1]), "it is stuck")
    process.communicate(b"\n", ENDS_WITHIN_S)
    assert process.returncode == 7
