"""The daemons of several ranks, which do each operation together, as its definition says.

They run in one process. An operation waits until every rank of its group has made its call (or has
posted poison) at that place in the order; calls that differ are a mismatch for all. So a client
that takes a place too many or too few makes every later call fail.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import ringd_client
from ringd.errors import CollectiveMismatchError, RingdError
from ringd.schedules.layout import spans_of
from ringd.vocabulary import ANY_SOURCE, FOLDING, IN_PARTS, OpSpec
from ringd.wire import ipc
from ringd_client import AsyncCommunicator, Communicator
from tests.client.stub_daemon import StubDaemon, Submitted

T = TypeVar("T")
Entry = tuple["MemberDaemon", Submitted | None]
"""A rank's call, or its poison."""

_COMBINE: dict[str, Any] = {
    "sum": np.add,
    "premul_sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


class MemberDaemon(StubDaemon):
    """One rank's daemon; what it is asked is the cluster's business."""

    def __init__(self, cluster: Cluster, path: Path, rank: int, world_size: int) -> None:
        self._cluster = cluster
        super().__init__(path, rank=rank, world_size=world_size)
        self.groups = cluster.groups

    def conclude(self, submitted: Submitted, error: RingdError | None, result: Any = None) -> None:
        told = None if error is None else error.to_wire()
        self.send(ipc.DONE, submitted.request, told, result)

    def _submit(self, submitted: Submitted) -> None:
        self.submitted.append(submitted)
        self._cluster.enter(submitted.spec, (self, submitted))

    def _poison(self, spec: OpSpec, error: dict[str, Any]) -> None:
        super()._poison(spec, error)
        self._cluster.enter(spec, (self, None))


class Cluster:
    """All ranks' daemons.

    Attributes:
        daemons: by rank.
        groups: each group's members as ranks of the world.
        performed: the fingerprints of all operations that went well, in order.
    """

    def __init__(self, folder: Path, world_size: int) -> None:
        self.world_size = world_size
        self.groups: dict[int, tuple[int, ...]] = {0: tuple(range(world_size))}
        self.performed: list[OpSpec] = []
        self._lock = threading.Lock()
        self._orders: dict[tuple[int, int], list[Entry]] = defaultdict(list)
        self._messages: list[Entry] = []
        self.daemons = [
            MemberDaemon(self, folder / f"r{rank}.sock", rank, world_size)
            for rank in range(world_size)
        ]

    def run(self, program: Callable[[Communicator], T]) -> list[T]:
        """The results of a program that every rank runs, on a thread of its own."""

        def rank_program(rank: int) -> T:
            with ringd_client.connect(socket=self.daemons[rank].path, timeout_s=30) as comm:
                return program(comm)

        with ThreadPoolExecutor(self.world_size) as pool:
            return list(pool.map(rank_program, range(self.world_size)))

    async def run_async(
        self, program: Callable[[AsyncCommunicator], Coroutine[Any, Any, T]]
    ) -> list[T]:
        """As :meth:`run`, with all ranks on the running event loop."""

        async def rank_program(rank: int) -> T:
            path = self.daemons[rank].path
            async with await ringd_client.connect_async(socket=path, timeout_s=30) as comm:
                return await program(comm)

        return await asyncio.gather(*(rank_program(rank) for rank in range(self.world_size)))

    def stop(self) -> None:
        with ExitStack() as stack:
            for daemon in self.daemons:
                stack.callback(daemon.stop)

    # ------------------------------------------------------------ what the daemons do

    def enter(self, spec: OpSpec, entry: Entry) -> None:
        """A rank has come to the next place in the order of its group."""
        with self._lock:
            if spec.collective in ("send", "recv"):
                self._match(entry)
                return
            daemon = entry[0]
            order = self._orders[spec.group, daemon.rank]
            order.append(entry)
            members = self.groups[spec.group]
            place = len(order) - 1
            orders = [self._orders[spec.group, rank] for rank in members]
            if all(len(other) > place for other in orders):
                self._settle(spec.group, [other[place] for other in orders])

    def _settle(self, group: int, entries: list[Entry]) -> None:
        calls = [(daemon, call) for daemon, call in entries if call is not None]
        if calls and calls[0][1].spec.collective == "new_group" and len(calls) == len(entries):
            self._make_groups(group, entries)
            return
        alike = len({call.spec.packed for _, call in calls}) == 1 and len(calls) == len(entries)
        error = None if alike else CollectiveMismatchError("the calls of the ranks differ")
        if alike:
            self.performed.append(calls[0][1].spec)
            self._perform(calls)
        for daemon, call in calls:
            daemon.conclude(call, error)

    def _make_groups(self, parent: int, entries: list[Entry]) -> None:
        ranks = self.groups[parent]
        asked = {daemon.rank: call.spec.counts for daemon, call in entries if call is not None}
        for daemon, call in entries:
            assert call is not None
            members = tuple(ranks[member] for member in call.spec.counts)
            error = None
            if any(asked[member] != call.spec.counts for member in members):
                error = CollectiveMismatchError("the members differ")
            elif daemon.rank in members:
                numbers = [n for n, m in self.groups.items() if m == members and n > parent]
                fresh = [n for n in numbers if not self._orders.get((n, daemon.rank))]
                number = fresh[-1] if fresh else max(self.groups) + 1
                self.groups[number] = members
                daemon.region(call)[0] = number
            daemon.conclude(call, error)

    def _match(self, entry: Entry) -> None:
        """Give a message to the first receive that fits."""
        self._messages.append(entry)
        for sender, sent in self._messages:
            for receiver, wanted in self._messages:
                if sent is None or wanted is None or not _fits(sender, sent, receiver, wanted):
                    continue
                self._messages.remove((sender, sent))
                self._messages.remove((receiver, wanted))
                receiver.region(wanted)[:] = sender.region(sent)
                members = self.groups[sent.spec.group]
                sender.conclude(sent, None)
                receiver.conclude(wanted, None, members.index(sender.rank))
                return

    def _perform(self, calls: list[tuple[MemberDaemon, Submitted]]) -> None:
        spec = calls[0][1].spec
        layouts = [daemon.layout(call) for daemon, call in calls]
        regions = [daemon.region(call) for daemon, call in calls]
        loads = [
            region[layout.load[0] : sum(layout.load)].copy()
            for region, layout in zip(regions, layouts, strict=True)
        ]
        if spec.collective == "barrier":
            return
        for rank, result in enumerate(self._results(spec, loads, calls)):
            start, count = layouts[rank].result
            if count:
                regions[rank][start : start + count] = result

    def _results(
        self, spec: OpSpec, loads: list[Any], calls: list[tuple[MemberDaemon, Submitted]]
    ) -> list[Any]:
        n = len(loads)
        spans = spans_of(spec.part_counts(n)) if spec.collective in IN_PARTS else ()
        if spec.collective in FOLDING:
            whole = reduce(_COMBINE[spec.reduce_op], loads).astype(loads[0].dtype)
        elif spec.collective in ("scatter", "broadcast"):
            whole = loads[spec.root]
        elif spec.collective == "all_to_all":
            return _exchanged(spec, loads, calls)
        else:
            whole = np.concatenate(loads)
        if spec.collective in ("reduce_scatter", "scatter"):
            return [whole[start : start + count] for start, count in spans]
        return [whole] * n


def _exchanged(
    spec: OpSpec, loads: list[Any], calls: list[tuple[MemberDaemon, Submitted]]
) -> list[Any]:
    n = len(loads)
    sent = []
    for load, (_, call) in zip(loads, calls, strict=True):
        spans = spans_of(tuple(rows * spec.count for rows in call.local[:n]))
        sent.append([load[start : start + count] for start, count in spans])
    return [np.concatenate([sent[source][rank] for source in range(n)]) for rank in range(n)]


def _fits(sender: MemberDaemon, sent: Submitted, receiver: MemberDaemon, wanted: Submitted) -> bool:
    if sent.spec.collective != "send" or wanted.spec.collective != "recv":
        return False
    members = sender.groups[sent.spec.group]
    return (
        sent.spec.group == wanted.spec.group
        and members[sent.spec.root] == receiver.rank
        and wanted.spec.root in (ANY_SOURCE, members.index(sender.rank))
        and sent.local == wanted.local
    )
