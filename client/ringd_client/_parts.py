"""Lists of tensors, one per rank, and what counts and splits a call means.

A list is seen as one tensor whose elements lie part after part, so that a call on a list and a
call on one tensor are the same to the daemon. Every rank must come to the same fingerprint
(all_to_all's splits aside), so the rules here depend on dtypes and shapes alone.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, TypeAlias

from ringd.errors import InvalidArgumentError, InvalidTensorError
from ringd.vocabulary import DTYPES
from ringd_client._segments import Segment
from ringd_client._tensors import CONVERT, Adapter, Carrier, adapter_of

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = tuple[Shape, ...]
"""One for each tensor of a list."""


class Parts:
    """A caller's list of tensors, as it was when the call began."""

    __slots__ = ("adapters", "dtype", "shapes", "sizes", "tensors")

    def __init__(self, tensors: Sequence[Any], argument: str) -> None:
        self.tensors = tuple(tensors)
        self.adapters = tuple(adapter_of(t, f"each of {argument}") for t in self.tensors)
        described = [a.describe(t) for a, t in zip(self.adapters, self.tensors, strict=True)]
        dtypes = {dtype for dtype, _ in described}
        if len(dtypes) != 1:
            raise InvalidTensorError(
                f"{argument} is a list of tensors of one dtype, one for each rank; "
                + (f"it has {', '.join(sorted(dtypes))}; {CONVERT}" if dtypes else "it is empty")
            )
        (self.dtype,) = dtypes
        self.shapes: Shapes = tuple(tuple(shape) for _, shape in described)
        itemsize = DTYPES[self.dtype].itemsize
        self.sizes = tuple(prod(shape) * itemsize for shape in self.shapes)


class PartsCarrier:
    """A :class:`ringd_client._tensors.Carrier` of :class:`Parts`, whose shape is one of shapes."""

    def describe(self, tensor: Any) -> tuple[str, Any]:
        return tensor.dtype, tensor.shapes

    def check_output(self, tensor: Any) -> int:
        for adapter, part in zip(tensor.adapters, tensor.tensors, strict=True):
            adapter.check_output(part)
        return 0

    def address(self, tensor: Any) -> int | None:
        return None

    def is_plain(self, tensor: Any) -> bool:
        return False

    def load(self, tensor: Any, segment: Segment, offset: int, size_bytes: int) -> None:
        for adapter, part, start, size in _spread(tensor):
            adapter.load(part, segment, offset + start, size)

    def store(self, tensor: Any, segment: Segment, offset: int, size_bytes: int) -> None:
        for adapter, part, start, size in _spread(tensor):
            adapter.store(part, segment, offset + start, size)

    def scale(
        self, tensor: Any, factor: Any, segment: Segment, offset: int, size_bytes: int
    ) -> None:
        for adapter, part, start, size in _spread(tensor):
            adapter.scale(part, factor, segment, offset + start, size)


def _spread(parts: Parts) -> list[tuple[Adapter, Any, int, int]]:
    """(adapter, tensor, start, bytes) of every part that has elements."""
    starts = accumulate(parts.sizes, initial=0)
    spread = zip(parts.adapters, parts.tensors, starts, parts.sizes, strict=False)
    return [item for item in spread if item[3]]


PARTS = PartsCarrier()


def carrier_of(value: Any, argument: str) -> tuple[Carrier, Any]:
    """Who carries a tensor, or a list or tuple of tensors; and the value in its terms.

    Raises:
        UnsupportedTypeError: it is neither.
        InvalidTensorError: a list without tensors, or with tensors of several dtypes.
    """
    if isinstance(value, (list, tuple)):
        return PARTS, Parts(value, argument)
    return adapter_of(value, argument), value


def checked_sizes(name: str, sizes: Any) -> Shape | None:
    """Counts or splits as whole numbers; None stays None.

    Raises:
        InvalidArgumentError: not whole numbers, or negative ones.
    """
    if sizes is None:
        return None
    try:
        numbers = tuple(operator.index(n) for n in sizes)
    except Exception:  # whatever the caller's objects raise
        raise InvalidArgumentError(f"{name} are whole numbers, not {sizes!r}") from None
    if min(numbers, default=0) < 0:
        raise InvalidArgumentError(f"{name} are not negative: {list(numbers)}")
    return numbers


@dataclass(frozen=True, slots=True)
class Whole:
    """What holds the parts of all ranks: one tensor, a list of them, or (elsewhere) nothing.

    Attributes:
        name, part_name: what the caller calls it, and this rank's part.
        shape: of the tensor; None if there is none.
        shapes: of the tensors in the list; None if it is none.
    """

    name: str
    part_name: str
    shape: Shape | None = None
    shapes: Shapes | None = None


def divide(
    whole: Whole, part: Shape, counts: Shape | None, rank: int, world_size: int
) -> tuple[Shape, Shape]:
    """How the ranks share a whole: the ``shape`` and the ``counts`` of the fingerprint.

    Args:
        part: the shape of this rank's part.
        counts: as the caller gave them, in rows (of the first dimension).

    Raises:
        InvalidTensorError: the shapes do not fit together.
        InvalidArgumentError: the counts do not fit the shapes.
    """
    shapes = whole.shapes
    if shapes is not None and len(shapes) != world_size:
        raise InvalidTensorError(
            f"{whole.name} is a list of {len(shapes)} tensors; {world_size} ranks have one each: "
            f"pass {world_size}"
        )
    if counts is None and shapes is not None and {prod(s) for s in shapes} != {prod(part)}:
        counts = _rows_of(whole, shapes, part)
    if counts is None:
        _check_equal(whole, part, world_size)
        return part, ()
    _check_counts(whole, part, counts, rank, world_size)
    if len(set(counts)) == 1:
        return part, ()
    return part[1:], counts


