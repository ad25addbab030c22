"""What outlives the rendezvous in its daemons: the epoch, and the office itself (ADR 16).

A daemon may hold the rendezvous from the start, or succeed one that another daemon held. Who holds
it looks around now and then: of two rendezvous, as there may be when a split network is whole
again, the lesser one steps down, and its daemons find the other.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ringd.errors import RendezvousError, RingdError
from ringd.rendezvous.addresses import is_any
from ringd.rendezvous.news import Claim, Lost
from ringd.rendezvous.observer import Standing, ask_standing, observer_credentials
from ringd.rendezvous.service_settings import ServiceSettings
from ringd.transport.base import Address, Listener, Transport
from ringd.transport.connection import Connection, ConnectionHandler
from ringd.transport.handshaking import Door, Reception
from ringd.wire import advice
from ringd.wire.frame import Limits
from ringd.wire.handshake import (
    DAEMON,
    OBSERVER,
    RENDEZVOUS,
    Credentials,
    Identity,
    Moved,
    Refusal,
)

if TYPE_CHECKING:
    from ringd.daemon.mesh import Mesh
    from ringd.engine.engine import Engine
    from ringd.rendezvous.comeback import Places
    from ringd.rendezvous.service import RendezvousService

_COMERS = frozenset({DAEMON, OBSERVER})
LOOK_S = 2.0
"""How often the holder looks for another rendezvous, if too few members are with it."""
ANSWER_S = 1.0


@dataclass(frozen=True, slots=True)
class Office:
    """How a daemon is to be the rendezvous, if it is.

    Attributes:
        embed: it is from the start, at the configured address.
        settings: of the service.
        majority: only more than half of the last epoch's members may go on; None: that is the
            rule where a daemon holds the rendezvous.
    """

    embed: bool = False
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    majority: bool | None = None

    @property
    def service_settings(self) -> ServiceSettings:
        """The service's settings, with the rule for a rendezvous that a daemon holds."""
        return replace(self.settings, majority=self.majority in (None, True))


