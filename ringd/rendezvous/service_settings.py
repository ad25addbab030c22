"""The bounds of a rendezvous, for who may come to hold one."""

from __future__ import annotations

from dataclasses import dataclass

from ringd.rendezvous.bounds import DEAD_AFTER_S, GATHER_LINK_REPORTS_S, LAST_CALL_S
from ringd.transport.handshaking import HANDSHAKE_TIMEOUT_S, MAX_PENDING


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The service's bounds, in seconds and in connections.

    ``min_size``, ``last_call_s`` and ``majority`` are those of the membership.
    """

    dead_after_s: float = DEAD_AFTER_S
    gather_link_reports_s: float = GATHER_LINK_REPORTS_S
    min_size: int = 0
    last_call_s: float = LAST_CALL_S
    majority: bool = False
    status_timeout_s: float = 2.0
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    max_pending: int = MAX_PENDING
