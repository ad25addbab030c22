"""Child processes of a launcher: each in a process group of its own, output prefixed, warded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ringd.daemon.watch import ProcessWatch

MAX_LINE_BYTES = 64 * 1024


@dataclass(slots=True, eq=False)
class Child:
    """A started process. ``name`` is its prefix ("0" for trainer 0, "daemon 0")."""

    name: str
    rank: int
    process: asyncio.subprocess.Process
    readers: list[asyncio.Task[None]]
    code: int | None = None
    """How it ended; negative: by this signal."""

    @property
    def pid(self) -> int:
        return self.process.pid


class Children:
    """Starts, watches and ends child processes.

    A warden process ends them if this one is killed; should the warden be killed, ``wait_any``
    reports it like any child that ended.
    """

    def __init__(self) -> None:
        self.running: dict[Child, asyncio.Task[int]] = {}
        self._warden: asyncio.subprocess.Process | None = None
        self._warden_task: asyncio.Task[int] | None = None

    async def open(self, folder: Path) -> None:
        """Start the warden, which also removes ``folder`` if this process can't."""
        self._warden = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            os.path.join(os.path.dirname(__file__), "warden.py"),
            str(folder),
            stdin=asyncio.subprocess.PIPE,
            process_group=0,
        )
        self._warden_task = asyncio.create_task(self._warden.wait())

    async def start(
        self, name: str, rank: int, command: Sequence[str], env: Mapping[str, str]
    ) -> Child:
        """Start a process in a new group.

        Raises:
            OSError: the command can't be run.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env),
            process_group=0,
            limit=MAX_LINE_BYTES,
        )
        self._ward("+", process.pid)
        assert process.stdout is not None and process.stderr is not None
        readers = [
            asyncio.create_task(_copy_lines(process.stdout, sys.stdout, name)),
            asyncio.create_task(_copy_lines(process.stderr, sys.stderr, name)),
        ]
        child = Child(name, rank, process, readers)
        self.running[child] = asyncio.create_task(_exit_code(process))
        return child

    def _ward(self, sign: str, pid: int) -> None:
        if self._warden is not None and self._warden.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._warden.stdin.write(f"{sign} {pid}\n".encode())

    async def wait_any(self) -> list[tuple[Child | None, int]]:
        """Wait until a child (or the warden: None) ended; its exit code, negative: the signal."""
        assert self._warden_task is not None
        tasks: set[asyncio.Task[int]] = {*self.running.values(), self._warden_task}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended: list[tuple[Child | None, int]] = []
        for child, task in list(self.running.items()):
            if task.done():
                await self._reap(child)
                ended.append((child, task.result()))
        if self._warden_task.done():
            ended.append((None, self._warden_task.result()))
        return ended

    async def _reap(self, child: Child) -> None:
        """The leader is gone; what it left in its group goes too, and its output is finished."""
        child.code = self.running.pop(child).result()
        _signal_group(child.pid, signal.SIGKILL)
        await asyncio.wait(child.readers, timeout=1.0)
        for reader in child.readers:
            reader.cancel()
        self._ward("-", child.pid)

    async def end(self, children: Sequence[Child], steps: Sequence[tuple[int, float]]) -> None:
        """End ``children``: each step is a signal and how long to wait for it to work."""
        for number, grace_s in steps:
            alive = [c for c in children if c in self.running]
            if not alive:
                return
            for child in alive:
                if number:
                    _signal_group(child.pid, number)
            await asyncio.wait([self.running[c] for c in alive], timeout=grace_s)
            for child in alive:
                if self.running[child].done():
                    await self._reap(child)

    async def close(self) -> None:
        """End whatever is left, and the warden."""
        with contextlib.suppress(asyncio.CancelledError):
            await self.end(list(self.running), ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)))
        if self._warden is not None and self._warden.stdin is not None:
            self._warden.stdin.close()
            await self._warden.wait()


async def _exit_code(process: asyncio.subprocess.Process) -> int:
    """Wait for the end of the process itself.

    ``Process.wait`` waits for the end of its output as well, which a child that it left behind
    (a worker of a killed trainer) can hold open for ever.
    """
    ended = asyncio.Event()
    watch = ProcessWatch(asyncio.get_running_loop(), process.pid, ended.set)
    try:
        await ended.wait()
    finally:
        watch.close()
    # asyncio's own watcher is about to say it, and has no event for that.
    while process.returncode is None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return process.returncode


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def _copy_lines(source: asyncio.StreamReader, target: TextIO, name: str) -> None:
    """Copy lines with their prefix; over-long ones in pieces."""
    prefix = f"[{name}] "
    while True:
        try:
            line = await source.readuntil(b"\n")
        except asyncio.IncompleteReadError as exc:
            line = exc.partial
        except asyncio.LimitOverrunError as exc:
            line = await source.readexactly(exc.consumed)
        if not line:
            return
        with contextlib.suppress(BrokenPipeError):
            target.write(prefix + line.decode(errors="replace").rstrip("\n") + "\n")
            target.flush()
