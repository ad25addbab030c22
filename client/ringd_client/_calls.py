"""What the blocking and the asyncio communicator have in common: how a call begins."""

from __future__ import annotations

import contextlib
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final, Literal

from ringd.errors import (
    CommunicatorClosedError,
    InvalidArgumentError,
    InvalidTensorError,
    RingdError,
    UnsupportedTypeError,
)
from ringd.vocabulary import DTYPES, Collective
from ringd_client._arena import Arena
from ringd_client._attach import Membership, is_positive
from ringd_client._core import GRACE_S, ClientState, Operation, UnsentError
from ringd_client._plan import Planner, poison_spec
from ringd_client._tensors import adapter_named

STATUS_TIMEOUT_S: Final = 5.0
MAX_TIMEOUT_S: Final = 365 * 86400.0
"""Longer ones are cut to this: locks and polls have limits."""

_POISONS = {c.value: poison_spec(c.value).packed for c in Collective}


class Caller(ABC):
    """Checks a call, gives it its place in the order, and knows the group.

    A call that is refused here takes its place as a poisoned one, so that the peers, which
    called properly, are told instead of waiting.
    """

    def __init__(self, state: ClientState, arena: Arena, membership: Membership) -> None:
        self._state = state
        self._arena = arena
        self._membership = membership
        self._planner = Planner(membership.rank, membership.world_size, arena)

    @property
    def rank(self) -> int:
        """This trainer's number, from 0."""
        return self._membership.rank

    @property
    def world_size(self) -> int:
        """How many ranks the group has."""
        return self._membership.world_size

    @property
    def epoch(self) -> int:
        """Which set of trainers this group is: those that started together."""
        return self._membership.epoch

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the parent of this process."""
        return isinstance(self._state.ended, CommunicatorClosedError)

    def empty(
        self,
        shape: int | Sequence[int],
        dtype: Any = "float32",
        *,
        like: Literal["torch", "numpy"] = "torch",
    ) -> Any:
        """A tensor in shared memory, with any contents: collectives work on it without a copy.

        It keeps its memory for as long as it or a view of it lives, also when the communicator
        is closed before. After a failed collective its contents are undefined, unless that
        was called with ``preserve_input=True``. A forked child shares the memory.

        Args:
            shape: of the tensor.
            dtype: a name (float32, float64, float16, bfloat16, int32, int64), or the library's
                own dtype object; numpy has no bfloat16.
            like: "torch" for a ``torch.Tensor``, "numpy" for a ``numpy.ndarray``.

        Raises:
            UnsupportedTypeError: no such dtype.
            InvalidArgumentError: no such shape.
            ArenaFullError: no room below ``arena_limit_bytes``.
            CommunicatorClosedError: it is closed.

        Cost: some microseconds when a block of that size is free; otherwise about 0.5 ms per
        MiB, once.
        """
        self._state.admit()
        adapter = adapter_named(like)
        name = adapter.dtype_name(dtype)
        size = _checked_shape(shape)
        try:
            owner = self._arena.lend(max(prod(size), 1) * DTYPES[name].itemsize)
        except UnsentError as exc:
            raise self._end(exc) from exc.__cause__
        return adapter.wrap(owner, name, size)

    def _begin(
        self,
        collective: str,
        plan: Callable[..., Operation],
        arguments: tuple[Any, ...],
        timeout_s: float | None,
        recv_timeout_ms: float | None,
        *,
        detached: bool = False,
    ) -> Operation:
        """Post one collective.

        Raises:
            RingdError: it was refused here (and its place in the order taken), or not posted.
        """
        self._state.admit()
        began = time.monotonic()
        try:
            if timeout_s is None:
                bound_s = self._membership.timeout_s
            else:
                bound_s = _positive("timeout_s", timeout_s)
            if recv_timeout_ms is None:
                silence_s = 0.0
            else:
                silence_s = _positive("recv_timeout_ms", recv_timeout_ms) / 1000
            operation = plan(*arguments)
        except (InvalidTensorError, InvalidArgumentError, UnsupportedTypeError) as refusal:
            self._refuse(collective, refusal)
            raise
        except RingdError:
            raise  # it has no place in the order, and may be made again
        except UnsentError as exc:
            raise self._end(exc) from exc.__cause__
        except Exception as exc:
            unreadable = InvalidTensorError(f"the tensor can't be read: {exc!r}")
            self._refuse(collective, unreadable)
            raise unreadable from exc
        operation.began = began
        operation.timeout_s = bound_s
        operation.recv_timeout_s = silence_s
        operation.expires = began + bound_s + GRACE_S
        operation.detached = detached
        self._post(operation)
        return operation

    def _refuse(self, collective: str, refusal: RingdError) -> None:
        """Take a refused call's place in the order; what stands in the way is told later."""
        with contextlib.suppress(RingdError):
            self._post_poison(_POISONS[collective], refusal)

    @abstractmethod
    def _post(self, operation: Operation) -> None:
        """Submit an operation."""

    @abstractmethod
    def _end(self, unsent: UnsentError) -> RingdError:
        """The daemon did not take a message: end everything, and say why."""

    @abstractmethod
    def _post_poison(self, packed: bytes, refusal: RingdError) -> None:
        """Submit a refused call."""

    def _status_request(self, scope: str, timeout_s: float | None) -> Operation:
        """A request that is not posted yet.

        Raises:
            InvalidArgumentError: a scope that does not exist, or a bad timeout.
        """
        if scope not in ("daemon", "group"):
            raise InvalidArgumentError(f'scope is "daemon" or "group", not {scope!r}')
        operation = Operation(f"status of the {scope}", b"")
        operation.began = time.monotonic()
        bound_s = STATUS_TIMEOUT_S if timeout_s is None else _positive("timeout_s", timeout_s)
        operation.timeout_s = bound_s
        operation.expires = operation.began + bound_s + GRACE_S
        return operation

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"epoch {self.epoch}"
        return f"<{type(self).__name__} rank {self.rank} of {self.world_size}, {state}>"


def _positive(name: str, value: float) -> float:
    if is_positive(value):
        return min(float(value), MAX_TIMEOUT_S)
    raise InvalidArgumentError(f"{name} is a positive number, not {value!r}")


def _checked_shape(shape: Any) -> tuple[int, ...]:
    sizes: tuple[int, ...]
    try:
        sizes = (operator.index(shape),)
    except TypeError:
        try:
            sizes = tuple(operator.index(d) for d in shape)
        except TypeError:
            raise InvalidArgumentError(f"a shape is whole numbers, not {shape!r}") from None
    if min(sizes, default=0) < 0:
        raise InvalidArgumentError(f"a shape has no negative sizes: {sizes}")
    return sizes


def checked_limit(arena_limit_bytes: int | None) -> int | None:
    """The cap of the arena, as ``connect`` takes it.

    Raises:
        InvalidArgumentError: not a positive whole number.
    """
    if arena_limit_bytes is None:
        return None
    if is_positive(arena_limit_bytes) and int(arena_limit_bytes) == arena_limit_bytes:
        return int(arena_limit_bytes)
    raise InvalidArgumentError(
        f"arena_limit_bytes is a positive whole number, not {arena_limit_bytes!r}"
    )
