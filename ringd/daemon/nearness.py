"""Staying on the trainer's core, where the processes of a job have to share cores.

A small call goes back and forth between the trainer and its daemon, so the two of one rank hardly
ever work at the same time, while two daemons, or two trainers, do. A scheduler does not know, and
may leave both daemons on one core and both trainers on another for as long as they are busy: then
each rank waits for the other one's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ringd.engine.link import Link

LOOK_S: Final = 0.02
"""How often the trainer's core is looked at while small calls follow each other."""
_LAST_CORE: Final = 36
"""Field 39 of ``/proc/PID/stat``, the core that it ran on last, counted after the name."""
_STAT_BYTES: Final = 1024


class Nearness:
    """Moves the main thread to the core of the trainer's, and pins it nowhere.

    Only where the ranks of this host have fewer than two cores each; with more of them daemon and
    trainer are best off on one of their own each.

    Args:
        pid: the trainer; 0: it is of another pid namespace, and nothing is ever moved.
        links: to the peers, as they are at any time.

    Attributes:
        moves: how often it moved.
    """

    def __init__(self, pid: int, links: Mapping[int, Link]) -> None:
        self._links = links
        self._next = 0.0
        self._theirs, self._ours = _stat_of(pid), _stat_of(os.getpid())
        self.moves = 0

    def look(self) -> None:
        """A small call has begun. Costs 50 µs every LOOK_S, else 0.1 µs; never raises."""
        now = perf_counter()
        if now < self._next or self._theirs < 0 or self._ours < 0:
            return
        self._next = now + LOOK_S
        try:
            self._follow()
        except (OSError, ValueError, IndexError):  # it is gone, or a sandbox forbids it
            self.close()

    def _follow(self) -> None:
        cores = os.sched_getaffinity(0)
        ranks_here = 1 + sum(not link.far for link in self._links.values())
        if len(cores) >= 2 * ranks_here:
            return
        core = _last_core(self._theirs)
        if core in cores and core != _last_core(self._ours):
            os.sched_setaffinity(0, {core})
            os.sched_setaffinity(0, cores)
            self.moves += 1

    def close(self) -> None:
        """Look no more."""
        for fd in {self._theirs, self._ours} - {-1}:
            os.close(fd)
        self._theirs = self._ours = -1


def _stat_of(pid: int) -> int:
    """Its file, open; -1: there is none."""
    try:
        return os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC) if pid > 0 else -1
    except OSError:
        return -1


def _last_core(stat: int) -> int:
    text = os.pread(stat, _STAT_BYTES, 0)
    return int(text[text.rindex(b")") + 2 :].split()[_LAST_CORE])
