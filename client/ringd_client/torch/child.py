"""The process of a daemon that this process starts, and what the two say to each other."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from dataclasses import dataclass
from typing import Final, Self

from ringd.config import environment
from ringd.config.loader import Loaded
from ringd.launch.python import own_module
from ringd_client._environment import out_of

_MAX_WORDS_BYTES: Final = 4096


@dataclass(slots=True)
class Child:
    """A process that waits to be told which daemon it is, or is that.

    Attributes:
        words: why it ends, if that is an error; closed when nobody wants to know.
        owner: the process that started it: after a fork it is not ours.
    """

    process: subprocess.Popen[bytes]
    words: socket.socket
    owner: int

    @classmethod
    def start(cls, *, holds_rendezvous: bool = False) -> Self:
        """Start it; it imports what it needs, and waits.

        Args:
            holds_rendezvous: it needs that too, most likely.

        Raises:
            ResourceError: this process, or the machine, has no room for it.
            OSError: it can't be started.
        """
        try:
            return cls._started(*["rendezvous"] * holds_rendezvous)
        except OSError as exc:
            if lack := out_of(exc):
                raise lack from exc
            raise

    @classmethod
    def _started(cls, *needs: str) -> Self:
        env = environment.snapshot()
        env.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's: threads that nobody here needs
        words, its = socket.socketpair()
        try:
            with its:
                process = subprocess.Popen(
                    own_module("ringd.cli.child_daemon", os.getpid(), its.fileno(), *needs),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[its.fileno()],
                    env=env,
                    start_new_session=True,  # Ctrl-C is for the script, which says goodbye
                )
        except BaseException:
            words.close()
            raise
        return cls(process, words, os.getpid())

    @property
    def is_ours(self) -> bool:
        """It is a child of this very process."""
        return self.owner == os.getpid()

    @property
    def lives(self) -> bool:
        """It is ours, and has not ended."""
        return self.is_ours and self.process.poll() is None

    def tell(self, settings: Loaded) -> None:
        """Have it be the daemon of these settings."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(settings.to_line())

    def last_words(self) -> str:
        """Why it has ended, in its own words; "": it did not say."""
        with contextlib.suppress(OSError):
            return self.words.recv(_MAX_WORDS_BYTES, socket.MSG_DONTWAIT).decode(errors="replace")
        return ""

    def drop(self) -> None:
        """Have it end; it is nobody yet."""
        self.process.kill()
        self.process.wait()
        self.words.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
