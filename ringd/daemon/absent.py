"""The words for a group that does not come together."""

from __future__ import annotations

from collections.abc import Collection

from ringd.engine.failures import ranks_text
from ringd.errors import RendezvousError
from ringd.rendezvous.agent_events import Presence


def daemons_missing(
    rank: int, n: int, joined: Collection[int], timeout_s: float
) -> RendezvousError:
    """Not all ``n`` daemons came within ``timeout_s``; ``rank`` is our own."""
    missing = sorted(set(range(n)) - set(joined) - {rank})
    return RendezvousError(
        f"{n - len(missing)} of {n} daemons joined within {timeout_s:g} s: missing "
        f"{ranks_text(missing)}. Start what is missing, or raise join_timeout_s.",
        joined=sorted(joined),
        missing=missing,
    )


def went_on_without(rank: int, running: Collection[int], within: str) -> RendezvousError:
    """Others take part in an epoch, and let nobody in ``within`` our trainer's time."""
    others = sorted(running)
    verb = "runs" if len(others) == 1 else "run"
    return RendezvousError(
        f"{ranks_text(others)} {verb} an epoch without rank {rank}, which is let in when all of "
        f"them call reform(), and they did not {within}. Have them call it (comm.newcomers() "
        "says who waits), or wait longer: raise timeout_s.",
        running=others,
    )


def not_let_in(rank: int, n: int, presence: Presence, within: str) -> RendezvousError:
    """No epoch began for our trainer ``within`` its time: who has no daemon, and who no trainer,
    or who goes on without it."""
    if presence.running:
        return went_on_without(rank, presence.running, within)
    everyone = set(range(n))
    no_daemon = sorted(everyone - set(presence.joined) - {rank})
    here = set(presence.attached) | {rank}
    no_trainer = sorted(everyone - here - set(no_daemon))
    parts = [f"{len(here)} of {n} joined {within}"]
    if no_daemon:
        parts.append(f"missing {ranks_text(no_daemon)} (no daemon)")
    if no_trainer:
        parts.append(f"missing {ranks_text(no_trainer)} (daemon is there, no trainer)")
    return RendezvousError(
        "; ".join(parts) + ". Start what is missing, or raise timeout_s of connect().",
        joined=sorted(here),
        missing=sorted(everyone - here),
        missing_daemons=no_daemon,
        missing_trainers=no_trainer,
    )
