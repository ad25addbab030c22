"""The words for a group that does not come together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ringd.engine.failures import ranks_text
from ringd.errors import RendezvousError


@dataclass(frozen=True, slots=True)
class Running:
    """Whose trainers take part in an epoch while others wait for the next one; no ranks: nobody's,
    or nobody waits."""

    epoch: int = 0
    ranks: tuple[int, ...] = ()


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


def trainers_missing(
    rank: int, n: int, joined: Collection[int], attached: Collection[int], within: str
) -> RendezvousError:
    """Not all trainers came ``within`` ours' time: who has no daemon, and who no trainer."""
    everyone = set(range(n))
    no_daemon = sorted(everyone - set(joined) - {rank})
    here = set(attached) | {rank}
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


def not_let_in(rank: int, running: Running, within: str) -> RendezvousError:
    """The trainer of ``rank`` came while others ran an epoch, and they asked for no other one."""
    others = list(running.ranks)
    return RendezvousError(
        f"rank {rank} was not let in {within}: {ranks_text(others)} "
        f"{'is' if len(others) == 1 else 'are'} in epoch {running.epoch}, and who comes later "
        "takes part from the next epoch on, which they did not ask for. Have their program call "
        "comm.reform() when comm.newcomers() says that somebody waits, or end the job and start "
        "all ranks anew.",
        rank=rank,
        epoch=running.epoch,
        running=others,
    )
