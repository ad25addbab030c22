"""Seeing a trainer end: by pidfd, because a forked child can hold its socket open for long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


class ProcessWatch:
    """Calls ``on_end`` once when process ``pid`` ends.

    Where the process can't be watched (another pid namespace gives pid 0), ``watching`` is False
    and only the socket tells.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pid: int, on_end: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._on_end = on_end
        self._fd = -1
        if pid > 0:
            try:
                self._fd = os.pidfd_open(pid)
            except ProcessLookupError:
                loop.call_soon(self._ended)
            except OSError:
                return
            else:
                loop.add_reader(self._fd, self._ended)

    @property
    def watching(self) -> bool:
        """The process's end will be seen."""
        return self._fd >= 0

    def _ended(self) -> None:
        self.close()
        self._on_end()

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
