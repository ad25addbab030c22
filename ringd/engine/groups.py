"""The groups of one rank: how they come to be, and how they end (ADR 12)."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ringd.engine import failures
from ringd.engine.compiler import Compiled, Compiler
from ringd.engine.group import Group
from ringd.errors import (
    CollectiveError,
    GroupFreedError,
    InvalidArgumentError,
    PeerLostError,
    RingdError,
)
from ringd.schedules.select import DEFAULT_THRESHOLDS, Thresholds
from ringd.wire.frame import Kind

if TYPE_CHECKING:
    from ringd.engine.engine import Engine
    from ringd.engine.operation import OnDone

MAX_GROUPS = 1024
MAX_PAST = 4096
"""Freed groups whose calls are remembered, for peers that are not through with them."""
MAX_NUMBER = 2**31
NUMBER = struct.Struct("=q")
"""A group's number in the region of new_group: an int64 in this machine's order."""


class Groups:
    """The groups of one rank, by stream; the world is always among them.

    A new group's number is the highest that a member proposed, so none of them has used it, and
    numbers only grow within an epoch.
    """

    def __init__(self, engine: Engine, bring_torch: Callable[[], None] | None) -> None:
        self._engine = engine
        self._bring_torch = bring_torch
        self._thresholds = DEFAULT_THRESHOLDS
        self.world = self._make(0, tuple(range(engine.world_size)), epoch=0)
        self._by_stream = {self.world.stream: self.world}
        self._floor = 1  # the lowest number that may still come to be
        self._proposing = False
        self._past: OrderedDict[int, int] = OrderedDict()
        self._left: dict[int, Mapping[int, int]] = {}
        self._lost: dict[int, RingdError] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._by_stream.values()))

    def __len__(self) -> int:
        return len(self._by_stream)

    def get(self, stream: int) -> Group | None:
        """The group of a stream; None: there is none, or not yet, or not any more."""
        return self._by_stream.get(stream)

    def numbered(self, number: int) -> Group | None:
        """The group with this number."""
        return self._by_stream.get(1 + number)

    def is_future(self, stream: int, epoch: int) -> bool:
        """Whether a group that we do not know may still come to be."""
        if epoch != self.world.epoch:
            return epoch > self.world.epoch
        return stream - 1 >= self._floor

    def farewell(self, number: int, seq: int) -> RingdError | None:
        """What to say of a call on a group that was freed here without it; None: it was made."""
        next_seq = self._past.get(number)
        if next_seq is None or seq < next_seq:
            return None
        return self._freed(number)

    def _freed(self, number: int) -> GroupFreedError:
        rank = self._engine.rank
        return GroupFreedError(
            f"group {number} was closed on rank {rank}: close it on all ranks once its last call "
            "has returned, and make a new one if it is needed again",
            group=number,
            rank=rank,
        )

    def next_seqs(self) -> dict[int, int]:
        """By group, freed ones too, the number of the first call that was not made, or was cut
        short: in which this rank takes no part any more."""
        cut = {g.number: g.next_seq if g.first_cut is None else g.first_cut for g in self}
        return {**self._past, **cut}

    def rank_lost(self, rank: int, error: RingdError) -> None:
        """A rank is gone: its groups are over, those that come to be later as well."""
        self._lost[rank] = error
        for group in self:
            if rank in group.ranks:
                group.break_by(error)

    def rank_left(self, rank: int, next_seqs: Mapping[int, int]) -> None:
        """A rank said goodbye: it counts for groups that are still being made, too."""
        self._left[rank] = next_seqs

    def choose_by(self, thresholds: Thresholds) -> None:
        """How "auto" chooses, in all groups."""
        self._thresholds = thresholds
        for group in self:
            group.compiler.choose_by(thresholds)

    def found(self, parent: Group, compiled: Compiled, mem: memoryview, on_done: OnDone) -> OnDone:
        """Propose a number for a new group; it is there when the call on its parent is done.

        Args:
            mem: the region of the call: the proposal, and in the end the number.
            on_done: of the call; what is returned takes its place.

        Raises:
            InvalidArgumentError: another one is being made, or there are too many.
        """
        if parent.rank not in compiled.spec.counts:
            return on_done
        if self._proposing:
            raise InvalidArgumentError(
                "another group is being made on this rank; make one after the other"
            )
        if len(self) >= MAX_GROUPS:
            raise InvalidArgumentError(
                f"{MAX_GROUPS} groups are open on this rank, the limit; close some first"
            )
        self._proposing = True
        origin = (parent.number, parent.next_seq)
        mem[:] = NUMBER.pack(self._floor)

        def founded(error: RingdError | None, _: int | None) -> None:
            self._proposing = False
            if error is None:
                error = self._take(NUMBER.unpack(mem)[0], compiled.ranks, parent.epoch, origin)
            elif isinstance(error, PeerLostError) and error.rank not in compiled.ranks:
                # Members that have the group already would go on in it, and wait for us.
                self._engine.endings.spread(parent, origin[1], error)
            on_done(error, None)

        return founded

    def open(self, number: Any, ranks: Any) -> RingdError | None:
        """A group whose members agreed on its number elsewhere, each having told its floor.

        Args:
            number: of the group; it is not below the floor of any member.
            ranks: its members, some of the epoch's, in the order of the group.

        Returns:
            Why there is none, if so.
        """
        engine = self._engine
        members = tuple(ranks) if isinstance(ranks, list) else ()
        if (
            type(number) is not int
            or not all(type(r) is int and r in self.world.ranks for r in members)
            or len(set(members)) != len(members)
            or engine.rank not in members
        ):
            return InvalidArgumentError(
                "a group has a number, and different ranks, ours among them"
            )
        if self._proposing or len(self) >= MAX_GROUPS:
            return InvalidArgumentError(
                f"{MAX_GROUPS} groups are open on this rank, the limit; close some first"
                if len(self) >= MAX_GROUPS
                else "another group is being made on this rank; make one after the other"
            )
        error = self._take(number, members, self.world.epoch, (-1, -1))
        for rank in self._lost.keys() & {*members} if error is None else ():
            self._by_stream[1 + number].break_by(self._lost[rank])
        return error

    def _take(
        self, number: int, ranks: tuple[int, ...], epoch: int, origin: tuple[int, int]
    ) -> RingdError | None:
        if not self._floor <= number < MAX_NUMBER:
            return CollectiveError(f"a peer proposed {number} as the number of a group")
        group = self._make(number, ranks, epoch)
        group.origin = origin
        for rank in self._left.keys() & set(ranks):
            group.left[rank] = self._left[rank].get(number, 0)
        self._by_stream[group.stream] = group
        self._floor = number + 1
        return None

    def _make(self, number: int, ranks: tuple[int, ...], epoch: int) -> Group:
        engine = self._engine
        options, rank = engine.options, ranks.index(engine.rank)
        compiler = Compiler(
            ranks,
            rank,
            options.segment_bytes,
            options.eager_bytes,
            self._bring_torch,
            self._thresholds,
        )
        return Group(number, ranks, rank, compiler, epoch)

    def void(self, parent: Group, seq: int, error: RingdError) -> None:
        """The call that made a group turns out to have failed on other ranks: they do not have the
        group, and here it is over."""
        for group in self:
            if group.origin == (parent.number, seq) and group.broken is None:
                why = parent.broken or parent.left_before(seq) or error
                error = failures.unmade(group, why)
                group.break_by(error)
                group.void = True
                for op in list(group.ops.values()):
                    op.end(failures.during(error, op))
                self._engine.mail.group_freed(group, error)

    def free(self, number: int) -> None:
        """No call on the group follows here: plans, mail and idle links are given back."""
        group = self._by_stream.pop(1 + number, None) if number > 0 else None
        if group is None:
            return
        engine = self._engine
        error = self._freed(number)
        cut_short = [(op.seq, peer) for op in group.ops.values() for peer in group.ranks]
        self._past[number] = min(group.ops, default=group.next_seq)
        if len(self._past) > MAX_PAST:
            self._past.popitem(last=False)
        for op in list(group.ops.values()):
            op.end(failures.during(error, op))
        engine.mail.group_freed(group, error)
        for seq, peer in cut_short + engine.router.early.drop_group(number):
            link = engine.links.get(peer)
            if link is not None:
                link.send_note(Kind.ABORT, group.stream, [group.epoch, seq, error.to_wire()])
        engine.leaving.group_freed(group)

    def begin_epoch(self, epoch: int, members: tuple[int, ...]) -> None:
        """Only the world lives on, with these members; nothing is in flight any more."""
        freed = [group for group in self if group is not self.world]
        if members != self.world.ranks:
            self.world = self._make(0, members, epoch)
        self._by_stream = {self.world.stream: self.world}
        self._floor, self._proposing = 1, False
        self._past.clear()
        self._left.clear()
        self._lost.clear()
        self.world.begin_epoch(epoch)
        for group in freed:
            self._engine.leaving.group_freed(group)
