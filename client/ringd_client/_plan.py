"""From a call's arguments to an operation that is ready to be submitted.

Everything that can be refused locally is refused here, before a byte moves. What depends only
on shapes, dtypes and options is worked out once and kept: a training loop repeats its calls.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from ringd.config.suggest import did_you_mean
from ringd.errors import InvalidArgumentError, InvalidTensorError, UnsupportedTypeError
from ringd.vocabulary import (
    ALGORITHMS,
    DETERMINISTIC_ALGORITHMS,
    DTYPES,
    MAX_DIMS,
    REDUCE_OPS,
    OpSpec,
)
from ringd_client._arena import Arena, Block
from ringd_client._core import Operation
from ringd_client._segments import Segment, size_class
from ringd_client._tensors import Adapter, adapter_of

REGION_ALIGNMENT_BYTES: Final = 8
"""The daemon takes no region that begins elsewhere."""
MAX_KEPT: Final = 4096
"""Kinds of calls that are remembered; beyond it the memory starts anew."""


@dataclass(frozen=True, slots=True)
class Kind:
    """All calls that look alike to the daemon.

    Attributes:
        spec: the fingerprint.
        packed: the same as bytes.
        part_bytes: one rank's part, which is all there is where ranks have no parts.
        region_bytes: the working region.
        block_bytes: the size class of a block for it.
    """

    spec: OpSpec
    packed: bytes
    part_bytes: int
    region_bytes: int
    block_bytes: int


class Region:
    """The working region of one operation in a block of the arena, and where its result goes.

    ``adapter`` is None if nothing is to be written back.
    """

    __slots__ = ("_adapter", "_arena", "_block", "_offset", "_size_bytes", "_tensor")

    def __init__(
        self,
        arena: Arena,
        block: Block,
        adapter: Adapter | None,
        tensor: Any,
        offset: int,
        size_bytes: int,
    ) -> None:
        self._arena = arena
        self._block = block
        self._adapter = adapter
        self._tensor = tensor
        self._offset = offset
        self._size_bytes = size_bytes

    @property
    def result_bytes(self) -> int:
        """See :class:`ringd_client._core.Settlement`."""
        return self._size_bytes if self._adapter is not None else 0

    def settle(self, write: bool) -> None:
        """See :class:`ringd_client._core.Settlement`."""
        try:
            if write and self._adapter is not None:
                self._adapter.store(
                    self._tensor, self._block.segment, self._offset, self._size_bytes
                )
        finally:
            self._arena.free(self._block)
            self._tensor = None


class InPlace:
    """An operation on a tensor that lives in the arena: it only keeps the tensor alive."""

    __slots__ = ("_tensor",)

    result_bytes = 0

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def settle(self, write: bool) -> None:
        """See :class:`ringd_client._core.Settlement`."""
        self._tensor = None


class Planner:
    """Checks calls and prepares their working regions, for one communicator.

    The methods raise, all alike: UnsupportedTypeError, InvalidTensorError or
    InvalidArgumentError for what is refused; ArenaFullError when there is no room.
    """

    def __init__(self, rank: int, world_size: int, arena: Arena) -> None:
        self._rank = rank
        self._world_size = world_size
        self._arena = arena
        self._kinds: dict[Any, Kind] = {}

    # ------------------------------------------------------------ the collectives

    def all_reduce(
        self, tensor: Any, op: str, algorithm: str, deterministic: bool, preserve_input: bool
    ) -> Operation:
        """The region is the tensor, in logical order; it ends as the result."""
        adapter = adapter_of(tensor)
        dtype, shape = adapter.describe(tensor)
        key = ("all_reduce", dtype, shape, op, algorithm, deterministic)
        kind = self._known(key)
        if kind is None:
            spec = self._reducing("all_reduce", dtype, shape, op, algorithm, deterministic)
            kind = self._learn(key, spec)
        adapter.check_output(tensor)
        size_bytes = kind.region_bytes
        if place := self._place(adapter, tensor, size_bytes, preserve_input):
            return _in_place(kind, tensor, *place)
        if not size_bytes:
            return Operation(kind.spec, kind.packed)
        block = self._arena.take(kind.block_bytes)
        region = Region(self._arena, block, adapter, tensor, block.offset, size_bytes)
        return self._loaded(kind, block, region, adapter, tensor, block.offset, size_bytes)

    def reduce_scatter(
        self, output: Any, tensor: Any, op: str, algorithm: str, deterministic: bool
    ) -> Operation:
        """The region is the input, in logical order; the result is this rank's part of it."""
        out_adapter, in_adapter = adapter_of(output, "output"), adapter_of(tensor, "input")
        dtype, shape = out_adapter.describe(output)
        described = in_adapter.describe(tensor)
        key = ("reduce_scatter", dtype, shape, described, op, algorithm, deterministic)
        kind = self._known(key)
        if kind is None:
            spec = self._reducing("reduce_scatter", dtype, shape, op, algorithm, deterministic)
            kind = self._learn(key, self._with_parts(described, (dtype, shape), spec))
        out_adapter.check_output(output)
        if not kind.region_bytes:
            return Operation(kind.spec, kind.packed)
        block = self._arena.take(kind.block_bytes)
        part = block.offset + self._rank * kind.part_bytes
        region = Region(self._arena, block, out_adapter, output, part, kind.part_bytes)
        return self._loaded(
            kind, block, region, in_adapter, tensor, block.offset, kind.region_bytes
        )

    def all_gather(
        self, output: Any, tensor: Any, algorithm: str, preserve_input: bool
    ) -> Operation:
        """The region is the output; it begins with this rank's part in its place."""
        out_adapter, in_adapter = adapter_of(output, "output"), adapter_of(tensor, "input")
        dtype, shape = in_adapter.describe(tensor)
        described = out_adapter.describe(output)
        key = ("all_gather", dtype, shape, described, algorithm)
        kind = self._known(key)
        if kind is None:
            spec = self._moving("all_gather", dtype, shape, algorithm)
            kind = self._learn(key, self._with_parts(described, (dtype, shape), spec))
        out_adapter.check_output(output)
        size_bytes = kind.region_bytes
        if not size_bytes:
            return Operation(kind.spec, kind.packed)
        part = self._rank * kind.part_bytes
        if place := self._place(out_adapter, output, size_bytes, preserve_input):
            segment, offset = place
            in_adapter.load(tensor, segment, offset + part, kind.part_bytes)
            return _in_place(kind, output, segment, offset)
        block = self._arena.take(kind.block_bytes)
        region = Region(self._arena, block, out_adapter, output, block.offset, size_bytes)
        return self._loaded(
            kind, block, region, in_adapter, tensor, block.offset + part, kind.part_bytes
        )

    def broadcast(self, tensor: Any, root: int, algorithm: str, preserve_input: bool) -> Operation:
        """The region is the tensor; only the root's contents matter."""
        adapter = adapter_of(tensor)
        dtype, shape = adapter.describe(tensor)
        key = ("broadcast", dtype, shape, root, algorithm)
        kind = self._known(key)
        if kind is None:
            number = self._checked_root(root)
            kind = self._learn(key, self._moving("broadcast", dtype, shape, algorithm, number))
        is_root = kind.spec.root == self._rank
        if not is_root:
            adapter.check_output(tensor)
        size_bytes = kind.region_bytes
        if place := self._place(adapter, tensor, size_bytes, preserve_input):
            return _in_place(kind, tensor, *place)
        if not size_bytes:
            return Operation(kind.spec, kind.packed)
        block = self._arena.take(kind.block_bytes)
        offset = block.offset
        if is_root:
            region = Region(self._arena, block, None, None, offset, size_bytes)
            return self._loaded(kind, block, region, adapter, tensor, offset, size_bytes)
        region = Region(self._arena, block, adapter, tensor, offset, size_bytes)
        return Operation(kind.spec, kind.packed, block.segment.number, offset, region)

    def barrier(self, algorithm: str) -> Operation:
        """There is no region."""
        key = ("barrier", algorithm)
        kind = self._known(key)
        if kind is None:
            kind = self._learn(key, self._moving("barrier", "", (), algorithm))
        return Operation(kind.spec, kind.packed)

    # ------------------------------------------------------------ regions

    def _place(
        self, adapter: Adapter, tensor: Any, size_bytes: int, preserve_input: bool
    ) -> tuple[Segment, int] | None:
        """Where the tensor lies in the arena, if it may be worked on in place."""
        if not self._arena.lent_bytes or preserve_input or not size_bytes:
            return None
        address = adapter.address(tensor)
        if address is None or address % REGION_ALIGNMENT_BYTES:
            return None
        return self._arena.find(address, size_bytes)

    def _loaded(
        self,
        kind: Kind,
        block: Block,
        region: Region,
        adapter: Adapter,
        tensor: Any,
        offset: int,
        size_bytes: int,
    ) -> Operation:
        """The operation, once the caller's data lies in its block."""
        try:
            adapter.load(tensor, block.segment, offset, size_bytes)
        except BaseException:
            region.settle(False)
            raise
        return Operation(kind.spec, kind.packed, block.segment.number, block.offset, region)

    # ------------------------------------------------------------ what calls look like

    def _known(self, key: Any) -> Kind | None:
        try:
            return self._kinds.get(key)
        except TypeError:  # something in it can't be hashed; the checks will say what
            return None

    def _learn(self, key: Any, spec: OpSpec) -> Kind:
        count = spec.region_count(self._world_size)
        region_bytes = count * spec.itemsize
        kind = Kind(
            spec=spec,
            packed=spec.packed,
            part_bytes=spec.count * spec.itemsize,
            region_bytes=region_bytes,
            block_bytes=size_class(region_bytes),
        )
        if len(self._kinds) >= MAX_KEPT:
            self._kinds.clear()
        self._kinds[key] = kind
        return kind

    def _reducing(
        self,
        collective: str,
        dtype: str,
        shape: tuple[int, ...],
        op: str,
        algorithm: str,
        deterministic: bool,
    ) -> OpSpec:
        _check_word("op", op, REDUCE_OPS)
        if op == "avg" and not DTYPES[dtype].is_float:
            raise UnsupportedTypeError(
                f"op avg divides, and {dtype} is no floating-point type: "
                'take op="sum" and divide as you need',
                op=op,
                dtype=dtype,
            )
        if not isinstance(deterministic, bool):
            raise InvalidArgumentError(f"deterministic is True or False, not {deterministic!r}")
        _check_word("algorithm", algorithm, ALGORITHMS[collective])
        if deterministic and algorithm not in DETERMINISTIC_ALGORITHMS:
            raise InvalidArgumentError(
                f"algorithm {algorithm!r} does not fold in rank order; with deterministic=True "
                f"take one of {', '.join(DETERMINISTIC_ALGORITHMS)}"
            )
        return OpSpec(
            collective,
            dtype,
            op,
            _checked_shape(shape),
            algorithm=algorithm,
            deterministic=deterministic,
        )

    def _moving(
        self, collective: str, dtype: str, shape: tuple[int, ...], algorithm: str, root: int = -1
    ) -> OpSpec:
        _check_word("algorithm", algorithm, ALGORITHMS[collective])
        return OpSpec(collective, dtype, "", _checked_shape(shape), root, algorithm)

    def _checked_root(self, root: int) -> int:
        try:
            number = operator.index(root)
        except TypeError:
            raise InvalidArgumentError(f"root is the number of a rank, not {root!r}") from None
        if not 0 <= number < self._world_size:
            raise InvalidArgumentError(
                f"root {number} is no rank: ranks are 0 to {self._world_size - 1}", root=number
            )
        return number

    def _with_parts(
        self,
        whole: tuple[str, tuple[int, ...]],
        part: tuple[str, tuple[int, ...]],
        spec: OpSpec,
    ) -> OpSpec:
        """``spec``, if the larger tensor holds one part per rank and the dtypes agree."""
        names = ("input", "output") if spec.collective == "reduce_scatter" else ("output", "input")
        if whole[0] != part[0]:
            raise InvalidTensorError(
                f"dtypes differ: {names[0]} is {whole[0]}, {names[1]} is {part[0]}"
            )
        count, wanted = prod(whole[1]), prod(part[1]) * self._world_size
        if count != wanted:
            raise InvalidTensorError(
                f"{names[0]} of shape {tuple(whole[1])} has {count} elements; "
                f"{self._world_size} ranks times {names[1]} of shape {tuple(part[1])} are {wanted}"
            )
        return spec


def poison_spec(collective: str) -> OpSpec:
    """The fingerprint of a call that was refused: nothing of it is worth comparing."""
    return OpSpec(collective, "", "", ())


def _in_place(kind: Kind, tensor: Any, segment: Segment, offset: int) -> Operation:
    return Operation(kind.spec, kind.packed, segment.number, offset, InPlace(tensor))


def _check_word(name: str, word: object, known: Iterable[str]) -> None:
    known = tuple(known)
    if not isinstance(word, str):
        raise InvalidArgumentError(f"{name} is one of {', '.join(known)}, not {word!r}")
    if word not in known:
        raise InvalidArgumentError(
            f"{name} {word!r} is none of {', '.join(known)}{did_you_mean(word, known)}",
            **{name: word},
        )


def _checked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) > MAX_DIMS:
        raise InvalidTensorError(f"a tensor of {len(shape)} dimensions is over {MAX_DIMS}")
    return tuple(shape)
