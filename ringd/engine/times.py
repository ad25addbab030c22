"""What bounds one call in time, and who said so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ringd.wire.bounds import OF_CALL, OF_DAEMON, SILENCES, TIMEOUTS, Bound

if TYPE_CHECKING:
    from ringd.engine.engine import EngineOptions

OTHERS_S: Final = 0.025
"""How long after another rank's deadline we wait for that rank to say so, which knows its setting:
more than a tick, and less than a rank without a verdict waits for its peers' views."""


class Times(NamedTuple):
    """What bounds a call in time.

    Attributes:
        timeout_s: from now on.
        recv_timeout_s: of a peer's silence; 0: no limit.
        asked_s: the deadline as it was asked for, from the beginning of the call.
        setting, recv_setting: which settings these are.
    """

    timeout_s: float
    recv_timeout_s: float = 0.0
    asked_s: float = 0.0
    setting: str = TIMEOUTS[OF_CALL]
    recv_setting: str = SILENCES[OF_CALL]

    @classmethod
    def of(
        cls, options: EngineOptions, timeout_s: float, recv_timeout_s: float, bound: Bound | None
    ) -> Times:
        """Of a call; 0 is the default of the options."""
        if bound is None:
            bound = Bound(timeout_s) if timeout_s else Bound(options.timeout_s, OF_DAEMON)
        return cls(
            timeout_s or options.timeout_s,
            recv_timeout_s or options.recv_timeout_s,
            bound.timeout_s,
            TIMEOUTS[bound.source],
            SILENCES[OF_CALL if recv_timeout_s else OF_DAEMON],
        )


NO_TIMES: Final = Times(0.0)
"""Of an operation that has not begun."""
