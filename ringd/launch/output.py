"""A child's output: copied line by line with a prefix, for as long as somebody holds it open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from ringd.launch.writer import Writer

MAX_LINE_BYTES = 64 * 1024
_MAX_NAME_CHARS = 80


class Output:
    """Copies what comes out of a pipe; owns our end of it.

    Attributes:
        copied: done when all that was written has been copied, and nobody can write any more.
    """

    def __init__(
        self,
        transport: asyncio.BaseTransport,
        inode: int,
        source: asyncio.StreamReader,
        target: Writer,
        name: str,
    ) -> None:
        self._transport = transport
        self.inode = inode
        self._lines = (source, target, name)
        self.copied: asyncio.Task[None]

    @classmethod
    async def start(cls, pipe: IO[bytes], target: Writer, name: str, *, waits: bool) -> Output:
        """Begin to copy ``pipe`` to ``target``, with ``[name]`` before each line.

        Args:
            waits: while the target's queue is full, the pipe is not read, so who writes to it waits
                in the end. False, for who must go on (a daemon): lines are dropped instead.
        """
        inode = os.fstat(pipe.fileno()).st_ino
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        output = cls(transport, inode, reader, target, name)
        copy = _copy_lines(*output._lines) if waits else _copy_lines(*output._lines, target.offer)
        output.copied = asyncio.create_task(copy)
        return output

    async def take_rest(self) -> None:
        """Copy what is left without waiting for room in the queue; nobody may write any more."""
        if not self.copied.done():
            self.copied.cancel()
            await asyncio.wait({self.copied})
            source, target, name = self._lines
            self.copied = asyncio.create_task(_copy_lines(source, target, name, target.put))

    def close(self) -> None:
        """Stop copying; without it the pipe outlives the event loop."""
        self.copied.cancel()
        self._transport.close()


def end_holders(outputs: Iterable[Output]) -> list[str]:
    """End all other processes that still can write into these pipes; says which they were."""
    pipes = {f"pipe:[{output.inode}]" for output in outputs}
    ended = []
    for pid in _processes():
        if not _holds(pid, pipes):
            continue
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                if _holds(pid, pipes):  # still the process that we looked at
                    text = f"process {pid} ({_name(pid)})"
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    ended.append(text)
            finally:
                os.close(pidfd)
    return ended


def _processes() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            yield int(name)


def _holds(pid: int, pipes: set[str]) -> bool:
    """Whether one of these is open in the process; False for one that we may not look into."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for fd in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{fd}") in pipes:
                    return True
    return False


def _name(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read(4096).decode(errors="replace").split("\0")
    text = " ".join(" ".join(words).split())
    return text if len(text) <= _MAX_NAME_CHARS else f"{text[:_MAX_NAME_CHARS]}…"


async def _copy_lines(
    source: asyncio.StreamReader,
    target: Writer,
    name: str,
    put: Callable[[str], None] | None = None,
) -> None:
    """Copy lines with their prefix; over-long ones in pieces.

    Nothing is lost if it is cancelled: it waits only while it has no line in hand.

    Args:
        put: takes a line at once; None: wait for room in the target first.
    """
    prefix = f"[{name}] "
    while True:
        if put is None:
            await target.room()
        try:
            line = await source.readuntil(b"\n")
        except asyncio.IncompleteReadError as exc:
            line = exc.partial
        except asyncio.LimitOverrunError as exc:
            line = await source.readexactly(exc.consumed)
        if not line:
            return
        text = prefix + line.decode(errors="replace").rstrip("\n") + "\n"
        (put or target.put)(text)
