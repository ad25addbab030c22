"""The launcher's side of the preloader: which commands can have one, and its forked trainers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

from ringd.errors import ConfigError
from ringd.launch.children import Child, Children, Spawned

READY_S: Final = 300.0
"""How long its imports may take."""
ANSWER_S: Final = 10.0
"""How long a fork may; and a question about one that has ended."""
LAST_ANSWER_S: Final = 1.0
"""How long a fork may that nobody needs any more."""
_MAX_DATAGRAM: Final = 1 << 16
_PYTHON: Final = re.compile(r"python[\d.]*t?")
_PLAIN: Final = "bBdEIOPqRsSuv"
"""Options of Python's that are alike for all that a process runs, and have no value."""
_PROGRAM: Final = os.path.join(os.path.dirname(__file__), "preloader.py")
_UNKNOWN_CODE: Final = 1
TRAINERS_DEFAULTS: Final = {
    # As many processes as ranks share the cores: more threads each would only fight for them.
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
"""What a trainer sees where nobody says otherwise; read when Python starts, or torch is loaded."""


def split(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command's Python with its options, and the program that it runs.

    Raises:
        ConfigError: it is no Python that runs a script, ``-m`` or ``-c``.
    """
    if not _PYTHON.fullmatch(os.path.basename(command[0])):
        raise _not_for(command, f"it starts with {command[0]!r}")
    words = list(command[1:])
    options: list[str] = []
    while words and words[0].startswith("-") and len(words[0]) > 1:
        word = words.pop(0)
        if word.startswith("--"):
            options += [word, *words[:1]]
            del words[:1]
            continue
        for at, letter in enumerate(word[1:], start=1):
            if letter in "cm":
                if at > 1:
                    options.append(word[:at])
                value = [word[at + 1 :]] if word[at + 1 :] else []
                if not value + words:
                    raise _not_for(command, f"nothing follows -{letter}")
                return [command[0], *options], [f"-{letter}", *value, *words]
            if letter not in _PLAIN + "WX":
                raise _not_for(command, f"it has -{letter}")
            if letter in "WX":
                options += [word] if word[at + 1 :] else [word, *words[:1]]
                if not word[at + 1 :]:
                    del words[:1]
                break
        else:
            options.append(word)
    if not words or words[0] == "-":
        raise _not_for(command, "it has no script")
    return [command[0], *options], words


def _not_for(command: Sequence[str], why: str) -> ConfigError:
    return ConfigError(
        "--preload is for a command that is a Python with a script, -m or -c, like "
        f"`python train.py`; {why}",
        key="preload",
        value=" ".join(command),
    )


class Forked:
    """A trainer that the preloader has forked."""

    def __init__(self, pid: int, out: int, err: int, preloader: Preloader) -> None:
        self.pid = pid
        self.stdout: IO[bytes] = os.fdopen(out, "rb", 0)
        self.stderr: IO[bytes] = os.fdopen(err, "rb", 0)
        self._preloader = preloader

    async def reap(self) -> int:
        """Its exit code, once it has ended; 1 if the preloader, who alone can know, is gone."""
        try:
            code = (await self._preloader.ask({"reap": self.pid}))["code"]
        except (OSError, TimeoutError):
            return _UNKNOWN_CODE
        return int(code)


class Preloader:
    """A process that has imported modules, and is forked for each trainer.

    It begins to import at once, and ends with us, if nobody watches it yet. While ``with`` lasts it
    may be asked.

    Args:
        modules: what it imports.
        command: of the trainers; see :func:`split`.
        environ: what it sees; those that it is forked for see what they are told.

    Attributes:
        child: the process, once it is watched.

    Raises:
        ConfigError: the command is none that can be preloaded for, or can't be run.
    """

    def __init__(
        self, modules: Sequence[str], command: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        python, program = split(command)
        self._modules = ", ".join(modules)
        self._asking: asyncio.Lock | None = None
        self.child: Child | None = None
        self._sock, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        words = [*python, _PROGRAM, ",".join(modules), *program]
        try:
            self._process = Spawned(words, {**TRAINERS_DEFAULTS, **environ}, its.fileno())
        except OSError as exc:
            self._sock.close()
            raise ConfigError(f"the command {command[0]!r} can't be run: {exc.strerror}") from None
        finally:
            its.close()

    def __enter__(self) -> Preloader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._sock.close()
        if self.child is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    async def watched_by(self, children: Children) -> None:
        """Let it be one of ``children``, its output and its end."""
        self._asking = asyncio.Lock()
        self.child = await children.take("preloader", 0, self._process)

    async def ready(self) -> None:
        """Wait until it has imported all.

        Raises:
            ConfigError: it could not, or not within READY_S.
        """
        try:
            told = await self._hear(READY_S)
        except (OSError, TimeoutError) as exc:
            raise ConfigError(f"--preload {self._modules}: {exc}", key="preload") from None
        if "error" in told:
            raise ConfigError(f"--preload {self._modules}: {told['error']}", key="preload")

    async def fork(self, children: Children, rank: int, env: Mapping[str, str]) -> Child:
        """A trainer, in a process group of its own.

        Args:
            env: what it sees.

        Raises:
            OSError: the preloader can't, or is gone.
        """
        out, its_out = os.pipe()
        err, its_err = os.pipe()
        told_env = os.memfd_create("environment")
        os.pwrite(told_env, json.dumps(dict(env)).encode(), 0)  # it may be too long for a datagram
        asked = asyncio.create_task(self.ask({"fork": rank}, [its_out, its_err, told_env]))
        try:
            told = await asyncio.shield(asked)
        except BaseException as exc:
            os.close(out)
            os.close(err)
            if isinstance(exc, asyncio.CancelledError):  # nobody would end it
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(LAST_ANSWER_S):
                        os.killpg((await asked)["pid"], signal.SIGKILL)
            raise
        finally:
            for fd in (its_out, its_err, told_env):
                os.close(fd)
        return await children.take(str(rank), rank, Forked(told["pid"], out, err, self))

    async def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Its answer.

        Raises:
            OSError, TimeoutError: it gives none.
        """
        assert self._asking is not None
        async with self._asking:
            try:
                socket.send_fds(self._sock, [json.dumps(request).encode()], fds)
                return await self._hear(ANSWER_S)
            except BaseException:  # what it would answer yet nobody will hear
                self._sock.close()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGKILL)
                raise

    async def _hear(self, within_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(within_s):
                data = await asyncio.get_running_loop().sock_recv(self._sock, _MAX_DATAGRAM)
        except TimeoutError:
            raise TimeoutError(f"the preloader did not answer within {within_s:g} s") from None
        if not data:
            raise ConnectionError("the preloader has ended; what it wrote says why")
        told: dict[str, Any] = json.loads(data)
        return told
