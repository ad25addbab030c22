"""The launcher's own stdout and stderr: written by threads, so that the event loop never waits.

Whoever reads them may stop to (a pager, Ctrl-S, a log shipper that hangs), for seconds or for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

MAX_QUEUED_BYTES = 1024 * 1024
"""From here on trainers that print wait; what can't wait is dropped from twice this on."""
DRAIN_S = 60.0
"""At the end: for how long whoever reads our output may take none of it (a pager that shows its
first page) before the rest is given up."""
DRAIN_SIGNALLED_S = 2.0
"""After a signal: how long, in all."""
DRAIN_LAST_S = 0.5
"""For the line that says what was given up."""


class Writer:
    """A queue of lines before a file descriptor, and the thread that writes them.

    All but ``_run`` is called from one thread, that of the event loop. The descriptor stays the
    caller's. If it can't be written any more (nobody has the pipe open), all is thrown away.

    Args:
        fd: None: throw everything away.
    """

    def __init__(self, fd: int | None, encoding: str = "utf-8") -> None:
        self.encoding = encoding
        self._fd = -1 if fd is None else fd
        self._broken = fd is None
        self._closed = False
        self._lines: deque[bytes] = deque()
        self._queued = 0  # bytes, with those that are being written
        self._dropped = 0  # lines
        self._changed = threading.Condition()
        self._waiters: list[asyncio.Future[None]] = []
        # It writes to the descriptor itself and holds no lock meanwhile, sys.stdout's least of all:
        # so the interpreter can end while this thread is stuck in a write.
        self._thread = threading.Thread(target=self._run, name=f"writer {fd}", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Bytes that were not written yet."""
        with self._changed:
            return self._queued

    async def room(self) -> None:
        """Wait until less than MAX_QUEUED_BYTES are queued."""
        while waiter := self._waiter(MAX_QUEUED_BYTES):
            await waiter

    def put(self, text: str) -> None:
        """Queue whole lines, however many are queued."""
        data = text.encode(self.encoding, errors="replace")
        with self._changed:
            if not data or self._broken or self._closed:
                return
            self._lines.append(data)
            self._queued += len(data)
            self._changed.notify()

    def offer(self, text: str) -> None:
        """Queue whole lines that nobody may wait for: some are dropped if nobody reads for long."""
        if self.queued >= 2 * MAX_QUEUED_BYTES:
            self._dropped += 1
            return
        if self._dropped:
            self.put(f"ringd: {self._dropped} lines dropped here, as nobody read them\n")
            self._dropped = 0
        self.put(text)

    async def drain(self, patience_s: float) -> None:
        """Wait until all is written, or nothing was for ``patience_s``."""
        while waiter := self._waiter(1):
            done, _ = await asyncio.wait({waiter}, timeout=patience_s)
            if not done:
                return

    def close(self) -> None:
        """End the thread, as soon as it isn't stuck; what is queued yet is thrown away."""
        with self._changed:
            self._closed = True
            self._lines.clear()
            self._changed.notify()

    def _waiter(self, limit: int) -> asyncio.Future[None] | None:
        """Done after the next write; None: less than ``limit`` bytes are queued."""
        with self._changed:
            if self._queued < limit:
                return None
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            return waiter

    # In the thread

    def _run(self) -> None:
        while batch := self._next():
            try:
                _write_all(self._fd, batch)
            except OSError:
                self._broken = True
            self._written(len(batch))

    def _next(self) -> bytes:
        """Whole lines of up to PIPE_BUF bytes (so nobody else's come between), or a longer one;
        empty: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._closed)
            batch = bytearray()
            while self._lines and (
                not batch or len(batch) + len(self._lines[0]) <= select.PIPE_BUF
            ):
                batch += self._lines.popleft()
            return bytes(batch)

    def _written(self, count: int) -> None:
        with self._changed:
            self._queued -= count
            if self._broken:
                self._lines.clear()
                self._queued = 0
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)


class LogStream(io.TextIOBase):
    """What a logging handler writes to: lines that are offered to a writer."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def write(self, text: str, /) -> int:
        """Queue a line."""
        self._writer.offer(text)
        return len(text)


def standard_writers() -> tuple[Writer, Writer]:
    """For stdout and stderr; one for both if they are the same file, to keep the order of lines."""
    out, err = sys.stdout, sys.stderr
    writer = _writer(out)
    if out is not None and err is not None and _file(out) == _file(err):
        return writer, writer
    return writer, _writer(err)


async def last_lines(
    out: Writer, err: Writer, interrupted: asyncio.Event, say: Callable[[str], None]
) -> None:
    """Close both, when a reader has had time to take what is left: less if a signal came, or comes.

    Args:
        say: is told what was given up of ``out``; it writes to ``err``.
    """
    written = asyncio.create_task(_both_written(out, err))
    signalled = asyncio.create_task(interrupted.wait())
    await asyncio.wait({written, signalled}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait({written}, timeout=DRAIN_SIGNALLED_S)
    for task in (written, signalled):
        task.cancel()
    if lost := out.queued:
        say(f"the last {lost} bytes of output are lost, as nobody reads them")
        await err.drain(DRAIN_LAST_S)
    out.close()
    err.close()


async def _both_written(out: Writer, err: Writer) -> None:
    await asyncio.gather(out.drain(DRAIN_S), err.drain(DRAIN_S))


def _writer(stream: TextIO | None) -> Writer:
    if stream is None:  # the launcher was started with it closed
        return Writer(None)
    return Writer(stream.fileno(), stream.encoding)


def _file(stream: TextIO) -> tuple[int, int]:
    info = os.fstat(stream.fileno())
    return info.st_dev, info.st_ino


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:  # somebody who shares the file made it non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
