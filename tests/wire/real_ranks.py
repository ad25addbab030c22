"""The real side: a rendezvous, and ringd's own nodes for all ranks but one."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringd.daemon.mesh import Place
from ringd.daemon.node import Node
from ringd.daemon.trainer_state import State, TrainerState
from ringd.engine.engine import Engine, EngineOptions, Local
from ringd.errors import RingdError
from ringd.rendezvous.service import RendezvousService
from ringd.transport.base import Address
from ringd.transport.handshaking import fresh_nonce
from ringd.transport.tcp import TcpTransport
from ringd.vocabulary import OpSpec
from ringd.wire.handshake import Credentials
from tests.wire.foreign.frames import PATIENCE_S
from tests.wire.foreign.moves import SEGMENT_BYTES
from tests.wire.foreign.rank import EAGER_BYTES, JOB, LOCALHOST, SECRET

LOG = logging.getLogger("tests.foreign")


@dataclass(frozen=True)
class Ended:
    """How a call of a real rank ended."""

    error: RingdError | None
    source: int | None

    @property
    def code(self) -> str:
        return "ok" if self.error is None else self.error.code


class Rank:
    """One real rank; the trainer of its own node."""

    pid = os.getpid()

    def __init__(self, rank: int, world: int, rendezvous: Address) -> None:
        self.begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.node = Node(
            loop=asyncio.get_running_loop(),
            transport=TcpTransport(),
            credentials=Credentials(JOB, rank, world, "daemon", SECRET),
            rendezvous=rendezvous,
            place=Place(bind=LOCALHOST),
            options=EngineOptions(segment_bytes=SEGMENT_BYTES, eager_bytes=EAGER_BYTES),
            rng=random.Random(rank),
            nonce=fresh_nonce,
            log=LOG,
        )

    @property
    def engine(self) -> Engine:
        return self.node.engine

    def welcome(self, epoch: int, facts: dict[str, Any]) -> None:
        self.begun.set_result(epoch)

    def refuse(self, error: Exception) -> None:
        self.begun.set_exception(error)

    def inspect(self, callback: Callable[[TrainerState], None]) -> None:
        asyncio.get_running_loop().call_soon(callback, TrainerState(self.pid, "running"))

    def process_state(self) -> State:
        return "running"

    def call(
        self,
        spec: OpSpec,
        region: np.ndarray[Any, Any],
        local: Local = None,
        *,
        timeout_s: float = PATIENCE_S,
    ) -> asyncio.Future[Ended]:
        """Make a call on this array."""
        ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        memory = region.data.cast("B")

        def on_done(error: RingdError | None, source: int | None) -> None:
            ended.set_result(Ended(error, source))

        def lend(size: int) -> memoryview:
            assert size == len(memory)
            return memory

        self.engine.submit(spec.packed, lend, on_done, timeout_s=timeout_s, local=local)
        return ended


@dataclass
class Real:
    """A real rendezvous, and the real ranks beside it."""

    address: tuple[str, int]
    ranks: list[Rank]

    @property
    def zero(self) -> Rank:
        """The first of them."""
        return self.ranks[0]


@asynccontextmanager
async def real_ranks(world: int = 2, *, foreign: int = 1) -> AsyncIterator[Real]:
    """All ranks but the foreign one, attached: the epoch begins when that one is."""
    credentials = Credentials(JOB, -1, world, "rendezvous", SECRET)
    service = RendezvousService(TcpTransport(), credentials, log=LOG)
    address = await service.start(Address(LOCALHOST, 0))
    ranks = [Rank(rank, world, address) for rank in range(world) if rank != foreign]
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    try:
        for rank in ranks:
            await rank.node.start(deadline)
            rank.node.attach(rank, PATIENCE_S)
        yield Real((address.host, address.port), ranks)
        for rank in ranks:
            rank.node.detach(rank, "goodbye", "")
    finally:
        for rank in ranks:
            await rank.node.stop()
        await service.stop()
