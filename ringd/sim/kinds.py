"""The kinds of faults that a scenario draws: how each strikes, and what it excuses.

A strike comes at a random moment of an operation that others have begun. It may itself wait (a
trainer that comes late); what it sets off for later, it leaves to timers or tasks of the fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ringd.sim.cluster import RENDEZVOUS_AT
from ringd.transport.memory import Death

if TYPE_CHECKING:
    from ringd.sim.faults import Fault

Effect = Literal["none", "slow", "held up", "lost"]
"""What it does to calls: nothing that shows; they may come to their deadline; they do, and the
verdict must name the culprit; the victim is lost, and the epoch with it."""
Clock = Literal["long", "short", "mixed"]
"""Deadlines: no call comes to them; every call that is held up does; one of both, by rank."""

RENDEZVOUS = RENDEZVOUS_AT.host
HELD_S = 1.6
"""For longer than a short deadline."""
CUT_S = 1.8
"""Longer still, and shorter than the silence after which a daemon is taken for dead."""
AWAY_S = 9.0
"""A rendezvous that stands still does so for up to so long, three times the limit of silence."""
DOWN_S = 4.0
"""A rendezvous that is restarted is away for up to so long."""
SPLIT_S = 8.0
"""Longer than that silence, and than a link has to come back."""
_DEATHS: tuple[Death, ...] = ("reset", "eof", "silence")
_ANY: tuple[Clock, ...] = ("long", "short", "mixed")
_BOUND: tuple[Clock, ...] = ("short", "mixed")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        clocks: which deadlines it may meet.
        gone: the victim's trainer calls no more.
        renewed: the victim's daemon has to be started anew.
        link: the far end of a link (or who is cut off) may be to blame as well.
        embedded: the victim's daemon holds the rendezvous.
        least: of how many ranks a job must be.
        relay: it strikes the first rank of a chain of messages.
        cases: what a verdict on the first call that it holds up, or the loss, may be called.
        weight: how often it is drawn, against others.
    """

    name: str
    strike: Callable[[Fault], Awaitable[None]]
    effect: Effect
    clocks: tuple[Clock, ...] = ("long",)
    gone: bool = False
    renewed: bool = False
    link: bool = False
    embedded: bool = False
    least: int = 2
    relay: bool = False
    cases: frozenset[str] = frozenset()
    weight: int = 2


# Nothing that shows


async def _nothing(_fault: Fault) -> None:
    """Only the weather."""


async def _late(fault: Fault) -> None:
    await asyncio.sleep(fault.rng.uniform(0.0, 5.0))


async def _pause(fault: Fault) -> None:
    fault.network.stall(fault.name)
    fault.later(fault.rng.uniform(0.0, 1.0), fault.network.resume, fault.name)


async def _clog(fault: Fault) -> None:
    fault.network.clog(fault.name, fault.far, both=fault.both_ways)
    fault.later(fault.rng.uniform(0.0, 5.0), fault.network.unclog, fault.name, fault.far)


async def _slow_reader(fault: Fault) -> None:
    pause_s = fault.rng.uniform(0.0001, 0.005)
    fault.network.slow(fault.name, pause_s, fault.rng.choice((512, 4096)))
    fault.later(fault.rng.uniform(0.5, 20.0), fault.network.slow, fault.name, 0.0)


async def _resets(fault: Fault) -> None:
    """A link is reset some times, each time after some bytes: as a rule amid a frame."""
    at_s = 0.0
    for _ in range(fault.rng.randint(1, 4)):
        ends = [fault.name, fault.far]
        fault.rng.shuffle(ends)
        fault.later(at_s, fault.network.fuse, *ends, fault.rng.choice((1, 100, 3000, 50_000)))
        at_s += fault.rng.uniform(0.0, 2.0)


async def _blink(fault: Fault) -> None:
    """A link takes nothing either way for a moment."""
    fault.network.cut(fault.name, fault.far, both=fault.both_ways)
    fault.later(fault.rng.uniform(0.0, 2.0), fault.network.heal, fault.name, fault.far)


async def _rendezvous_restarts(fault: Fault) -> None:
    await fault.cluster.kill_rendezvous(fault.rng.choice(_DEATHS))
    fault.rendezvous_after(fault.rng.choice((0.0, fault.rng.uniform(0.0, DOWN_S))))


async def _rendezvous_stalls(fault: Fault) -> None:
    """It is held up, or its host is cut off, and goes on with what piled up meanwhile; the others'
    calls wait for the victim's."""
    fault.network.stall(RENDEZVOUS)
    away_s = fault.rng.uniform(0.0, AWAY_S)
    fault.later(away_s, fault.network.resume, RENDEZVOUS)
    await asyncio.sleep(away_s + fault.rng.uniform(0.0, 1.0))


# Calls come to their deadline


async def _delay(fault: Fault) -> None:
    fault.network.delay(fault.name, fault.far, fault.rng.uniform(0.001, 0.3))


async def _absent(_fault: Fault) -> None:
    await asyncio.sleep(HELD_S)


async def _stopped(fault: Fault) -> None:
    fault.trainer.state = "stopped"
    await asyncio.sleep(HELD_S)
    fault.trainer.state = "running"


async def _chain(fault: Fault) -> None:
    """The first rank of a chain sends nothing, so that nobody in it does."""
    await fault.rng.choice((_absent, _stopped))(fault)


async def _cut(fault: Fault) -> None:
    fault.network.cut(fault.name, fault.far, both=fault.both_ways)
    fault.later(CUT_S, fault.network.heal, fault.name, fault.far)


