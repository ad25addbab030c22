"""Commands on hosts: one host's in our place, or all hosts' side by side."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ringd.errors import ConfigError
from ringd.lab.lab import Lab
from ringd.launch.children import Children
from ringd.launch.terminal import Terminal

HOST, HOSTS, ADDRESS = "LAB_HOST", "LAB_HOSTS", "LAB_ADDRESS"
"""Variables that a command sees: which host it is on, of how many, and that host's address."""
_STEPS = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0))
_INTERRUPT_STEPS = ((signal.SIGINT, 2.0), *_STEPS)


def become(lab: Lab, host: int, command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Run the command on a host, in place of this process.

    Raises:
        ConfigError: it can't be run.
    """
    _check(command)
    words = [*lab.enter(host), *command]
    os.execvpe(words[0], words, _environment(lab, host, environ))


def on_all(lab: Lab, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command on all hosts at once, each line of output with its host in front.

    Returns:
        0 when all ended well; else the exit code of the first that did not (the others go on), or
        130 after Ctrl-C, which all get.

    Raises:
        ConfigError: it can't be run.
    """
    _check(command)
    return asyncio.run(_on_all(lab, command, environ))


async def _on_all(lab: Lab, command: Sequence[str], environ: Mapping[str, str]) -> int:
    terminal = Terminal.taken()
    children = Children(terminal.out, terminal.err)
    signalled = asyncio.create_task(terminal.told.get())
    failure = 0
    try:
        await children.open(Path(tempfile.mkdtemp(prefix="ringd-lab-")))
        for host in range(lab.spec.hosts):
            env = _environment(lab, host, environ)
            await children.start(str(host), host, [*lab.enter(host), *command], env)
        while children.running:
            ended = asyncio.create_task(children.wait_any())
            await asyncio.wait({ended, signalled}, return_when=asyncio.FIRST_COMPLETED)
            if signalled.done():
                ended.cancel()
                await children.end(list(children.running), _INTERRUPT_STEPS)
                return 128 + signalled.result()
            for _, code in ended.result():
                failure = failure or (code if code >= 0 else 128 - code)
    finally:
        signalled.cancel()
        await children.end(list(children.running), _STEPS)
        await children.close()
        await terminal.close(lambda text: terminal.err.offer(f"ringd: {text}\n"))
    return failure


def _environment(lab: Lab, host: int, environ: Mapping[str, str]) -> dict[str, str]:
    mine = {HOST: str(host), HOSTS: str(lab.spec.hosts), ADDRESS: lab.address(host)}
    return {**environ, **mine}


def _check(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise ConfigError(f"the command {command[0]!r} is not found")
