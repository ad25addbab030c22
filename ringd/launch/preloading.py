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
from ringd.launch.children import Child, Children

READY_S: Final = 300.0
"""How long its imports may take."""
ANSWER_S: Final = 10.0
"""How long a fork may; and a question about one that has ended."""
_MAX_DATAGRAM: Final = 1 << 16
_PYTHON: Final = re.compile(r"python[\d.]*t?")
_PROGRAM: Final = os.path.join(os.path.dirname(__file__), "preloader.py")
_UNKNOWN_CODE: Final = 1


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

    Attributes:
        child: the process.
    """

    def __init__(self, child: Child, sock: socket.socket, modules: Sequence[str]) -> None:
        self.child = child
        self._sock = sock
        self._modules = ", ".join(modules)
        self._asking = asyncio.Lock()

    @classmethod
    async def start(
        cls,
        children: Children,
        modules: Sequence[str],
        command: Sequence[str],
        env: Mapping[str, str],
    ) -> Preloader:
        """Let it begin to import.

        Args:
            command: of the trainers; see :func:`split`.
            env: what all of them see alike.

        Raises:
            ConfigError: the command is none that can be preloaded for.
            OSError: it can't be run.
        """
        python, program = split(command)
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with its:
            child = await children.start(
                "preloader",
                0,
                [*python, _PROGRAM, ",".join(modules), *program],
                env,
                stdin=its.fileno(),
            )
        return cls(child, ours, modules)

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
            env: what it sees besides what all see.

        Raises:
            OSError: the preloader can't, or is gone.
        """
        out, its_out = os.pipe()
        err, its_err = os.pipe()
        asked = asyncio.create_task(self.ask({"env": dict(env)}, [its_out, its_err]))
        try:
            told = await asyncio.shield(asked)
        except BaseException as exc:
            os.close(out)
            os.close(err)
            if isinstance(exc, asyncio.CancelledError):  # nobody would end it
                os.killpg((await asked)["pid"], signal.SIGKILL)
            raise
        finally:
            os.close(its_out)
            os.close(its_err)
        return await children.take(str(rank), rank, Forked(told["pid"], out, err, self))

    async def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Its answer.

        Raises:
            OSError, TimeoutError: it gives none.
        """
        async with self._asking:
            socket.send_fds(self._sock, [json.dumps(request).encode()], fds)
            return await self._hear(ANSWER_S)

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

    def close(self) -> None:
        """Let it end."""
        with contextlib.suppress(OSError):
            self._sock.close()
