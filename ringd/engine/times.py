"""What bounds one call in time, and who said so."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from ringd.wire.bounds import OF_CALL, OF_DAEMON, SILENCES, TIMEOUTS, Bound

OTHERS_S: Final = 0.025
"""How long after another rank's deadline we wait for that rank to say so, which knows its setting:
more than a tick, and less than a rank without a verdict waits for its peers' views."""


class Times(NamedTuple):
    """What bounds a call in time, beside what is left of its deadline.

    Attributes:
        asked_s: the deadline as it was asked for, from the beginning of the call.
        recv_timeout_s: of a peer's silence; 0: no limit.
        setting, recv_setting: which settings these are.
    """

    asked_s: float
    recv_timeout_s: float = 0.0
    setting: str = TIMEOUTS[OF_CALL]
    recv_setting: str = SILENCES[OF_CALL]


@lru_cache(maxsize=256)
def times_of(bound: Bound, recv_timeout_s: float, default_recv_timeout_s: float) -> Times:
    """Of a call; a silence of 0 is the daemon's default. Calls differ in few bounds, so this keeps
    those of the last ones."""
    return Times(
        bound.timeout_s,
        recv_timeout_s or default_recv_timeout_s,
        TIMEOUTS[bound.source],
        SILENCES[OF_CALL if recv_timeout_s else OF_DAEMON],
    )


NO_TIMES: Final = Times(0.0)
"""Of an operation that has not begun."""
