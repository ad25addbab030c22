"""The words for a group that does not come together."""

from __future__ import annotations

from collections.abc import Collection

from ringd.errors import RendezvousError
from ringd.rendezvous.agent_events import Presence
from ringd.vocabulary import ranks_text
from ringd.wire import advice


def daemons_missing(
    rank: int, n: int, joined: Collection[int], timeout_s: float, out_of_reach: str = ""
) -> RendezvousError:
    """Not all ``n`` daemons came within ``timeout_s``; ``rank`` is our own.

    Args:
        out_of_reach: where the rendezvous is, and why it is not in reach any more, if so.
    """
    missing = sorted(set(range(n)) - set(joined) - {rank})
    lost = f"; and the rendezvous {out_of_reach}" if out_of_reach else ""
    return RendezvousError(
        f"{n - len(missing)} of {n} daemons joined within {timeout_s:g} s: missing "
        f"{ranks_text(missing)}{lost}. Start what is missing, or {advice.LONGER_TO_JOIN}.",
        joined=sorted(joined),
        missing=missing,
    )


def not_let_in(rank: int, presence: Presence, within: str) -> RendezvousError:
    """Others take part in an epoch without the trainer of ``rank``, and asked for no other one."""
    others = sorted(presence.running)
    verb = "is" if len(others) == 1 else "are"
    return RendezvousError(
        f"rank {rank} was not let in {within}: {ranks_text(others)} {verb} in epoch "
        f"{presence.epoch}, and who comes later takes part from the next epoch on, which they did "
        "not ask for. Have their program call comm.reform() when comm.newcomers() says that "
        "somebody waits, or end the job and start all ranks anew.",
        rank=rank,
        epoch=presence.epoch,
        running=others,
    )


def trainers_missing(rank: int, n: int, presence: Presence, within: str) -> RendezvousError:
    """Not all trainers came ``within`` ours' time: who has no daemon, and who no trainer."""
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
        f"{'; '.join(parts)}. Start what is missing, or {advice.LONGER_TO_CONNECT}.",
        joined=sorted(here),
        missing=sorted(everyone - here),
        missing_daemons=no_daemon,
        missing_trainers=no_trainer,
    )
