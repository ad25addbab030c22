"""Cells: blocks that stay made up for a call, for the next one that looks alike.

What a small call costs is mostly what it has to touch for the first time, since its daemon and the
program have had the caches meanwhile. So a training loop's calls find all at hand: a block, and how
their class of tensors gets in and out of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

from ringd_client._arena import Arena, Block
from ringd_client._kinds import Kind
from ringd_client._operation import Operation
from ringd_client._regions import Region
from ringd_client._tensors import Adapter, by_class

MAX_BYTES: Final = 64 << 10
"""The largest region that is kept: of larger ones the bytes cost more than the call."""
MAX_CELLS: Final = 64
"""How many an arena keeps; beyond it, it starts anew."""


class Cell(ABC):
    """A block whose whole region is one tensor, in and out, with all that such calls need.

    It is the settlement of one operation at a time: whoever takes it out of ``arena.kept`` has it
    alone, and :meth:`settle` puts it back.

    Args:
        arena: which keeps it, under ``key``.
        kind: of all calls that it is for.
        block: its own until the arena takes it back.

    Attributes:
        output: the tensor of the operation that has it.
    """

    __slots__ = ("_arena", "_key", "block", "kind", "output")

    def __init__(self, arena: Arena, key: object, kind: Kind, block: Block) -> None:
        self._arena = arena
        self._key = key
        self.kind = kind
        self.block = block
        self.output: Any = None

    @property
    def result_bytes(self) -> int:
        """See :class:`ringd_client._operation.Settlement`."""
        return self.kind.result_bytes

    @abstractmethod
    def load(self, tensor: Any) -> bool:
        """Copy a tensor in that has the class, dtype and shape of this cell's.

        Returns:
            False: it takes a closer look, or is to be refused; nothing was copied.
        """

    @abstractmethod
    def store(self, tensor: Any) -> None:
        """Write the result, whatever has become of the tensor since :meth:`load`.

        Raises:
            InvalidTensorError: it does not have as many bytes any more.
        """

    def linger(self, operation: Operation[Any]) -> bool:
        """See :class:`ringd_client._operation.Settlement`."""
        return False

    def settle(self, write: bool) -> None:
        """See :class:`ringd_client._operation.Settlement`."""
        output, self.output = self.output, None
        try:
            if write:
                self.store(output)
        finally:
            if self.block.segment.forsaken or (
                self._arena.kept.setdefault(self._key, self) is not self
            ):  # its memory is gone, or a call at the same time was the first to end
                self._arena.free(self.block)


def again(arena: Arena, look: object, tensor: Any) -> Operation[Any] | None:
    """The operation of a call that looks like an earlier one, which has left its cell; its input
    has been read. None: there is none for it, or the tensor takes a closer look.

    Args:
        look: what decides how such a call goes: also the tensor's class, dtype and shape.
    """
    if arena.lingering or arena.unmapped:
        return None
    cell = arena.kept.pop(look, None)
    if cell is None:
        return None
    try:
        is_loaded = cell.load(tensor)
        if is_loaded and (arena.lent_bytes or arena.guest_bytes):
            is_loaded = not _may_be_shared(arena, tensor, cell.kind.region_bytes)
    except BaseException:
        cell.settle(False)
        raise
    if not is_loaded:
        cell.settle(False)
        return None
    cell.output = tensor
    kind, block = cell.kind, cell.block
    return Operation(kind.spec, kind.packed, block.segment.number, block.offset, cell)


def _may_be_shared(arena: Arena, tensor: Any, size_bytes: int) -> bool:
    """Whether the daemon may be able to work in the tensor itself."""
    address = by_class[type(tensor)].address(tensor)
    return address is None or arena.has_returned or arena.find(address, size_bytes) is not None


def keep(
    arena: Arena, look: object, kind: Kind, adapter: Adapter, tensor: Any, operation: Operation[Any]
) -> None:
    """Leave an operation's block, when it is over, to the next call that looks alike."""
    region = operation.settlement
    if not isinstance(region, Region) or region.block is None:
        return  # it works in the caller's own memory
    if len(arena.kept) >= MAX_CELLS:
        arena.give_up_kept()
    cell = adapter.cell(arena, look, kind, region.block, tensor)
    if cell is not None:
        cell.output = tensor
        operation.settlement = cell
