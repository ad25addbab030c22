"""Everybody gets the state of rank 0: how a newcomer comes to know what the others know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final, TypeVar

from ringd.errors import (
    InvalidTensorError,
    RingdError,
    UnsupportedTypeError,
    from_wire,
)
from ringd.vocabulary import DTYPES
from ringd_client._calls import Caller
from ringd_client._coalesce import MAX_FUSED, joint_broadcast
from ringd_client._environment import out_of
from ringd_client._objects import broadcast_within
from ringd_client._operation import Operation
from ringd_client._plan import Planner
from ringd_client._steps import Budget, Steps
from ringd_client._tensors import adapter_named
from ringd_client._tree import Leaf, leaves_of, put_together, taken_apart

T = TypeVar("T")

ROOT: Final = 0
SMALL_BYTES: Final = 64 << 10
"""Tensors up to this size travel together, those of one dtype in one operation."""
JOINT_BYTES: Final = 4 << 20
"""The most that travels so."""
PIECE_BYTES: Final = 16 << 20
"""What of a large tensor is on its way at a time; a multiple of every element's size."""
MAX_FORM_BYTES: Final = 64 << 20


def sync_state(caller: Caller, state: T, *, timeout_s: float | None = None) -> Steps[T]:
    """Give every rank the state of rank 0; all ranks make the call.

    For a newcomer after ``reform()``, whose rank 0 is always an old member:

        model.load_state_dict(comm.sync_state(model.state_dict()))
        optimizer.load_state_dict(comm.sync_state(optimizer.state_dict()))

    Args:
        state: dict, OrderedDict, list and tuple, as nested as you like, of torch tensors, numpy
            arrays and scalars, numbers, str, bytes, bool and None; keys may be numbers too. What
            other ranks than 0 pass may be anything; it only says which memory may be filled.
        timeout_s: for all of it; see the class.

    Returns:
        On rank 0 ``state`` itself. Elsewhere new containers with the same contents. A tensor is
        the local one, filled in place, if there is one at the same path with the same dtype and
        shape that is contiguous and writable and shares its memory with no other of them;
        otherwise a new one. Values are bit for bit those of rank 0, 16-bit and float8 types too.

    Raises, besides what the class says:
        UnsupportedTypeError: on every rank, if rank 0 has something that can't be carried: an
            object of another class, a tensor on a device. ``path`` says where. Nothing was moved.
        ObjectTooLargeError: on every rank: more than 64 MiB without the tensors.
        After another error some local tensors have been filled, others not: call it again.

    Cost: one broadcast_object of all but the tensors; a broadcast of each tensor, those up to 64
    KiB joined to operations of up to 4 MiB by dtype, larger ones in pieces of 16 MiB, which bounds
    what is needed of the shared memory. One copy in and one out, as for any broadcast, and
    none for tensors of ``empty``.
    """
    budget = Budget(caller, timeout_s)
    form, leaves = yield from _told(caller, state, budget, timeout_s)
    if caller.rank != ROOT:
        moves = any(map(_size_bytes, leaves))
        try:
            leaves = [_with_room(leaf) for leaf in leaves]
        except RingdError as exc:
            if moves:
                caller._refuse("broadcast", exc, "sync_state")
            raise
    with budget.committed("broadcast", "sync_state"):
        for parcel in _parcels(leaves):
            yield budget.bounds(_prepared(caller, parcel))
    if caller.rank == ROOT:
        return state
    result: T = put_together(form, iter([leaf.tensor for leaf in leaves]))
    return result


def _told(
    caller: Caller, state: Any, budget: Budget, timeout_s: float | None
) -> Steps[tuple[Any, list[Leaf]]]:
    """The form of rank 0's state, or the error of it; and the tensors: ours, or what is alike."""
    told: list[Any] = []
    leaves: list[Leaf] = []
    if caller.rank == ROOT:
        try:
            form, leaves = taken_apart(state)
            told = [form, None]
        except UnsupportedTypeError as exc:
            told = [None, exc.to_wire()]
        except Exception as exc:  # whatever the caller's objects raise
            told = [None, (out_of(exc) or _unreadable(exc)).to_wire()]
    form, error = yield from broadcast_within(caller, told, ROOT, MAX_FORM_BYTES, timeout_s, budget)
    if error is not None:
        raise from_wire(error)
    if caller.rank == ROOT:
        return form, leaves
    try:
        return form, leaves_of(form, state)
    except Exception:  # what is ours only says which memory may be filled
        return form, leaves_of(form, None)


def _unreadable(exc: Exception) -> UnsupportedTypeError:
    return UnsupportedTypeError(f"the state can't be read: {exc!r}")


def _with_room(leaf: Leaf) -> Leaf:
    """With a tensor of our own where there was none.

    Raises:
        InvalidTensorError, ResourceError: it can't be made.
    """
    if leaf.tensor is not None:
        return leaf
    try:
        tensor = adapter_named(leaf.library).new(leaf.dtype, leaf.shape)
    except Exception as exc:  # no such library here, or no memory
        raise out_of(exc) or InvalidTensorError(
            f"a {leaf.library} tensor of {leaf.dtype} and shape {leaf.shape} can't be made: {exc!r}"
            f". Have {leaf.library} and the memory for it here, or pass a state that has the tensor"
        ) from exc
    return leaf.holding(tensor)


def _size_bytes(leaf: Leaf) -> int:
    return prod(leaf.shape) * DTYPES[leaf.dtype].itemsize


def _parcels(leaves: Sequence[Leaf]) -> Iterator[list[Any]]:
    """The tensors of each broadcast: the same sizes in the same order on every rank."""
    waiting: dict[str, list[Any]] = {}
    sizes = dict.fromkeys(DTYPES, 0)
    for leaf in leaves:
        size, dtype = _size_bytes(leaf), leaf.dtype
        if size > SMALL_BYTES:
            flat = adapter_named(leaf.library).flat(leaf.tensor)
            step = PIECE_BYTES // DTYPES[dtype].itemsize
            for start in range(0, len(flat), step):
                yield [flat[start : start + step]]
        elif size:
            joint = waiting.setdefault(dtype, [])
            if joint and (len(joint) == MAX_FUSED or sizes[dtype] + size > JOINT_BYTES):
                yield waiting.pop(dtype)
                joint, sizes[dtype] = waiting.setdefault(dtype, []), 0
            joint.append(leaf.tensor)
            sizes[dtype] += size
    yield from waiting.values()


def _prepared(caller: Caller, parcel: list[Any]) -> Operation[None]:
    if len(parcel) == 1:
        arguments = (parcel[0], ROOT, "auto", False)
        return caller._prepare("broadcast", Planner.broadcast, arguments, None, None, None)
    return caller._prepare("broadcast", joint_broadcast, (parcel, ROOT), None, None, None)
