"""What a call looks like to the daemon: its fingerprint, and where things lie in its region.

That depends only on dtypes, shapes and options, so it is worked out once for all calls that
look alike.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Final, Literal

from ringd.errors import InvalidArgumentError, InvalidTensorError
from ringd.schedules.layout import region_of
from ringd.vocabulary import MAX_DIMS, OpSpec, check_spec
from ringd_client._parts import Parts, Shape, Shapes, Whole, divide
from ringd_client._reductions import word_of
from ringd_client._segments import size_class
from ringd_client._tensors import CONVERT

MAX_KEPT: Final = 4096
"""Kinds of calls that are remembered; beyond it the memory starts anew."""

Home = Literal["output", "input", ""]


@dataclass(frozen=True, slots=True)
class Kind:
    """All calls of one rank that look alike to the daemon.

    Attributes:
        spec: the fingerprint.
        packed: the same as bytes.
        region_bytes: the working region.
        block_bytes: the size class of a block for it.
        load_offset, load_bytes: where in the region the input goes.
        result_offset, result_bytes: where in it the result is.
        own: (from, to, bytes) of what we move ourselves within the region before the call.
        home: the caller's tensor that is the whole region, if it lies in the arena; "" for
            calls that have none.
        local: what the daemon is told beside the spec.
    """

    spec: OpSpec
    packed: bytes
    region_bytes: int
    block_bytes: int
    load_offset: int
    load_bytes: int
    result_offset: int
    result_bytes: int
    own: tuple[int, int, int]
    home: Home
    local: tuple[int, ...] | None


class Kinds:
    """The kinds of calls that one communicator has made.

    Args:
        rank, world_size: of the group.
        group: its number.
    """

    def __init__(self, rank: int, world_size: int, group: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.group = group
        self._kept: dict[Any, Kind] = {}

    def known(self, key: Any) -> Kind | None:
        """The kind that was learned with this key."""
        try:
            return self._kept.get(key)
        except TypeError:  # something in it can't be hashed; the checks will say what
            return None

    def learn(
        self, key: Any, spec: OpSpec, home: Home, local: tuple[int, ...] | None = None
    ) -> Kind:
        """Work out what all calls with this key have in common, and keep it."""
        kind = self.work_out(spec, home, local)
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[key] = kind
        return kind

    def work_out(self, spec: OpSpec, home: Home, local: tuple[int, ...] | None = None) -> Kind:
        """The kind of a call, which is not kept."""
        region = region_of(spec, self.rank, self.world_size, local or ())
        size = spec.itemsize
        region_bytes = region.count * size
        here, there, count = region.own
        return Kind(
            spec=spec,
            packed=spec.packed,
            region_bytes=region_bytes,
            block_bytes=size_class(region_bytes),
            load_offset=region.load[0] * size,
            load_bytes=region.load[1] * size,
            result_offset=region.result[0] * size,
            result_bytes=region.result[1] * size,
            own=(here * size, there * size, count * size),
            home=home,
            local=local,
        )

    def spec(
        self,
        collective: str,
        dtype: str,
        shape: tuple[int, ...],
        op: Any,
        algorithm: Any,
        deterministic: bool = False,
        root: int = -1,
        counts: tuple[int, ...] = (),
    ) -> OpSpec:
        """The fingerprint of a call that some rank could run; ``op`` is None for moves."""
        if not isinstance(algorithm, str):
            raise InvalidArgumentError(f"algorithm is a name, not {algorithm!r}")
        spec = OpSpec(
            collective,
            dtype,
            "" if op is None else word_of(op),
            checked_shape(shape),
            root,
            algorithm,
            deterministic,
            self.group,
            counts=counts,
        )
        check_spec(spec, self.world_size)
        return spec

    def parted(
        self,
        collective: str,
        names: tuple[str, str],
        holder: Any,
        part: tuple[str, tuple[int, ...]],
        whole: tuple[str, Any] | None,
        counts: tuple[int, ...] | None,
        op: Any,
        algorithm: Any,
        deterministic: bool = False,
        root: int = -1,
    ) -> OpSpec:
        """The fingerprint where each rank has a part.

        Args:
            names: what the caller calls the whole and the part.
            holder: the tensor or the :class:`Parts` that are the whole; None: not on this rank.
            part, whole: their dtypes and shapes.
        """
        held = Whole(*names)
        if whole is not None:
            check_dtypes(names[0], whole[0], names[1], part[0])
            held = Whole(*names, *shape_or_shapes(holder, whole[1]))
        shape, rows = divide(held, tuple(part[1]), counts, self.rank, self.world_size)
        return self.spec(
            collective, part[0], shape, op, algorithm, deterministic, root, counts=rows
        )

    def checked_rank(self, name: str, rank: Any) -> int:
        """``rank`` as the number of a rank of this group.

        Raises:
            InvalidArgumentError: it is none.
        """
        try:
            number = operator.index(rank)
        except Exception:  # whatever the caller's object raises
            raise InvalidArgumentError(f"{name} is the number of a rank, not {rank!r}") from None
        if not 0 <= number < self.world_size:
            raise InvalidArgumentError(
                f"{name} {number} is no rank: ranks are 0 to {self.world_size - 1}", rank=number
            )
        return number


def check_flags(**flags: Any) -> None:
    """Refuse what is neither True nor False.

    Like every check of a value that equals another one of another type, it comes before a key
    is looked up: 0 would be taken once False was.

    Raises:
        InvalidArgumentError: it names the argument.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidArgumentError(f"{name} is True or False, not {flag!r}")


def poison_spec(collective: str, group: int) -> OpSpec:
    """The fingerprint of a call that was refused: nothing of it is worth comparing."""
    return OpSpec(collective, "", "", (), group=group)


def shape_or_shapes(holder: Any, shape: Any) -> tuple[Shape | None, Shapes | None]:
    """The shape of a tensor and no list; or no tensor, and the shapes of a list."""
    return (None, shape) if isinstance(holder, Parts) else (tuple(shape), None)


def check_dtypes(name: str, dtype: str, other: str, other_dtype: str) -> None:
    """Refuse two tensors of one call whose dtypes differ.

    Raises:
        InvalidTensorError: they do.
    """
    if dtype != other_dtype:
        raise InvalidTensorError(
            f"dtypes differ: {name} is {dtype}, {other} is {other_dtype}; {CONVERT}"
        )


def checked_shape(shape: Shape) -> Shape:
    """A tensor's shape as a tuple.

    Raises:
        InvalidTensorError: too many dimensions.
    """
    if len(shape) > MAX_DIMS:
        raise InvalidTensorError(
            f"a tensor of {len(shape)} dimensions is over {MAX_DIMS}; pass tensor.reshape(-1)"
        )
    return tuple(shape)
