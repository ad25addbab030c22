"""Locks that know their owner.

A signal handler (and a finalizer) may run between any two steps of a call, on the thread that
makes it, and may make calls itself. A lock that the interrupted call holds must not be waited
for then: the owner can't go on before the handler has returned.
"""

from __future__ import annotations

from _thread import RLock as OwnedLock
from collections.abc import Callable
from typing import Any, Final

from ringd.errors import ReentrantCallError

__all__ = ["OwnedLock", "is_mine", "let_go", "reentrant"]
"""``with`` is the safe way to take an OwnedLock: no handler runs between that and the block."""


is_mine: Final[Callable[[Any], bool]] = OwnedLock._is_owned  # type: ignore[attr-defined]
"""Whether the calling thread holds a lock, so most likely what it has interrupted."""


def let_go(lock: OwnedLock) -> None:
    """Release it, if it was taken: for where ``with`` does not do. A repetition does nothing."""
    if is_mine(lock):
        lock.release()


def reentrant() -> ReentrantCallError:
    """The error of a call in a handler that has interrupted another one at the wrong point."""
    return ReentrantCallError(
        "called in a signal handler (or a finalizer) that has interrupted another call of this "
        "thread in the middle of a step; nothing was posted. Set a flag in the handler, and call "
        "when the interrupted call has returned. close() is possible at any time"
    )
