"""The data connections of a node: it listens, admits, dials, and hands each link to the engine.

One link per pair of ranks, dialled by the lower rank; ring neighbours from the moment the group
forms, others on first use. A link that broke is made anew when an operation needs it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ringd.config.resources import exhausted
from ringd.engine.engine import Engine
from ringd.engine.link import Link
from ringd.engine.reunion import NUMBER_BYTES, Reunion
from ringd.errors import AddressInUseError, RendezvousError, ResourceError
from ringd.rendezvous.addresses import is_any
from ringd.transport.base import Address, Listener, Transport
from ringd.transport.connection import Connection
from ringd.transport.handshaking import Door, Reception, shake_hands_as_dialer
from ringd.wire.frame import Kind, Limits
from ringd.wire.handshake import LINK, Credentials, Expectation, Identity, Refusal

DIAL_LIMIT_S = 10.0
BACKOFF_S = (0.05, 1.0)
KNOCK_S = (0.25, 1.0)
"""How long who has asked for a link waits before it knocks at the peer itself; how long at most
between two knocks."""
TOLD_AFTER_S = 0.5
"""A link that is being made for so long is worth a word in a verdict."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node listens and what it tells others.

    Attributes:
        bind: local host to listen on; "" is the local address that reached the rendezvous.
        ports: ports to try in turn; (0,) is any.
        advertise_host: told to others instead of the bound host; "" is the bound one.
        advertise_port: told to others instead of the bound port; 0 is the bound one.
    """

    bind: str = ""
    ports: tuple[int, ...] = (0,)
    advertise_host: str = ""
    advertise_port: int = 0


@dataclass(slots=True)
class _Try:
    """A link that is being made: to which address, since when, and why the last attempt failed."""

    address: Address
    begun: float
    reason: str = ""


class Mesh:
    """The links of one rank.

    Args:
        credentials: of role "link".
        ask: a higher rank's way to have a peer dial us.
        on_unreachable: told (peer, reason, whether it is our own fault) when a link could not be
            made in 10 s.
        second_door: for what is not a link, if such may come now.
    """

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        credentials: Credentials,
        place: Place,
        *,
        rng: random.Random,
        nonce: Callable[[], bytes],
        log: logging.Logger,
        ask: Callable[[int], None],
        on_unreachable: Callable[[int, str, bool], None],
        second_door: Callable[[], Door | None],
    ) -> None:
        self.address: Address | None = None
        self.listening: Address | None = None
        self.members: dict[int, Address] = {}
        self._engine = engine
        self._transport = transport
        self._credentials = credentials
        self._place = place
        self._rng = rng
        self._nonce = nonce
        self._log = log
        self._ask = ask
        self._asked: set[int] = set()
        self._on_unreachable = on_unreachable
        self._listener: Listener | None = None
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self._tries: dict[int, _Try] = {}
        self._knocking: dict[int, asyncio.Task[None]] = {}
        self._closed = False
        self._reception = Reception(
            credentials,
            roles=frozenset({LINK}),
            admit=self._admit,
            establish=self._establish,
            log=log,
            make_nonce=nonce,
            second=second_door,
        )

    async def listen(self, local: Address) -> Address:
        """Listen, once; ``local`` is our end of the connection to the rendezvous.

        Returns:
            What is advertised.

        Raises:
            AddressInUseError: no port of ours is free.
        """
        place = self._place
        if self._listener is None:
            self._listener = await self._bind(place.bind or local.host)
        bound = self.listening = self._listener.address
        host = place.advertise_host or (local.host if is_any(bound.host) else bound.host)
        self.address = Address(host, place.advertise_port or bound.port)
        return self.address

    async def _bind(self, host: str) -> Listener:
        last: AddressInUseError | None = None
        for port in self._place.ports:
            try:
                return await self._transport.listen(Address(host, port), self._reception.on_channel)
            except AddressInUseError as exc:
                last = exc
        assert last is not None
        raise last

    def meet(self, members: dict[int, Address]) -> None:
        """All daemons are here: make the links to the ring neighbours."""
        moved = [p for p in self._dialling if p in members and members[p] != self.members.get(p)]
        for peer, address in members.items():
            if self.members.get(peer, address) != address:
                self._engine.replace_peer(peer, partial(self._leads_to, address))
        self.members |= members  # who is not here may come back, at another address
        for peer in moved:  # started anew: its old address will never answer
            self._dialling.pop(peer).cancel()
            self.dial(peer)
        self.dial_neighbours(tuple(sorted(members)))
        for peer in sorted(self._asked & members.keys()):
            self.want(peer)

    def dial_neighbours(self, ring: tuple[int, ...]) -> None:
        """Make the links to our neighbours in the ring of these ranks, in their order."""
        rank, n = self._engine.rank, len(ring)
        if rank not in ring:
            return
        place = ring.index(rank)
        for peer in {ring[(place + 1) % n], ring[(place - 1) % n]}:
            if rank < peer:
                self.dial(peer)

    def _leads_to(self, address: Address, link: Link) -> bool:
        """Whether a link is to the daemon at ``address``, and not to the one before it."""
        if self._engine.rank < link.peer:
            return link.connection.channel.peer == address
        return link.up_since > self._engine.lost_at.get(link.peer, -1.0)

    def want(self, peer: int) -> None:
        """See to it that there will be a link: the lower rank dials, the higher one asks it to.

        A request goes through the rendezvous, and is lost with it: until the peer has come, it
        is said again whenever the daemons of the job meet anew, and at the peer's own door.
        """
        if self._engine.rank < peer:
            self.dial(peer)
            return
        self._asked.add(peer)
        self._ask(peer)
        if peer in self.members and peer not in self._knocking and not self._closed:
            self._knocking[peer] = self._engine.loop.create_task(self._keep_knocking(peer))

    def dial(self, peer: int) -> None:
        """Make a link to ``peer``, unless there is one or it is being made."""
        link = self._engine.links.get(peer)
        begun = peer in self._dialling or peer in self._engine.joining
        busy = begun or (link is not None and link.up)
        if peer in self.members and not busy and not self._closed:
            self._dialling[peer] = self._engine.loop.create_task(self._keep_dialling(peer))

    async def _keep_dialling(self, peer: int) -> None:
        loop = self._engine.loop
        deadline = loop.time() + DIAL_LIMIT_S
        pause, longest = BACKOFF_S
        address = self.members[peer]
        current = self._tries[peer] = _Try(address, loop.time())
        try:
            while True:
                try:
                    await self._dial_once(peer, address, deadline)
                    return
                except (OSError, RendezvousError) as exc:
                    own = self._exhausted(exc)
                    current.reason = str(own) if own else f"{type(exc).__name__}: {exc}"
                    reason = (
                        current.reason if own else f"can't connect to {address}: {current.reason}"
                    )
                if loop.time() + pause >= deadline:
                    self._log.warning("no link to rank %d: %s", peer, reason)
                    self._on_unreachable(peer, reason, own is not None)
                    return
                await asyncio.sleep(pause * (0.5 + self._rng.random()))
                pause = min(2 * pause, longest)
        finally:
            if self._dialling.get(peer) is asyncio.current_task():
                del self._dialling[peer]
            if self._tries.get(peer) is current:
                del self._tries[peer]

    def _exhausted(self, error: Exception) -> ResourceError | None:
        """That it is we who have no descriptor left."""
        rank = self._engine.rank
        return exhausted(error, f"rank {rank}'s daemon", rank)

    def unreached(self) -> dict[int, str]:
        """Peers that we have dialled in vain so far: where, for how long, and why not."""
        now = self._engine.loop.time()
        return {
            peer: f"at {x.address}: {x.reason or 'no answer'} ({now - x.begun:.1f} s so far)"
            for peer, x in self._tries.items()
            if now - x.begun >= TOLD_AFTER_S
        }

    async def _keep_knocking(self, peer: int) -> None:
        """Until a lower rank has come, have it turn us away at its door: so it knows that we wait,
        also while the rendezvous is out of reach."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DIAL_LIMIT_S
        pause, longest = KNOCK_S
        own: ResourceError | None = None
        try:
            while loop.time() + pause < deadline:
                await asyncio.sleep(pause)
                link = self._engine.links.get(peer)
                if peer not in self._asked or (link is not None and link.up):
                    return
                own = None
                try:
                    await self._dial_once(peer, self.members[peer], deadline)
                except (OSError, RendezvousError) as exc:
                    own = self._exhausted(exc)
                pause = min(2 * pause, longest)
            if own is not None:  # nor can we take what comes
                self._on_unreachable(peer, str(own), True)
        finally:
            if self._knocking.get(peer) is asyncio.current_task():
                del self._knocking[peer]

    async def _dial_once(self, peer: int, address: Address, deadline: float) -> None:
        channel = await self._transport.dial(address, deadline=deadline)
        await shake_hands_as_dialer(
            channel,
            self._credentials,
            expect=Expectation(LINK, peer),
            establish=self._establish,
            deadline=deadline,
            nonce=self._nonce(),
        )

    def _admit(self, peer: Identity) -> Refusal | None:
        rank = self._engine.rank
        if peer.rank == rank:
            return Refusal("rank_taken", f"rank {peer.rank} is this daemon's own rank")
        if peer.rank > rank:
            if self._engine.link_asked_for(peer.rank):
                self.dial(peer.rank)
            return Refusal("wrong_direction", f"rank {rank} dials rank {peer.rank} itself")
        return None

    def _establish(self, connection: Connection, peer: Identity) -> tuple[Reunion, Limits]:
        """A peer proved itself: both say which link this is, and where it stands."""
        self._asked.discard(peer.rank)
        number = self._nonce()[:NUMBER_BYTES] if self._engine.rank < peer.rank else None
        return Reunion(self._engine, peer.rank, connection, number), Limits.for_handshake()

    def close(self) -> None:
        """Stop listening and dialling; peers hear a goodbye on every link."""
        self._closed = True
        for task in (*self._dialling.values(), *self._knocking.values()):
            task.cancel()
        if self._listener is not None:
            self._listener.close()
        self._reception.close()
        for link in self._engine.links.values():
            link.send_note(Kind.GOODBYE, 0, [self._engine.world.epoch])
            link.connection.close()
        self._engine.links.clear()