def _rows_of(whole: Whole, shapes: Shapes, part: Shape) -> Shape:
    """The rows of each part of a list whose parts are uneven."""
    if not part or any(shape[1:] != part[1:] or not shape for shape in shapes):
        raise InvalidTensorError(
            f"parts of different sizes are to differ in their first dimension only: "
            f"{whole.part_name} has shape {part}, {whole.name} has {_listed(shapes)}; reshape them"
        )
    return tuple(shape[0] for shape in shapes)


def _check_equal(whole: Whole, part: Shape, world_size: int) -> None:
    if whole.shape is None:
        return  # a list was looked at already
    count, wanted = prod(whole.shape), prod(part) * world_size
    if count != wanted:
        raise InvalidTensorError(
            f"{whole.name} of shape {whole.shape} has {count} elements; "
            f"{world_size} ranks times {whole.part_name} of shape {part} are {wanted}"
            + (" (output comes first)" if count * world_size == prod(part) else "")
            + f". Pass one of {wanted} elements, or, where the parts are uneven, say so by counts "
            "or a list"
        )


def _check_counts(whole: Whole, part: Shape, counts: Shape, rank: int, world_size: int) -> None:
    if len(counts) != world_size:
        raise InvalidArgumentError(
            f"counts are the rows of each rank's part: {world_size} numbers, not {len(counts)}"
        )
    if not part or part[0] != counts[rank]:
        raise InvalidArgumentError(
            f"counts[{rank}] is {counts[rank]}, and {whole.part_name} of this rank has shape "
            f"{part}: the count of a rank is the first dimension of its part; make them equal"
        )
    row = prod(part[1:])
    if whole.shape is not None and prod(whole.shape) != sum(counts) * row:
        raise InvalidTensorError(
            f"{whole.name} of shape {whole.shape} has {prod(whole.shape)} elements; "
            f"{sum(counts)} rows of shape {part[1:]} are {sum(counts) * row}; make them equal"
        )
    if whole.shapes is not None and any(
        prod(shape) != n * row for shape, n in zip(whole.shapes, counts, strict=True)
    ):
        raise InvalidTensorError(
            f"{whole.name} has {_listed(whole.shapes)}; counts are {list(counts)} rows of "
            f"{part[1:]}; make them equal"
        )


@dataclass(frozen=True, slots=True)
class Exchanged:
    """One side of an all_to_all.

    Attributes:
        name: what the caller calls it.
        shape: of the tensor, or None for a list.
        shapes: of the tensors in the list.
        splits: as the caller gave them, in rows.
    """

    name: str
    shape: Shape | None
    shapes: Shapes | None
    splits: Shape | None


def exchange(output: Exchanged, sent: Exchanged, rank: int, world_size: int) -> tuple[Shape, Shape]:
    """The shape of a row that both sides of an all_to_all share, and the splits: sent, then got.

    Lists are counted in elements, as rows of shape (): the shapes that one rank sees of its own
    tensors say nothing of those that others see, so nothing else would be equal everywhere.

    Raises:
        InvalidTensorError: the shapes do not fit together.
        InvalidArgumentError: the splits do not fit the shapes.
    """
    if (output.shape is None) != (sent.shape is None):
        raise InvalidTensorError(
            "one of input and output is a tensor and the other a list: pass two tensors, or two "
            "lists"
        )
    row: Shape
    if output.shape is None:
        row, splits, unit = (), _listed_sizes(output, sent, world_size), "elements"
    else:
        row = output.shape[1:]
        if not output.shape or not sent.shape or sent.shape[1:] != row:
            raise InvalidTensorError(
                f"input and output of all_to_all consist of rows of one shape; input has shape "
                f"{sent.shape}, output {output.shape}; reshape one of them"
            )
        splits, unit = _split(sent, world_size) + _split(output, world_size), "rows"
    ours, back = splits[rank], splits[world_size + rank]
    if ours != back:
        raise InvalidArgumentError(
            f"rank {rank} sends itself {ours} {unit} and expects {back} from itself; make its own "
            "share of input and output equal"
        )
    return row, splits


def _split(side: Exchanged, world_size: int) -> Shape:
    """The rows for or from each rank, of a tensor."""
    rows = (side.shape or (0,))[0]
    if side.splits is None:
        if rows % world_size:
            raise InvalidTensorError(
                f"{side.name} has {rows} rows, which {world_size} ranks can't share equally; "
                f"pass {side.name}_splits"
            )
        return (rows // world_size,) * world_size
    if len(side.splits) != world_size or sum(side.splits) != rows:
        raise InvalidArgumentError(
            f"{side.name}_splits are the rows for each of {world_size} ranks, {rows} in all, "
            f"not {list(side.splits)}"
        )
    return side.splits


def _listed_sizes(output: Exchanged, sent: Exchanged, world_size: int) -> Shape:
    """The elements for each rank, then from each, of two lists."""
    for side in (sent, output):
        if side.splits is not None:
            raise InvalidArgumentError(
                f"{side.name}_splits are for a tensor; a list has sizes: leave them out"
            )
        if len(side.shapes or ()) != world_size:
            raise InvalidTensorError(
                f"{side.name} is a list of {len(side.shapes or ())} tensors; {world_size} ranks "
                f"have one each: pass {world_size}"
            )
    return tuple(prod(shape) for shape in (sent.shapes or ()) + (output.shapes or ()))


def _listed(shapes: Shapes) -> str:
    return ", ".join(map(str, shapes[:8])) + (", ..." if len(shapes) > 8 else "")
