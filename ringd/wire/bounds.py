"""What bounds a call in time, and which setting says so: it travels with the call.

So an error can say the time that was asked for, not what was left of it on the way, and which
setting to raise.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

OF_CALL, OF_COMMUNICATOR, OF_DAEMON = range(3)
"""Who sets a deadline: the call's timeout_s, else its communicator's default, else the daemon's."""

TIMEOUTS: Final = ("timeout_s", "default_timeout_s", "RINGD_TIMEOUT_S")
"""The names of these settings."""
SILENCES: Final = ("recv_timeout_ms", "recv_timeout_ms", "RINGD_RECV_TIMEOUT_MS")
"""The same of a peer's silence, for which a communicator has no default."""
_WORDS: Final = {
    "timeout_s": "timeout_s of the call",
    "default_timeout_s": "default_timeout_s of the communicator",
    "RINGD_TIMEOUT_S": "the daemon's timeout_s (--timeout, RINGD_TIMEOUT_S)",
    "recv_timeout_ms": "recv_timeout_ms of the call",
    "RINGD_RECV_TIMEOUT_MS": "the daemon's recv_timeout_ms (RINGD_RECV_TIMEOUT_MS)",
}


_NO_BOUND: Final = "a bound is [timeout_s, whose]"


class Bound(NamedTuple):
    """A deadline as it was asked for: seconds from the beginning of the call, and by whom."""

    timeout_s: float
    source: int = OF_CALL


def checked_bound(value: object) -> Bound:
    """A bound that came in a message.

    Raises:
        ValueError: it is none.
    """
    try:
        return _bound(*value)  # type: ignore[misc]
    except TypeError:
        raise ValueError(_NO_BOUND) from None


@lru_cache(maxsize=256)
def _bound(timeout_s: object, source: object) -> Bound:
    if isinstance(timeout_s, int | float) and timeout_s > 0 and source in (0, 1, 2):
        return Bound(float(timeout_s), int(source))
    raise ValueError(_NO_BOUND)


def words(setting: object) -> str:
    """A setting, for a person who is to raise it."""
    return _WORDS.get(str(setting), str(setting))
