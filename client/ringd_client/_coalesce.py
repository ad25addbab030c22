"""Coalescing: calls of one block that travel as few operations.

Within the block a call is checked and kept. At its end, calls of the same collective, dtype, reduce
op, root and options become one operation, in the order in which each sort appeared first. So
the operations follow from the shapes of the calls alone, and ranks that make the same calls
post the same operations.

In a fused region the calls lie one after another; where ranks have parts, so do the parts of
one rank. all_gather's outputs and reduce_scatter's inputs are therefore put together in scratch
memory behind the region, which the daemon does not know of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, TypeVar

from ringd.errors import (
    InvalidArgumentError,
    InvalidTensorError,
    ResourceError,
    RingdError,
    UnsupportedTypeError,
)
from ringd.vocabulary import IN_PARTS, shapes_digest
from ringd.wire.bounds import Bound
from ringd_client._arena import Arena, Block
from ringd_client._calls import REFUSALS, Caller, positive, unreadable
from ringd_client._kinds import Kind, Kinds
from ringd_client._operation import Operation, UnsentError, withdraw
from ringd_client._parts import Parts
from ringd_client._plan import Planner
from ringd_client._reductions import factor_for
from ringd_client._segments import SMALL_ALIGNMENT_BYTES, size_class
from ringd_client._tensors import Carrier, copy_bytes

T = TypeVar("T")

COALESCED: Final = frozenset({"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"})
MAX_FUSED: Final = 1024
"""Calls in one operation: nine bytes for each size leave a fingerprint well below its bound."""


@dataclass(frozen=True, slots=True)
class Member:
    """One call of a block: what :meth:`Planner._build` takes, for later.

    Attributes:
        described: what the input was when the call was made.
        stand_in: what the caller of the call holds until the block has ended.
    """

    kind: Kind
    op: Any
    source: Carrier | None
    tensor: Any
    sink: Carrier | None
    output: Any
    described: object
    stand_in: Operation[Any]

    @property
    def is_fusable(self) -> bool:
        return not self.kind.spec.counts

    @property
    def size_bytes(self) -> int:
        """Of what one rank has: its part, or all there is."""
        spec = self.kind.spec
        return spec.count * spec.itemsize

    def check_input(self) -> None:
        """Refuse an input that is not what it was.

        Raises:
            InvalidTensorError: it was resized in the block.
        """
        if self.source is not None and _described(self.source, self.tensor) != self.described:
            raise InvalidTensorError(
                f"the input of {self.kind.spec.collective} was resized in the block: "
                "resize it when the block is over"
            )


def _described(source: Carrier, tensor: Any) -> object:
    """The dtype and the shape of an input, or those in a list, as they are now."""
    return source.describe(Parts(tensor.tensors, "input") if isinstance(tensor, Parts) else tensor)


class Collector(Planner):
    """A planner whose operations are kept instead of built."""

    def __init__(self, kinds: Kinds, arena: Arena) -> None:
        super().__init__(kinds, arena)
        self.members: list[Member] = []

    def _build(
        self,
        kind: Kind,
        op: Any,
        source: Carrier | None,
        tensor: Any,
        sink: Carrier | None,
        output: Any,
        preserve_input: bool = False,
    ) -> Operation[Any]:
        if sink is not None:
            sink.check_output(output)
        factor_for(op, kind.spec.dtype)
        if self.arena.lingering:
            self.arena.lingering.check(kind.spec, tensor, output)
        described = None if source is None else _described(source, tensor)
        stand_in: Operation[Any] = Operation(kind.spec, kind.packed)
        self.members.append(Member(kind, op, source, tensor, sink, output, described, stand_in))
        return stand_in


class Batch:
    """The calls of one ``coalesce`` block.

    Args:
        caller: the communicator.
        current: who runs now: a thread, or a task. Calls of others are ordinary ones.
    """

    def __init__(self, caller: Caller, current: Callable[[], object]) -> None:
        self._caller = caller
        self._current = current
        self._owner = current()
        self._planner = caller._planner
        self._collector = Collector(self._planner.kinds, caller._arena)
        self._refused: tuple[str, RingdError] | None = None
        self._bound: Bound | None = None
        self._recv_timeout_s = 0.0
        self._built: list[tuple[Operation[Any], list[Member]]] = []

    @classmethod
    def open(cls, caller: Caller, current: Callable[[], object]) -> Batch:
        """Begin to keep the caller's calls.

        Raises:
            RingdError: as :meth:`prepared`.
        """
        caller._batch = batch = cls.prepared(caller, current)
        return batch

    @classmethod
    def prepared(cls, caller: Caller, current: Callable[[], object]) -> Batch:
        """A batch that keeps calls as soon as it is the caller's.

        Raises:
            RingdError: the communicator takes no calls, or has an open block.
        """
        caller._state.admit_call(caller.group, caller.epoch)
        if caller._batch is not None:
            raise InvalidArgumentError(
                "this communicator has an open coalesce block already: leave it first"
            )
        return cls(caller, current)

    def is_callers(self) -> bool:
        """Whether whoever calls is in the block."""
        return self._current() == self._owner

    # ------------------------------------------------------------ in the block

    def _prepare(
        self,
        collective: str,
        plan: Callable[..., Operation[Any]],
        arguments: tuple[Any, ...],
        timeout_s: float | None,
        recv_timeout_ms: float | None,
        output: T,
    ) -> Operation[T]:
        """Check a call and keep it. The operation is a stand-in: it is over, and failed."""
        caller = self._caller
        caller._state.admit_call(caller.group, self._planner.epoch)
        try:
            if collective not in COALESCED:
                raise misplaced(collective)
            bound = caller._bound(timeout_s)
            self._bound = bound if self._bound is None else min(self._bound, bound)
            if recv_timeout_ms is not None:
                silence_s = positive("recv_timeout_ms", recv_timeout_ms) / 1000
                self._recv_timeout_s = min(self._recv_timeout_s or silence_s, silence_s)
            operation = plan(self._collector, *arguments)
        except REFUSALS as refusal:
            self._refused = self._refused or (collective, refusal)
            raise
        except RingdError:
            raise  # it is not kept, and may be made again
        except Exception as exc:
            cause = unreadable(exc)
            self._refused = self._refused or (collective, cause)
            raise cause from exc
        operation.output = output
        operation.error = InvalidArgumentError(
            f"{operation.spec}: its coalesce block has not ended; leave it, then wait"
        )
        operation.finished = True
        return operation

    # ------------------------------------------------------------ at its end

    def operations(self) -> list[Operation[Any]]:
        """What the block comes to, ready to be posted; inputs are read now.

        Raises:
            RingdError: nothing is to be posted. If a call was refused, its error: poison took
                the places of the operations.
        """
        self._caller._batch = None
        if self._refused is not None:
            error = self._refused[1].copy()
            self.abandon(error)
            raise error
        began, caller_bound = time.monotonic(), self._caller._bound(None)
        try:
            for members in self._sorted():
                operation = self._fused(members)
                operation.begin(began, self._bound or caller_bound, self._recv_timeout_s)
                operation.epoch = self._planner.epoch
                self._built.append((operation, members))
        except BaseException as exc:
            error = self._cause(exc)
            self.abandon(error)
            if error is exc or not isinstance(exc, Exception):
                raise
            raise error from (exc.__cause__ if isinstance(exc, UnsentError) else exc)
        return [operation for operation, _ in self._built]

    def _cause(self, exc: BaseException) -> RingdError:
        """Why nothing is posted; an input that can't be read any more, or the
        want of a descriptor, is a refusal."""
        if isinstance(exc, UnsentError):
            return self._caller._end(exc)
        if not isinstance(exc, Exception):
            return RingdError("its caller was interrupted")
        error = exc if isinstance(exc, RingdError) else unreadable(exc)
        if isinstance(error, (InvalidTensorError, UnsupportedTypeError, ResourceError)):
            self._refused = ("", error)
        return error

    def conclude(self) -> None:
        """Tell those who hold a stand-in how its operation ended."""
        for operation, members in self._built:
            for member in members:
                if operation.finished:
                    member.stand_in.error = operation.error

    def abandon(self, error: RingdError | None = None) -> None:
        """Post nothing; if a call was refused, poison what the peers will post.

        How many operations these are is known from the calls before the refused one, so ranks
        whose block would have had more sorts of calls after it are out of step.

        Args:
            error: why; the default says that the block was left by an exception.
        """
        self._caller._batch = None
        error = error or RingdError(
            "its coalesce block was left by an exception: it was not posted"
        )
        withdraw((operation for operation, _ in self._built), error)
        for member in self._collector.members:
            member.stand_in.error = error
        if self._refused is not None:
            for name in self.collectives(self._refused[0]):
                self._caller._refuse(name, self._refused[1])

    def collectives(self, refused: str) -> list[str]:
        """The collective of each operation that a block would have had with the call of
        ``refused`` that it does not keep."""
        names = [members[0].kind.spec.collective for members in self._sorted()]
        if refused in COALESCED and refused not in names:
            names.append(refused)
        return names or [refused]

    def _sorted(self) -> list[list[Member]]:
        """The members of each operation, in the order of their first calls."""
        sorts: dict[Any, list[Member]] = {}
        for number, member in enumerate(self._collector.members):
            spec = member.kind.spec
            sort = (
                spec.collective,
                spec.dtype,
                spec.reduce_op,
                spec.root,
                spec.algorithm,
                spec.deterministic,
                None if member.is_fusable else number,
            )
            sorts.setdefault(sort, []).append(member)
        return [
            members[start : start + MAX_FUSED]
            for members in sorts.values()
            for start in range(0, len(members), MAX_FUSED)
        ]

    def _fused(self, members: list[Member]) -> Operation[Any]:
        lingering = self._caller._arena.lingering
        for member in members:
            member.check_input()
            if lingering:
                lingering.check(member.kind.spec, member.tensor, member.output)
        if len(members) == 1:
            (m,) = members
            # Never in place: another operation of the block may use the same tensor.
            kind = replace(m.kind, home="")
            return self._planner._build(kind, m.op, m.source, m.tensor, m.sink, m.output)
        kind = _joint_kind(self._planner.kinds, members)
        return Fusion(self._caller._arena, kind, members).operation()


def joint_broadcast(planner: Planner, tensors: Sequence[Any], root: int) -> Operation[Any]:
    """One operation that broadcasts several tensors of one dtype, as a coalesce block has it."""
    collector = Collector(planner.kinds, planner.arena)
    for tensor in tensors:
        collector.broadcast(tensor, root, "auto", False)
    members = collector.members
    return Fusion(planner.arena, _joint_kind(planner.kinds, members), members).operation()


def _joint_kind(kinds: Kinds, members: list[Member]) -> Kind:
    spec = members[0].kind.spec
    sizes = tuple(member.kind.spec.count for member in members)
    shapes = shapes_digest(member.kind.spec.shape for member in members)
    fused = replace(spec, shape=(sum(sizes),), fused=sizes, fused_shapes=shapes)
    return kinds.known(fused) or kinds.learn(fused, fused, "")


def misplaced(name: str) -> InvalidArgumentError:
    """The error of a call that a coalesce block can't keep."""
    return InvalidArgumentError(
        f"{name} can't be called in a coalesce block: call it outside; a block takes "
        f"{', '.join(sorted(COALESCED))}"
    )


