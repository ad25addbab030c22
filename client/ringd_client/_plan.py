"""From a call's arguments to an operation that is ready to be submitted.

Everything that can be refused locally is refused here, before a byte moves. What depends only
on shapes, dtypes and options is worked out once and kept: a training loop repeats its calls.
"""

from __future__ import annotations

import operator
from typing import Any, Final

from ringd.errors import InvalidArgumentError, InvalidTensorError
from ringd.vocabulary import ANY_SOURCE, MAX_TAG, RECV, SEND, OpSpec, agree_spec, check_spec
from ringd_client import _cells as cells
from ringd_client._arena import Arena
from ringd_client._kinds import (
    Home,
    Kind,
    Kinds,
    check_dtypes,
    check_flags,
    checked_shape,
    shape_or_shapes,
)
from ringd_client._operation import Operation
from ringd_client._parts import Exchanged, carrier_of, checked_sizes, exchange
from ringd_client._reductions import factor_for, mark_of
from ringd_client._regions import Answer, InPlace, Number, Region
from ringd_client._segments import Segment
from ringd_client._tensors import Carrier, adapter_of, by_class, copy_bytes

REGION_ALIGNMENT_BYTES: Final = 8
"""The daemon takes no region that begins elsewhere."""


class Planner:
    """Checks calls and prepares their working regions, for one communicator.

    A method's input is read when it returns. All raise alike: UnsupportedTypeError,
    InvalidTensorError or InvalidArgumentError for what is refused; ArenaFullError when there is
    no room, ResourceError when there is no descriptor or memory left; MemoryInUseError for tensors
    that the daemon may still use.

    Args:
        kinds: what the calls of this communicator look like.
        arena: where regions are.
        epoch: the one whose calls these are.
    """

    def __init__(self, kinds: Kinds, arena: Arena, epoch: int = 0) -> None:
        self.epoch = epoch
        self.rank = kinds.rank
        self.group = kinds.group
        self.kinds = kinds
        self.arena = arena

    # ------------------------------------------------------------ all ranks have all of it

    def all_reduce(
        self, tensor: Any, op: Any, algorithm: str, deterministic: bool, preserve_input: bool
    ) -> Operation[Any]:
        """The region is the tensor, in logical order; it ends as the result."""
        if not (deterministic is False and preserve_input is False):
            check_flags(deterministic=deterministic, preserve_input=preserve_input)
        adapter = by_class.get(type(tensor)) or adapter_of(tensor)
        look = None
        if op.__class__ is str and algorithm.__class__ is str:
            look = (self, type(tensor), tensor.dtype, tensor.shape, op, algorithm, deterministic)
            if operation := cells.again(self.arena, look, tensor):
                return operation
        dtype, shape = adapter.describe(tensor)
        key = (
            "all_reduce",
            dtype,
            shape,
            op if op.__class__ is str else mark_of(op),
            algorithm,
            deterministic,
        )
        kind = self.kinds.known(key)
        if kind is None:
            spec = self.kinds.spec("all_reduce", dtype, shape, op, algorithm, deterministic)
            kind, look = self.kinds.learn(key, spec, "output"), None
        operation = self._build(kind, op, adapter, tensor, adapter, tensor, preserve_input)
        if look is not None and kind.region_bytes <= cells.MAX_BYTES:
            cells.keep(self.arena, look, kind, adapter, tensor, operation)
        return operation

    def reduce(
        self, tensor: Any, root: int, op: Any, algorithm: str, deterministic: bool, preserve: bool
    ) -> Operation[Any]:
        """As all_reduce; elsewhere than on the root only the copy in the arena changes."""
        number = self.kinds.checked_rank("root", root)
        check_flags(deterministic=deterministic, preserve_input=preserve)
        adapter = adapter_of(tensor)
        dtype, shape = adapter.describe(tensor)
        key = (
            "reduce",
            dtype,
            shape,
            number,
            op if op.__class__ is str else mark_of(op),
            algorithm,
            deterministic,
        )
        kind = self.kinds.known(key)
        if kind is None:
            spec = self.kinds.spec("reduce", dtype, shape, op, algorithm, deterministic, number)
            kind = self.kinds.learn(key, spec, "output" if number == self.rank else "")
        if number == self.rank:
            return self._build(kind, op, adapter, tensor, adapter, tensor, preserve)
        return self._build(kind, op, adapter, tensor, None, None)

    def broadcast(
        self, tensor: Any, root: int, algorithm: str, preserve_input: bool
    ) -> Operation[Any]:
        """The region is the tensor; only the root's contents matter."""
        number = self.kinds.checked_rank("root", root)
        check_flags(preserve_input=preserve_input)
        adapter = adapter_of(tensor)
        dtype, shape = adapter.describe(tensor)
        key = ("broadcast", dtype, shape, number, algorithm)
        kind = self.kinds.known(key)
        if kind is None:
            spec = self.kinds.spec("broadcast", dtype, shape, None, algorithm, root=number)
            kind = self.kinds.learn(key, spec, "input" if number == self.rank else "output")
        if number == self.rank:
            return self._build(kind, None, adapter, tensor, None, None, preserve_input)
        return self._build(kind, None, None, None, adapter, tensor, preserve_input)

    def barrier(self, algorithm: str) -> Operation[Any]:
        """There is no region."""
        key = ("barrier", algorithm)
        kind = self.kinds.known(key)
        if kind is None:
            kind = self.kinds.learn(key, self.kinds.spec("barrier", "", (), None, algorithm), "")
        return self._build(kind, None, None, None, None, None)

    def agree(self, flag: bool) -> Operation[Any]:
        """The region is one byte: our word, and then that of all."""
        check_flags(flag=flag)
        key = ("agree",)
        kind = self.kinds.known(key)
        if kind is None:
            spec = agree_spec(self.kinds.group)
            check_spec(spec, self.kinds.world_size)
            kind = self.kinds.learn(key, spec, "")
        block = self.arena.take(kind.block_bytes)
        block.segment.view[block.offset] = flag
        answer = Answer(self.arena, block)
        operation: Operation[Any] = Operation(
            kind.spec, kind.packed, block.segment.number, block.offset, answer
        )
        answer.operation = operation
        return operation

    # ------------------------------------------------------------ each rank has a part

    def all_gather(
        self, output: Any, tensor: Any, counts: Any, algorithm: str, preserve_input: bool
    ) -> Operation[Any]:
        """The region is the output; it begins with this rank's part in its place."""
        check_flags(preserve_input=preserve_input)
        sink, output = carrier_of(output, "output")
        source = adapter_of(tensor, "input")
        rows = checked_sizes("counts", counts)
        part, whole = source.describe(tensor), sink.describe(output)
        key = ("all_gather", part, whole, rows, algorithm)
        kind = self.kinds.known(key)
        if kind is None:
            names = ("output", "input")
            spec = self.kinds.parted(
                "all_gather", names, output, part, whole, rows, None, algorithm
            )
            kind = self.kinds.learn(key, spec, "output")
        return self._build(kind, None, source, tensor, sink, output, preserve_input)

    def reduce_scatter(
        self, output: Any, tensor: Any, op: Any, counts: Any, algorithm: str, deterministic: bool
    ) -> Operation[Any]:
        """The region is the input, in logical order; the result is this rank's part of it."""
        check_flags(deterministic=deterministic)
        sink = adapter_of(output, "output")
        source, tensor = carrier_of(tensor, "input")
        rows = checked_sizes("counts", counts)
        part, whole = sink.describe(output), source.describe(tensor)
        key = (
            "reduce_scatter",
            part,
            whole,
            rows,
            op if op.__class__ is str else mark_of(op),
            algorithm,
            deterministic,
        )
        kind = self.kinds.known(key)
        if kind is None:
            spec = self.kinds.parted(
                "reduce_scatter", ("input", "output"), tensor, part, whole, rows, op, algorithm,
                deterministic,
            )  # fmt: skip
            kind = self.kinds.learn(key, spec, "")
        return self._build(kind, op, source, tensor, sink, output)

    def gather(
        self, output: Any, tensor: Any, root: int, counts: Any, algorithm: str, preserve: bool
    ) -> Operation[Any]:
        """The region is the output on the root, the input elsewhere."""
        number = self.kinds.checked_rank("root", root)
        check_flags(preserve_input=preserve)
        sink, output = self._on_root("output", output, number)
        source = adapter_of(tensor, "input")
        rows = checked_sizes("counts", counts)
        part = source.describe(tensor)
        whole = None if sink is None else sink.describe(output)
        key = ("gather", part, whole, rows, number, algorithm)
        kind = self.kinds.known(key)
        if kind is None:
            names = ("output", "input")
            spec = self.kinds.parted(
                "gather", names, output, part, whole, rows, None, algorithm, root=number
            )
            kind = self.kinds.learn(key, spec, "input" if sink is None else "output")
        return self._build(kind, None, source, tensor, sink, output, preserve)

    def scatter(
        self, output: Any, tensor: Any, root: int, counts: Any, algorithm: str, preserve: bool
    ) -> Operation[Any]:
        """The region is the input on the root, the output elsewhere."""
        number = self.kinds.checked_rank("root", root)
        check_flags(preserve_input=preserve)
        sink = adapter_of(output, "output")
        source, tensor = self._on_root("input", tensor, number)
        rows = checked_sizes("counts", counts)
        part = sink.describe(output)
        whole = None if source is None else source.describe(tensor)
        key = ("scatter", part, whole, rows, number, algorithm)
        kind = self.kinds.known(key)
        if kind is None:
            names = ("input", "output")
            spec = self.kinds.parted(
                "scatter", names, tensor, part, whole, rows, None, algorithm, root=number
            )
            kind = self.kinds.learn(key, spec, "output" if source is None else "input")
        return self._build(kind, None, source, tensor, sink, output, preserve)

    def all_to_all(
        self, output: Any, tensor: Any, output_splits: Any, input_splits: Any, algorithm: str
    ) -> Operation[Any]:
        """The region is the input, then the output; the part for ourselves we move."""
        sink, output = carrier_of(output, "output")
        source, tensor = carrier_of(tensor, "input")
        splits = (
            checked_sizes("output_splits", output_splits),
            checked_sizes("input_splits", input_splits),
        )
        got, sent = sink.describe(output), source.describe(tensor)
        key = ("all_to_all", got, sent, splits, algorithm)
        kind = self.kinds.known(key)
        if kind is None:
            check_dtypes("input", sent[0], "output", got[0])
            sides = (
                Exchanged("output", *shape_or_shapes(output, got[1]), splits[0]),
                Exchanged("input", *shape_or_shapes(tensor, sent[1]), splits[1]),
            )
            row, local = exchange(*sides, self.rank, self.kinds.world_size)
            spec = self.kinds.spec("all_to_all", got[0], row, None, algorithm)
            kind = self.kinds.learn(key, spec, "", local)
        operation = self._build(kind, None, source, tensor, sink, output)
        operation.local = kind.local
        return operation

    # ------------------------------------------------------------ messages and groups

    def send(self, tensor: Any, dest: int, tag: int) -> Operation[Any]:
        """The region is the tensor."""
        adapter = adapter_of(tensor)
        kind = self._message(SEND, adapter.describe(tensor), self._peer("dest", dest), "input")
        number = _checked_tag(tag)
        operation = self._build(kind, None, adapter, tensor, None, None)
        operation.local = number
        return operation

    def recv(self, tensor: Any, source: int | None, tag: int) -> Operation[Any]:
        """The region is the tensor."""
        adapter = adapter_of(tensor)
        peer = ANY_SOURCE if source is None else self._peer("source", source)
        kind = self._message(RECV, adapter.describe(tensor), peer, "output")
        number = _checked_tag(tag)
        operation = self._build(kind, None, None, None, adapter, tensor)
        operation.local = number
        return operation

    def new_group(self, members: Any, in_order: bool) -> Operation[Any]:
        """The region is the daemon's: it leaves the number of the group there.

        Args:
            members: ranks of this group.
            in_order: their order is that of the new group; else it is the order of ranks.
        """
        try:
            ranks = tuple(members)
        except Exception:  # whatever the caller's object raises
            raise InvalidArgumentError(
                f"ranks are numbers of ranks, like [0, 2], not {members!r}"
            ) from None
        ranks = tuple(self.kinds.checked_rank("a member", member) for member in ranks)
        if not in_order:
            ranks = tuple(sorted(ranks))
        spec = OpSpec("new_group", "int64", "max", (1,), group=self.kinds.group, counts=ranks)
        check_spec(spec, self.kinds.world_size)
        kind = self.kinds.work_out(spec, "")
        block = self.arena.take(kind.block_bytes)
        number = Number(self.arena, block)
        return Operation(spec, kind.packed, block.segment.number, block.offset, number)

    def _message(
        self, word: str, described: tuple[str, tuple[int, ...]], peer: int, home: Home
    ) -> Kind:
        key = (word, described, peer)
        kind = self.kinds.known(key)
        if kind is None:
            dtype, shape = described
            spec = OpSpec(word, dtype, "", checked_shape(shape), peer, group=self.kinds.group)
            kind = self.kinds.learn(key, spec, home)
        return kind

    def _peer(self, name: str, rank: Any) -> int:
        number = self.kinds.checked_rank(name, rank)
        if number == self.rank:
            raise InvalidArgumentError(
                f"{name} {number} is this rank itself: a message goes to another one; copy "
                "the tensor instead",
                rank=number,
            )
        return number

    # ------------------------------------------------------------ regions

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
        """The operation, with the caller's data in its region.

        Args:
            op: the reduce op; None for moves.
            source, tensor: where the input comes from; None: there is none.
            sink, output: where the result goes; None: there is none for this rank.
            preserve_input: do not work in the caller's own memory.
        """
        address = 0 if sink is None else sink.check_output(output)
        factor = None if op is None or op.__class__ is str else factor_for(op, kind.spec.dtype)
        if not kind.region_bytes:
            return Operation(kind.spec, kind.packed)
        arena = self.arena
        if arena.lingering:
            arena.lingering.check(kind.spec, tensor, output)
        # A factor never works in the caller's memory: if nothing is posted, the input is as it was.
        if kind.home and factor is None and (arena.lent_bytes or arena.guest_bytes):
            place = self._home_of(kind, source, tensor, sink, output, preserve_input)
            if place is not None:
                return self._in_place(kind, source, tensor, sink, output, place)
        block = self.arena.take(kind.block_bytes)
        segment, start = block.segment, block.offset
        result, result_bytes = start + kind.result_offset, kind.result_bytes
        if not result_bytes:
            sink = None
        region = Region(self.arena, block, segment, sink, output, result, result_bytes)
        try:
            if source is not None and kind.load_bytes:
                if address and tensor is output:
                    target = segment.address + start + kind.load_offset
                    copy_bytes(target, address, kind.load_bytes)
                else:
                    source.load(tensor, segment, start + kind.load_offset, kind.load_bytes)
                if factor is not None:
                    source.scale(tensor, factor, segment, start, kind.load_bytes)
            if kind.own[2]:
                here, there, size_bytes = kind.own
                base = segment.address + start
                copy_bytes(base + there, base + here, size_bytes)
        except BaseException:
            region.settle(False)
            raise
        return Operation(kind.spec, kind.packed, segment.number, start, region)

    def _home_of(
        self,
        kind: Kind,
        source: Carrier | None,
        tensor: Any,
        sink: Carrier | None,
        output: Any,
        preserve_input: bool,
    ) -> tuple[Segment, int] | None:
        """Where the caller's own tensor can be the region, if it can."""
        if kind.home == "output":
            if sink is None or preserve_input:
                return None
            return self._place(sink, output, kind.region_bytes)
        if source is None or not source.is_plain(tensor):
            return None
        return self._place(source, tensor, kind.region_bytes)

    def _place(self, carrier: Carrier, tensor: Any, size_bytes: int) -> tuple[Segment, int] | None:
        """Where the tensor lies in the arena, if it may be worked on in place."""
        address = carrier.address(tensor)
        if address is None or address % REGION_ALIGNMENT_BYTES:
            return None
        return self.arena.find(address, size_bytes)

    def _in_place(
        self,
        kind: Kind,
        source: Carrier | None,
        tensor: Any,
        sink: Carrier | None,
        output: Any,
        place: tuple[Segment, int],
    ) -> Operation[Any]:
        segment, start = place
        settlement: InPlace | Region
        loaded = False
        if kind.home == "output":
            settlement = InPlace(self.arena, output)
            if source is not None and tensor is not output and kind.load_bytes:
                source.load(tensor, segment, start + kind.load_offset, kind.load_bytes)
                loaded = True
        elif sink is None or not kind.result_bytes:
            settlement = InPlace(self.arena, tensor)
        else:
            result = start + kind.result_offset
            settlement = Region(
                self.arena, None, segment, sink, output, result, kind.result_bytes, tensor
            )
        operation: Operation[Any] = Operation(
            kind.spec, kind.packed, segment.number, start, settlement
        )
        operation.in_place = kind.home == "output"  # an input is only read
        operation.loaded = loaded
        return operation

    def _on_root(self, name: str, value: Any, root: int) -> tuple[Carrier | None, Any]:
        """The argument that only the root has."""
        if root == self.rank:
            if value is None:
                raise InvalidTensorError(
                    f"{name} is None on rank {root}, which is the root: pass it there"
                )
            return carrier_of(value, name)
        if value is not None:
            raise InvalidTensorError(
                f"{name} is to be None here: rank {self.rank} is not the root, which is {root}"
            )
        return None, None


def _checked_tag(tag: Any) -> int:
    try:
        number = operator.index(tag)
    except Exception:  # whatever the caller's object raises
        raise InvalidArgumentError(f"tag is a whole number, not {tag!r}") from None
    if not 0 <= number <= MAX_TAG:
        raise InvalidArgumentError(f"tag {number} is out of range: 0 to {MAX_TAG}")
    return number
