"""Sends and receives in virtual time: a Scene with messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringd.engine.message import Post
from ringd.errors import RingdError
from ringd.sim.cluster import SimTrainer
from ringd.vocabulary import ANY_SOURCE, RECV, SEND, OpSpec
from tests.engine.scene import Array, Scene


@dataclass
class Posted:
    """How a send or a receive ended, and when."""

    error: RingdError | None
    source: int | None
    array: Array
    began: float
    at: float

    @property
    def took_s(self) -> float:
        return self.at - self.began

    @property
    def code(self) -> str:
        return "ok" if self.error is None else self.error.code

    @property
    def text(self) -> str:
        return str(self.error)


Pending = asyncio.Future[Posted]


def error_of(one: Posted) -> RingdError:
    """The error of one that failed."""
    assert one.error is not None
    return one.error


def message(count: int, *, sender: int, salt: int = 0, dtype: str = "float32") -> Array:
    """Data that tells its sender, its salt and each place in it, exact in every dtype."""
    return ((np.arange(count) * 7 + sender * 1009 + salt * 31) % 2039).astype(dtype)


class MailScene(Scene):
    """One job whose ranks send to each other."""

    def send(
        self,
        rank: int,
        to: int,
        array: Array,
        *,
        tag: int = 0,
        group: int = 0,
        timeout_s: float = 60.0,
    ) -> Pending:
        """Begin to send ``array`` from ``rank`` to the group rank ``to``."""
        spec = OpSpec(SEND, str(array.dtype), "", array.shape, root=to, group=group)
        return self.post(rank, spec, array, tag, timeout_s=timeout_s)

    def recv(
        self,
        rank: int,
        source: int,
        shape: int | tuple[int, ...],
        *,
        tag: int = 0,
        dtype: str = "float32",
        group: int = 0,
        **times: float,
    ) -> Pending:
        """Begin to receive on ``rank`` from the group rank ``source``; ``times`` go to ``post``."""
        array = np.full(shape, 99).astype(dtype)
        spec = OpSpec(RECV, dtype, "", array.shape, root=source, group=group)
        return self.post(rank, spec, array, tag, **times)

    def recv_any(self, rank: int, shape: int, **options: Any) -> Pending:
        """Begin to receive from any source."""
        return self.recv(rank, ANY_SOURCE, shape, **options)

    def post(
        self,
        rank: int,
        spec: OpSpec,
        array: Array,
        tag: int | None,
        *,
        timeout_s: float = 60.0,
        recv_timeout_s: float = 0.0,
        began_ago_s: float = 0.0,
    ) -> Pending:
        """Begin any call; its region is ``array``.

        Args:
            began_ago_s: how late the daemon reads it.
        """
        future: Pending = self.loop.create_future()
        view = memoryview(array.reshape(-1)).cast("B") if array.size else memoryview(b"")
        began = self.loop.time()

        def done(error: RingdError | None, source: int | None) -> None:
            future.set_result(Posted(error, source, array, began, self.loop.time()))

        self.engine(rank).submit(
            spec.packed,
            lambda size: view[:size],
            done,
            timeout_s=timeout_s,
            deadline=began - began_ago_s + timeout_s,
            recv_timeout_s=recv_timeout_s,
            local=tag,
        )
        return future

    async def ended(self, futures: Iterable[Pending]) -> list[Posted]:
        """How these ended, in their order."""
        return list(await asyncio.gather(*futures))

    async def make_group(self, ranks: tuple[int, ...]) -> int:
        """A new group of these ranks of the world; returns its number."""
        spec = OpSpec("new_group", "int64", "max", (1,), counts=ranks)
        ended = await self.ended(
            self.post(rank, spec, np.zeros(1, "int64"), None) for rank in range(self.n)
        )
        assert [one.code for one in ended] == ["ok"] * self.n
        (number,) = {int(ended[rank].array[0]) for rank in ranks}
        return number

    async def next_epoch(self) -> None:
        """All trainers leave, and new ones come."""
        for trainer in self.cluster.trainers:
            trainer.goodbye()
        await self.quiet()
        await asyncio.gather(*self.attach())

    def attach(self) -> list[asyncio.Task[None]]:
        """New trainers, which wait for their epoch."""
        trainers = self.cluster.trainers = [SimTrainer(node) for node in self.cluster.nodes]
        return [asyncio.create_task(trainer.attach(30.0)) for trainer in trainers]

    async def passes_beside(self, source: int, target: int, *, tag: int, count: int = 3) -> None:
        """A message goes through beside whatever else is under way."""
        data = message(count, sender=source, salt=17)
        sent = self.send(source, target, data, tag=tag)
        got = await self.recv(target, source, count, tag=tag)
        assert got.error is None, got.error
        assert (got.array == data).all()
        assert (await sent).error is None

    async def passes(self, source: int, target: int, *, tag: int = 0, count: int = 3) -> None:
        """The next message is an ordinary one, and nothing of earlier ones is left."""
        await self.passes_beside(source, target, tag=tag, count=count)
        self.nothing_is_left(source, target)

    def nothing_is_left(self, *ranks: int) -> None:
        """No send or receive is in flight on these ranks, and no payload waits there."""
        for rank in ranks:
            mail = self.engine(rank).mail
            assert not mail.live
            assert mail.parked_bytes == 0

    def uses_no_region(self, rank: int) -> bool:
        """No link of ``rank`` holds on to the memory of a send or a receive."""
        links = self.engine(rank).links.values()
        held = [sent.holder for link in links for sent in link._unacked]
        landing = [getattr(link._landing, "op", None) for link in links]
        return not any(isinstance(what, Post) for what in [*held, *landing])