class Fusion:
    """The region of a fused operation; see :class:`ringd_client._operation.Settlement`.

    Args:
        kind: of the fused operation.
        members: its calls.
    """

    def __init__(self, arena: Arena, kind: Kind, members: list[Member]) -> None:
        self._arena = arena
        self._kind = kind
        self._members = members
        sizes = [member.size_bytes for member in members]
        self._starts = list(accumulate(sizes, initial=0))
        self._stride = self._starts[-1]
        """From a rank's parts to the next one's, in the region."""
        self._world_size = kind.region_bytes // self._stride if self._stride else 1
        self._is_parted = kind.spec.collective in IN_PARTS
        self._scratch = -(-kind.region_bytes // SMALL_ALIGNMENT_BYTES) * SMALL_ALIGNMENT_BYTES
        self._block: Block | None = None

    @property
    def result_bytes(self) -> int:
        return self._kind.result_bytes

    def operation(self) -> Operation[Any]:
        """The operation, with all inputs in its region.

        Raises:
            ArenaFullError: there is no room.
            ResourceError: this process has no file descriptor, or no memory, left.
        """
        kind = self._kind
        if not kind.region_bytes:
            return Operation(kind.spec, kind.packed)
        extra = max(m.size_bytes for m in self._members) * self._world_size
        needed = self._scratch + extra if self._is_parted else kind.region_bytes
        self._block = block = self._arena.take(size_class(needed))
        try:
            for member, start in zip(self._members, self._starts, strict=False):
                if member.size_bytes and member.source is not None:
                    self._load(member, member.source, block, start)
        except BaseException:
            self.settle(False)
            raise
        return Operation(kind.spec, kind.packed, block.segment.number, block.offset, self)

    def linger(self, operation: Operation[Any]) -> bool:
        """See :class:`ringd_client._operation.Settlement`."""
        return False

    def settle(self, write: bool) -> None:
        """Write every result that can be written, and free the block."""
        block, self._block = self._block, None
        assert block is not None
        errors: list[Exception] = []
        try:
            for member, start in zip(self._members, self._starts, strict=False):
                if write and member.sink is not None and member.size_bytes:
                    try:
                        self._store(member, member.sink, block, start)
                    except Exception as exc:
                        errors.append(exc)
        finally:
            self._arena.free(block)
            self._members = []
        if errors:
            raise errors[0]

    def _load(self, member: Member, source: Carrier, block: Block, start: int) -> None:
        size_bytes, segment = member.kind.load_bytes, block.segment
        scattered = size_bytes > member.size_bytes
        there = block.offset + (self._scratch if scattered else self._kind.load_offset + start)
        source.load(member.tensor, segment, there, size_bytes)
        factor = factor_for(member.op, self._kind.spec.dtype)
        if factor is not None:
            source.scale(member.tensor, factor, segment, there, size_bytes)
        if scattered:
            for to, packed in self._pieces(member, block, start):
                copy_bytes(to, packed, member.size_bytes)

    def _store(self, member: Member, sink: Carrier, block: Block, start: int) -> None:
        size_bytes = member.kind.result_bytes
        scattered = size_bytes > member.size_bytes
        here = block.offset + (self._scratch if scattered else self._kind.result_offset + start)
        if scattered:
            for piece, packed in self._pieces(member, block, start):
                copy_bytes(packed, piece, member.size_bytes)
        sink.store(member.output, block.segment, here, size_bytes)

    def _pieces(self, member: Member, block: Block, start: int) -> list[tuple[int, int]]:
        """Per rank, where a member's part is in the region and where in the scratch memory."""
        region = block.segment.address + block.offset
        return [
            (region + r * self._stride + start, region + self._scratch + r * member.size_bytes)
            for r in range(self._world_size)
        ]
