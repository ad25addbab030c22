"""From marks to stages: each moment of a call belongs to one stage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ringd.bench.stages.marks import (
    ANSWER,
    ENTER,
    FINISH,
    FOLD,
    IDLE,
    NOTHING,
    PREPARE,
    READ,
    RECEIVE,
    REQUEST,
    SEND,
    TRAINERS,
    read,
)

STAGES: Final = {
    "prepare": "trainer: the call's checks, its plan, the copy into shared memory",
    "request": "trainer to daemon: the socket, and until the daemon is awake and free",
    "read": "daemon: takes the request from the socket",
    "enter": "daemon: plans the operation, makes its first frames, arms its deadline",
    "send": "daemon: gives frames to the kernel, which runs TCP",
    "wait": "daemon: nothing is there to do until bytes of a peer are",
    "receive": "daemon: takes bytes from the kernel, decodes frames, makes the next ones",
    "fold": "daemon: puts what came in its place, or reduces",
    "answer": "daemon: gives the result to the socket",
    "wake-up": "daemon to trainer: until the trainer runs and has it",
    "finish": "trainer: takes the result, copies out of shared memory",
}
"""Each stage, in the order of the path, and what happens in it."""
_OF_TRAINER: Final = {PREPARE: "prepare", FINISH: "finish"}
_OF_DAEMON: Final = {
    IDLE: "wait",
    READ: "read",
    ENTER: "enter",
    SEND: "send",
    RECEIVE: "receive",
    FOLD: "fold",
    ANSWER: "answer",
}

Call = dict[str, int]
"""Time of each stage, in ns."""


def calls(trainer: Sequence[int], daemon: Sequence[int]) -> list[Call]:
    """The whole calls among the marks of a trainer and its daemon, in order.

    From the request on, what the daemon does says where the call is, until the answer is out. What
    it does before it has read the request belongs to other calls, or to peers: that is "request".
    """
    path = _Path()
    for mark in sorted([*trainer, *daemon]):
        path.take(*read(mark))
    return path.found


class _Path:
    """One rank's way through its calls."""

    def __init__(self) -> None:
        self.found: list[Call] = []
        self._call: Call | None = None
        self._trainer, self._daemon = NOTHING, IDLE
        self._has_read = self._has_answered = False
        self._since_ns = 0

    def take(self, what: int, at_ns: int) -> None:
        """The next mark."""
        if self._call is not None:
            self._call[self._stage()] += at_ns - self._since_ns
        self._since_ns = at_ns
        if what in TRAINERS:
            self._trainer_goes_on(what)
        else:
            self._daemon_goes_on(what)

    def _stage(self) -> str:
        if self._trainer != REQUEST:
            return _OF_TRAINER[self._trainer]
        if not self._has_read:
            return "request"
        return "wake-up" if self._has_answered else _OF_DAEMON[self._daemon]

    def _trainer_goes_on(self, what: int) -> None:
        if what == PREPARE:
            self._call = dict.fromkeys(STAGES, 0)
            self._has_read = self._has_answered = False
        elif what == NOTHING and self._call is not None:
            self.found.append(self._call)
            self._call = None
        self._trainer = what

    def _daemon_goes_on(self, what: int) -> None:
        if self._trainer == REQUEST:
            self._has_answered |= self._has_read and self._daemon == ANSWER
            self._has_read |= what == READ
        self._daemon = what
