"""What a launcher takes over from where it was started: its output, and the signals to it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass

from ringd.launch.writer import Writer, last_lines, standard_writers

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Terminal:
    """Writers for stdout and stderr, and the signals that came.

    Attributes:
        out, err: may be one and the same; :meth:`close` ends them.
        told: the numbers of :data:`SIGNALS`, as they come.
        interrupted: set once one has come.
    """

    out: Writer
    err: Writer
    told: asyncio.Queue[int]
    interrupted: asyncio.Event

    @classmethod
    def taken(cls) -> Terminal:
        """From now on, and until the running loop ends, signals only are told."""
        terminal = cls(*standard_writers(), asyncio.Queue(), asyncio.Event())
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, terminal._tell, int(number))
        return terminal

    async def close(self, say: Callable[[str], None]) -> None:
        """Have the last lines written, as far as somebody reads them.

        Args:
            say: is told what of ``out`` was given up; it writes to ``err``.
        """
        await last_lines(self.out, self.err, self.interrupted, say)

    def _tell(self, number: int) -> None:
        self.told.put_nowait(number)
        self.interrupted.set()