async def _jam(fault: Fault) -> None:
    fault.network.clog(fault.name, fault.far, both=fault.both_ways)
    fault.later(CUT_S, fault.network.unclog, fault.name, fault.far)


async def _alone(fault: Fault) -> None:
    """The victim's host is cut off from all others, for less than it takes to be called dead."""
    for peer in fault.others():
        fault.network.cut(fault.name, peer)
        fault.later(CUT_S, fault.network.heal, fault.name, peer)


async def _no_coordinator(fault: Fault) -> None:
    """A rank can't reach the rendezvous, or is not heard there, while another one is absent."""
    ends = [fault.far, RENDEZVOUS]
    fault.rng.shuffle(ends)
    fault.network.cut(ends[0], ends[1], both=fault.both_ways)
    fault.later(CUT_S, fault.network.heal, *ends)
    await asyncio.sleep(HELD_S)


async def _coordinator_dies(fault: Fault) -> None:
    """The rendezvous' host dies, and afterwards a rank is absent."""
    await fault.cluster.kill_rendezvous(fault.rng.choice(_DEATHS))
    await asyncio.sleep(HELD_S)


# The victim is lost


async def _crash(fault: Fault) -> None:
    how: tuple[Death, ...] = ("reset", "eof")
    fault.cluster.crash(fault.victim, fault.rng.choice(how))


async def _silence(fault: Fault) -> None:
    fault.cluster.crash(fault.victim, "silence")


async def _restart(fault: Fault) -> None:
    """Daemon and trainer come back at the same seat, perhaps before anybody missed them."""
    fault.cluster.crash(fault.victim, fault.rng.choice(_DEATHS))
    fault.restart_after(fault.rng.uniform(0.0, 5.0))


async def _embedder_dies(fault: Fault) -> None:
    """The rendezvous goes with the daemon that holds it: the verdict is its successor's."""
    fault.cluster.crash(fault.victim, fault.rng.choice(_DEATHS))


async def _stall(fault: Fault) -> None:
    fault.network.stall(fault.name)


async def _split(fault: Fault) -> None:
    for peer in fault.others():
        fault.network.cut(fault.name, peer)
        fault.later(SPLIT_S, fault.network.heal, fault.name, peer)


async def _control_reset(fault: Fault) -> None:
    fault.network.reset((fault.name, RENDEZVOUS))


async def _trainer_dies(fault: Fault) -> None:
    fault.trainer.die()


async def _trainer_raises(fault: Fault) -> None:
    fault.trainer.fail()


async def _daemon_leaves(fault: Fault) -> None:
    await fault.cluster.nodes[fault.victim].stop()


_DIED = frozenset({"daemon lost"})
_HELD = frozenset({"daemon does not answer"})
_LINK = frozenset({"link down", "slow link"})
_ABSENT = frozenset({"never entered", "entered late"})
_STOPPED = frozenset({"trainer stopped"})
_TRAINER = frozenset({"trainer died", "trainer raised"})
_LEFT = frozenset({"it left the job"})

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("none", _nothing, "none", weight=4),
        Kind("late", _late, "none"),
        Kind("pause", _pause, "none"),
        Kind("clog", _clog, "none"),
        Kind("slow reader", _slow_reader, "none"),
        Kind("resets", _resets, "none", weight=4),
        Kind("blink", _blink, "none"),
        Kind("rendezvous restarts", _rendezvous_restarts, "none", _ANY, weight=3),
        Kind("rendezvous stalls", _rendezvous_stalls, "none", weight=3),
        Kind("delay", _delay, "slow"),
        Kind("absent", _absent, "held up", _BOUND, cases=_ABSENT),
        Kind("stopped", _stopped, "held up", _BOUND, cases=_ABSENT | _STOPPED),
        Kind("chain", _chain, "held up", _BOUND, least=3, relay=True, cases=_ABSENT | _STOPPED),
        Kind("cut", _cut, "held up", _BOUND, link=True, cases=_LINK),
        Kind("jam", _jam, "held up", _BOUND, link=True, cases=_LINK),
        Kind("alone", _alone, "held up", _BOUND, cases=_HELD | _LINK),
        Kind(
            "no coordinator", _no_coordinator, "held up", _BOUND, link=True, cases=_ABSENT | _HELD
        ),
        Kind("coordinator dies", _coordinator_dies, "held up", _BOUND, cases=_ABSENT),
        Kind("crash", _crash, "lost", _ANY, gone=True, renewed=True, cases=_DIED),
        Kind("silence", _silence, "lost", _ANY, gone=True, renewed=True, cases=_DIED | _HELD),
        Kind("restart", _restart, "lost", _ANY, gone=True, renewed=True, cases=_DIED | _HELD),
        Kind(
            "embedder dies",
            _embedder_dies,
            "lost",
            _ANY,
            gone=True,
            renewed=True,
            embedded=True,
            least=3,
            cases=_DIED | _HELD,
            weight=3,
        ),
        Kind("stall", _stall, "lost", _ANY, renewed=True, cases=_DIED | _HELD),
        Kind("split", _split, "lost", _ANY, renewed=True, cases=_DIED | _HELD | _LINK),
        Kind("control reset", _control_reset, "lost", _ANY, renewed=True, cases=_DIED),
        Kind("trainer dies", _trainer_dies, "lost", _ANY, gone=True, cases=_TRAINER),
        Kind("trainer raises", _trainer_raises, "lost", _ANY, gone=True, cases=_TRAINER),
        Kind("daemon leaves", _daemon_leaves, "lost", _ANY, gone=True, renewed=True, cases=_LEFT),
    )
}
