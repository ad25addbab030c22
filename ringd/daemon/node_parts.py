"""The parts of a node, made of what they share."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from ringd.daemon.continuity import DaemonContinuity, Office
from ringd.daemon.mesh import Mesh, Place
from ringd.engine.engine import Engine, EngineOptions
from ringd.rendezvous.agent import Agent
from ringd.rendezvous.agent_events import AgentEvents, DaemonInfo
from ringd.rendezvous.reach import AgentSettings
from ringd.transport.base import Address, Transport
from ringd.wire.handshake import LINK, Credentials


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """What the parts that talk to others have in common; see :class:`ringd.daemon.node.Node`."""

    transport: Transport
    credentials: Credentials
    rng: random.Random
    nonce: Callable[[], bytes]
    log: logging.Logger

    def continuity(
        self, engine: Engine, office: Office | None, takes_part: Callable[[], bool]
    ) -> DaemonContinuity:
        """How the node keeps, or is, the rendezvous."""
        return DaemonContinuity(
            engine,
            self.transport,
            self.credentials,
            office or Office(),
            takes_part=takes_part,
            rng=self.rng,
            nonce=self.nonce,
            log=self.log,
        )

    def agent(
        self,
        rendezvous: Address,
        events: AgentEvents,
        continuity: DaemonContinuity,
        options: EngineOptions,
        settings: AgentSettings | None,
        info: DaemonInfo | None,
    ) -> Agent:
        """Its control connection."""
        return Agent(
            self.transport,
            self.credentials,
            rendezvous,
            events,
            continuity,
            rng=self.rng,
            log=self.log,
            settings=settings,
            make_nonce=self.nonce,
            sizes=(options.segment_bytes, options.eager_bytes),
            info=info,
        )

    def mesh(
        self,
        engine: Engine,
        place: Place,
        agent: Agent,
        continuity: DaemonContinuity,
        on_unreachable: Callable[[int, str, bool], None],
    ) -> Mesh:
        """Its links."""
        return Mesh(
            engine,
            self.transport,
            replace(self.credentials, role=LINK),
            place,
            rng=self.rng,
            nonce=self.nonce,
            log=self.log,
            ask=agent.want_link,
            on_unreachable=on_unreachable,
            second_door=continuity.door,
        )