class DaemonContinuity:
    """One daemon's.

    Args:
        credentials: the daemon's own.
        takes_part: whether its trainer takes part in the current epoch.
    """

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        credentials: Credentials,
        office: Office,
        *,
        takes_part: Callable[[], bool],
        rng: random.Random,
        nonce: Callable[[], bytes],
        log: logging.Logger,
    ) -> None:
        self.why_lost = ""
        self._lost_at: float | None = None
        self.service: RendezvousService | None = None
        self._engine = engine
        self._transport = transport
        self._credentials = replace(credentials, rank=-1, role=RENDEZVOUS)
        self._observer = observer_credentials(credentials.job_id, credentials.secret)
        self._rank = credentials.rank
        self._office = office
        self._takes_part = takes_part
        self._rng = rng
        self._nonce = nonce
        self._log = log
        self._lost: list[Lost] = []
        self._places: Places
        self._mesh: Mesh
        self._looking: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        self._reception: Reception | None = None

    def tie(self, places: Places, mesh: Mesh) -> None:
        """Where the rendezvous may be, and our own links: made after this, and of it."""
        self._places, self._mesh = places, mesh

    async def open(self) -> None:
        """Hold the rendezvous from the start, if that is asked for.

        Raises:
            AddressInUseError: something listens at its address.
        """
        if not self._office.embed:
            return
        self._hold(frozenset())
        self._reception = Reception(
            self._credentials,
            roles=_COMERS,
            admit=self._refer,
            establish=_never,
            log=self._log,
            make_nonce=self._nonce,
            second=lambda: None if self.service is None else self.service.door,
        )
        at = self._places.configured
        self._listener = await self._transport.listen(at, self._reception.on_channel)
        n = self._credentials.world_size
        self._log.info("rendezvous for %d ranks listens on %s", n, self._listener.address)

    async def close(self) -> None:
        """The daemon ends, and what it holds; may be called twice."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self.service is not None:
            service, self.service = self.service, None
            service.retire(self._rank)
            await service.stop()
        if self._reception is not None:
            self._reception.close()

    # The epoch

    def began(self) -> None:
        """An epoch begins: nothing was lost in it."""
        self._lost.clear()

    def lost(self, lost: Lost) -> None:
        """A verdict ended the current epoch."""
        self._lost.append(lost)

    def on_claim(self) -> Claim | None:
        """What a rendezvous that was restarted has to know."""
        world = self._engine.world
        if not world.epoch:
            return None
        return Claim(
            world.epoch,
            tuple(world.ranks),
            self._takes_part(),
            lost=tuple(self._lost),
            addresses=tuple(self._places.daemons.items()),
        )

    def on_coordinator_lost(self, reason: str) -> None:
        """Links keep working; attaching and verdicts wait."""
        self.why_lost = reason
        if self._lost_at is None:
            self._lost_at = self._engine.now()
        self._log.warning("the rendezvous is out of reach: %s", reason)

    def on_coordinator_back(self) -> None:
        """All is as before."""
        self.why_lost = ""
        self._lost_at = None

    @property
    def away(self) -> str:
        """That the rendezvous, which had been in reach, is not; "": it is."""
        if self._lost_at is None:
            return ""
        for_s = self._engine.now() - self._lost_at
        return f"at {self._places.at} has been out of reach for {for_s:.0f} s: {self.why_lost}"

    def absence(self) -> dict[str, Any]:
        """For ``ringd status`` without a rendezvous: where it was, since when and why it is out of
        reach (None: it never was in reach), and whose daemons could not be asked."""
        since = self._lost_at
        return {
            "address": str(self._places.at),
            "in_reach": False,
            "lost_for_s": None if since is None else round(self._engine.now() - since, 1),
            "cause": self.why_lost or None,
            "not_asked": [rank for rank in self._engine.world.ranks if rank != self._rank],
        }

    def out_of_reach(self, within: str, why: str) -> RendezvousError:
        """No epoch could begin ``within`` a trainer's time."""
        at = self._places.at
        return RendezvousError(
            f"the rendezvous at {at} is out of reach ({why}), so no epoch could begin "
            f"{within}. See that it runs: this daemon goes back to it by itself. Then connect "
            f"again; if it only takes longer, {advice.LONGER_TO_CONNECT}.",
            address=str(at),
            cause=why,
        )

    # The office

    def door(self) -> Door | None:
        """For daemons and observers at our port for links: None where nobody would come."""
        if self.service is not None:
            return self.service.door
        if not self._places.embedded:
            return None
        return Door(self._credentials, _COMERS, _not_here, _never)

    def _refer(self, peer: Identity) -> Refusal | None:
        """We held the rendezvous from the start, and have yielded it: who comes to where it was
        is told where we have it now."""
        at, epoch = self._places.at, self._engine.world.epoch
        if self._lost_at is not None or at == self._places.configured:
            return _not_here(peer)
        text = f"the rendezvous has moved to {at}, epoch {epoch}"
        return Refusal("moved", text, moved=Moved(at.host, at.port, epoch))

    def on_succession(self, silent: frozenset[int]) -> Address:
        """The rendezvous that a daemon held is gone, and we are the next."""
        if self.service is None:
            self._log.warning("rank %d holds the rendezvous from now on", self._rank)
            self._hold(silent)
        listening, told = self._mesh.listening, self._mesh.address
        assert listening is not None
        assert told is not None
        return told if is_any(listening.host) else listening

    def _hold(self, silent: frozenset[int]) -> None:
        from ringd.rendezvous.service import RendezvousService  # most daemons never hold one

        self.service = RendezvousService(
            self._transport,
            self._credentials,
            log=self._log,
            settings=self._office.service_settings,
            make_nonce=self._nonce,
            seat=self._rank,
            unreachable=silent,
        )
        self._places.held = True
        self._looking = asyncio.get_running_loop().create_task(self._look_around(self.service))

    async def _look_around(self, service: RendezvousService) -> None:
        """Step down as soon as there is another rendezvous to which ours has to yield."""
        while True:
            await asyncio.sleep(LOOK_S * self._rng.uniform(0.75, 1.25))
            for address in self._elsewhere(service):
                theirs = await self._standing_at(address)
                if theirs is None or theirs.seat == self._rank:
                    continue
                began_anew = address == self._places.configured and not theirs.epoch
                if began_anew or service.standing().yields_to(theirs):
                    self._log.warning("rank %d leaves the rendezvous to %s", self._rank, address)
                    self._places.at, self._places.seat = address, theirs.seat
                    self.service, self._places.held = None, False
                    await service.stop()
                    return

    def _elsewhere(self, ours: RendezvousService) -> list[Address]:
        """Where another rendezvous may be; with enough members only where it was to begin with."""
        places = self._places
        if ours.standing().enough:
            return [places.configured]
        daemons = {**ours.told_of, **places.daemons}
        others = [address for seat, address in daemons.items() if seat != self._rank]
        return [places.configured, *others]

    async def _standing_at(self, address: Address) -> Standing | None:
        deadline = self._engine.now() + ANSWER_S
        try:
            return await ask_standing(
                self._transport,
                self._observer,
                address,
                deadline=deadline,
                make_nonce=self._nonce,
            )
        except RingdError:  # nobody is there, or not the rendezvous
            return None


def _not_here(peer: Identity) -> Refusal:
    return Refusal("not_rendezvous", "this daemon is not the rendezvous, or not yet")


def _never(connection: Connection, peer: Identity) -> tuple[ConnectionHandler, Limits]:
    raise AssertionError("nobody is admitted here")
