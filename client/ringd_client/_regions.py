"""What becomes of an operation's working region when the daemon has released it."""

from __future__ import annotations

import struct
from typing import Any, Final

from ringd_client._arena import Arena, Block
from ringd_client._operation import Operation
from ringd_client._segments import Segment
from ringd_client._tensors import Carrier

_NUMBER: Final = struct.Struct("=q")


class Region:
    """A region of which a part is to be written to the caller's tensor.

    Args:
        block: what holds it; None if it lies in a tensor of the caller's, which ``kept`` is.
        sink, output: where the result goes; None if nothing is to be written.
        offset, size_bytes: of the result in ``segment``.

    Attributes:
        block: as above.
    """

    __slots__ = (
        "_arena", "_kept", "_offset", "_output", "_segment", "_sink", "_size_bytes",
        "block",
    )  # fmt: skip

    def __init__(
        self,
        arena: Arena,
        block: Block | None,
        segment: Segment,
        sink: Carrier | None,
        output: Any,
        offset: int,
        size_bytes: int,
        kept: Any = None,
    ) -> None:
        self._arena = arena
        self.block = block
        self._segment = segment
        self._sink = sink
        self._output = output
        self._offset = offset
        self._size_bytes = size_bytes
        self._kept = kept

    @property
    def result_bytes(self) -> int:
        """See :class:`ringd_client._operation.Settlement`."""
        return self._size_bytes if self._sink is not None else 0

    def linger(self, operation: Operation[Any]) -> bool:
        """See :class:`ringd_client._operation.Settlement`."""
        if self._kept is None:
            return False
        self._arena.lingering.lend(self, self._kept, operation)
        return True

    def settle(self, write: bool) -> None:
        """See :class:`ringd_client._operation.Settlement`."""
        try:
            if write and self._sink is not None:
                self._sink.store(self._output, self._segment, self._offset, self._size_bytes)
        finally:
            if self.block is not None:
                self._arena.free(self.block)
            elif self._arena.lingering:
                self._arena.lingering.pop(self, None)
            self._output = self._kept = None


class InPlace:
    """A region that is a tensor in the arena, result and all: only kept alive."""

    __slots__ = ("_arena", "_tensor")

    result_bytes = 0

    def __init__(self, arena: Arena, tensor: Any) -> None:
        self._arena = arena
        self._tensor = tensor

    def linger(self, operation: Operation[Any]) -> bool:
        """See :class:`ringd_client._operation.Settlement`."""
        self._arena.lingering.lend(self, self._tensor, operation)
        return True

    def settle(self, write: bool) -> None:
        """See :class:`ringd_client._operation.Settlement`."""
        if self._arena.lingering:
            self._arena.lingering.pop(self, None)
        self._tensor = None


class Number:
    """A region in which the daemon leaves one number.

    Attributes:
        value: the number, after a success.
    """

    __slots__ = ("_arena", "_block", "value")

    result_bytes = 0

    def __init__(self, arena: Arena, block: Block) -> None:
        self._arena = arena
        self._block = block
        self.value = 0

    def linger(self, operation: Operation[Any]) -> bool:
        """See :class:`ringd_client._operation.Settlement`."""
        return False

    def settle(self, write: bool) -> None:
        """See :class:`ringd_client._operation.Settlement`."""
        if write:
            (self.value,) = _NUMBER.unpack_from(self._block.segment.view, self._block.offset)
        self._arena.free(self._block)


class Answer:
    """A region of one byte, in which the daemon leaves yes or no: what the operation returns.

    Attributes:
        operation: whose answer it is.
    """

    __slots__ = ("_arena", "_block", "operation")

    result_bytes = 0

    def __init__(self, arena: Arena, block: Block) -> None:
        self._arena = arena
        self._block = block
        self.operation: Operation[bool] | None = None

    def linger(self, operation: Operation[Any]) -> bool:
        """See :class:`ringd_client._operation.Settlement`."""
        return False

    def settle(self, write: bool) -> None:
        """See :class:`ringd_client._operation.Settlement`."""
        operation, self.operation = self.operation, None
        if write and operation is not None:
            operation.output = bool(self._block.segment.view[self._block.offset])
        self._arena.free(self._block)
