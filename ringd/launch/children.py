"""Child processes of a launcher: each in a process group of its own, output prefixed, warded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from ringd.daemon.watch import ProcessWatch
from ringd.launch.output import Output, end_holders
from ringd.launch.starving import wait_fairly
from ringd.launch.writer import Writer

log = logging.getLogger("ringd.run")
OUTPUT_GRACE_S = 1.0
"""How long what a child left behind may hold the child's output open before it is ended."""


class Process(Protocol):
    """What runs a child: :class:`Spawned`, or another process's child."""

    pid: int
    stdout: IO[bytes]
    stderr: IO[bytes]

    async def reap(self) -> int:
        """Its exit code, negative: the signal; once it has ended."""


@dataclass(slots=True, eq=False)
class Child:
    """A started process. ``name`` is its prefix ("0" for trainer 0, "daemon 0")."""

    name: str
    rank: int
    process: Process
    outputs: list[Output]
    code: int | None = None
    """How it ended; negative: by this signal. None: it runs."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def __str__(self) -> str:
        return f"rank {self.name}" if self.name.isdecimal() else f"the {self.name}"


class Spawned:
    """A process that we have started.

    The pipes of its output are ours to close while somebody else holds them, which a transport of
    asyncio's would not let us do.

    Raises:
        OSError: the command can't be run.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], stdin: int) -> None:
        self._popen = subprocess.Popen(
            command,
            bufsize=0,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            process_group=0,
        )
        assert self._popen.stdout is not None and self._popen.stderr is not None
        self.pid = self._popen.pid
        self.stdout: IO[bytes] = self._popen.stdout
        self.stderr: IO[bytes] = self._popen.stderr

    def tell(self, told: bytes) -> None:
        """Write all that its standard input has."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._popen.stdin as pipe:
            pipe.write(told)

    async def reap(self) -> int:
        """See :class:`Process`."""
        return self._popen.wait()


class Children:
    """Starts, watches and ends child processes.

    A warden process ends them if this one is killed; should the warden be killed, ``wait_any``
    reports it like any child that ended.

    Args:
        out, err: where the children's stdout and stderr are copied to.
    """

    def __init__(self, out: Writer, err: Writer) -> None:
        self._out = out
        self._err = err
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
        self,
        name: str,
        rank: int,
        command: Sequence[str],
        env: Mapping[str, str],
        told: bytes | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> Child:
        """Start a process in a new group.

        Args:
            told: what it reads on its standard input, at most 64 KiB; None: nothing.
            stdin: a descriptor for that instead.

        Raises:
            OSError: the command can't be run.
        """
        process = Spawned(command, env, stdin if told is None else subprocess.PIPE)
        child = await self.take(name, rank, process)
        if told is not None:
            process.tell(told)
        return child

    async def take(self, name: str, rank: int, process: Process) -> Child:
        """Watch a process that was started, in a group of its own, as one of ours."""
        self._ward("+", process.pid)
        waits = name.isdecimal()  # trainers; a daemon that stood still would fail the job
        outputs = [
            await Output.start(process.stdout, self._out, name, waits=waits),
            await Output.start(process.stderr, self._err, name, waits=waits),
        ]
        child = Child(name, rank, process, outputs)
        self.running[child] = asyncio.create_task(self._run_out(child))
        return child

    async def _run_out(self, child: Child) -> int:
        """Until the child has ended, and what it left behind, and its output is copied.

        What it left in its group ends at once. What left that group (a daemon, a session of its
        own) and holds the output open has OUTPUT_GRACE_S to end by itself.
        """
        await _ended(child.pid)
        _signal_group(child.pid, signal.SIGKILL)  # before it is reaped: the number is its own yet
        child.code = await child.process.reap()
        self._ward("-", child.pid)
        try:
            copied = [output.copied for output in child.outputs]
            _, late = await asyncio.wait(copied, timeout=OUTPUT_GRACE_S)
            if late:
                for holder in end_holders(child.outputs):
                    log.warning(
                        "%s ended, but %s has its output open still; ended it", child, holder
                    )
                for output in child.outputs:
                    await output.take_rest()  # it may be only the queue that is full
                copied = [output.copied for output in child.outputs]
                await asyncio.wait(copied, timeout=OUTPUT_GRACE_S)
        finally:
            for output in child.outputs:
                output.close()
        return child.code

    def _ward(self, sign: str, pid: int) -> None:
        if self._warden is not None and self._warden.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._warden.stdin.write(f"{sign} {pid}\n".encode())

    async def wait_any(self) -> list[tuple[Child | None, int]]:
        """Wait until a child (or the warden: None) ended; its exit code, negative: the signal.

        A child that ended is told once; if this is cancelled, the next call tells it.
        """
        assert self._warden_task is not None
        tasks: set[asyncio.Task[int]] = {*self.running.values(), self._warden_task}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended: list[tuple[Child | None, int]] = []
        for child, task in list(self.running.items()):
            if task.done():
                ended.append((child, task.result()))
                del self.running[child]
        if self._warden_task.done():
            ended.append((None, self._warden_task.result()))
        return ended

    async def end(self, children: Sequence[Child], steps: Sequence[tuple[int, float]]) -> None:
        """End ``children``: each step is a signal and how long to wait for it to work, in time that
        the children could use."""
        for step, (number, grace_s) in enumerate(steps):
            alive = [c for c in children if c in self.running]
            if not alive:
                return
            if step and number:
                _tell_who_lives(alive, steps[step:])
            for child in alive:
                if number and child.code is None:
                    _signal_group(child.pid, number)
            await wait_fairly({self.running[c]: c.pid for c in alive}, grace_s)
            for child in alive:
                if self.running[child].done():
                    del self.running[child]

    async def close(self) -> None:
        """End whatever is left, and the warden."""
        with contextlib.suppress(asyncio.CancelledError):
            await self.end(list(self.running), ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)))
        if self._warden is not None and self._warden.stdin is not None:
            self._warden.stdin.close()
            await self._warden.wait()


def _tell_who_lives(alive: Sequence[Child], steps: Sequence[tuple[int, float]]) -> None:
    """Who has not ended yet, and what comes next; the first of ``steps`` is the one that begins."""
    (number, grace_s), *later = steps
    names = ", ".join(str(child) for child in alive if child.code is None)
    if not names:
        return  # only their output is awaited
    then = f"; {signal.Signals(later[0][0]).name} in {grace_s:g} s" if later else ""
    log.warning("not ended yet: %s: %s now%s", names, signal.Signals(number).name, then)


async def _ended(pid: int) -> None:
    """Wait for the end of the process itself, and not of what it left behind; it is not reaped."""
    ended = asyncio.Event()
    watch = ProcessWatch(asyncio.get_running_loop(), pid, ended.set)
    try:
        await ended.wait()
    finally:
        watch.close()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
