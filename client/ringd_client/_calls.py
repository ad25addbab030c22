"""What the blocking and the asyncio communicator have in common: how a call begins."""

from __future__ import annotations

import contextlib
import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from ringd.errors import (
    CommunicatorClosedError,
    InvalidArgumentError,
    InvalidTensorError,
    ResourceError,
    RingdError,
    TooManyOperationsError,
    UnsupportedTypeError,
)
from ringd.vocabulary import DTYPES, POINT_TO_POINT
from ringd.wire.bounds import OF_CALL, OF_COMMUNICATOR, OF_DAEMON, Bound
from ringd_client._arena import Arena
from ringd_client._attach import Membership, cut, is_positive
from ringd_client._cells import again
from ringd_client._core import ClientState
from ringd_client._environment import out_of
from ringd_client._kinds import Kinds, poison_spec
from ringd_client._operation import GRACE_S, Operation, UnsentError, withdraw
from ringd_client._plan import Planner
from ringd_client._tensors import adapter_named, by_class

if TYPE_CHECKING:
    from ringd_client._coalesce import Batch

T = TypeVar("T")

STATUS_TIMEOUT_S: Final = 5.0
RANKS_SHOWN: Final = 16
"""Of a communicator, in its text."""
REFUSALS: Final = (
    InvalidTensorError,
    InvalidArgumentError,
    UnsupportedTypeError,
    ResourceError,
)
"""Errors of a call here that takes its place in the order all the same, as a poisoned one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place in a group.

    Attributes:
        group: its number; 0 is the world.
        rank: ours in it.
        ranks: its members as ranks of the world, in the order of the group.
    """

    group: int
    rank: int
    ranks: tuple[int, ...]


class Caller(ABC):
    """Checks a call, prepares it, and knows the group.

    A collective that is refused here takes its place in the order as a poisoned one, so that
    the peers, which called properly, are told instead of waiting.

    Args:
        state, arena, membership: shared by the communicators of one connection.
        place: None for the world.
        default_timeout_s: of calls that name none; None: the daemon's.
    """

    def __init__(
        self,
        state: ClientState,
        arena: Arena,
        membership: Membership,
        place: Place | None,
        default_timeout_s: float | None,
    ) -> None:
        self._state = state
        self._arena = arena
        self._default_timeout_s = default_timeout_s
        self._batch: Batch | None = None
        self._last_bound = Bound(0.0)
        self._take_place(membership, place)

    def _take_place(self, membership: Membership, place: Place | None) -> None:
        """Of the group, in the membership's epoch."""
        if place is None:
            place = Place(0, membership.rank, membership.ranks)
        kinds = Kinds(place.rank, len(place.ranks), place.group)
        self._membership = membership
        self._place = place
        self._planner = Planner(kinds, self._arena, membership.epoch)
        self._default_to(self._default_timeout_s)

    def _default_to(self, timeout_s: float | None) -> None:
        """The deadline of calls that name none, from now on; None: the daemon's."""
        self._default_timeout_s = timeout_s
        if timeout_s is None:
            self._usual = Bound(self._membership.timeout_s, OF_DAEMON)
        else:
            self._usual = Bound(timeout_s, OF_COMMUNICATOR)

    def _prepare_epoch(self, membership: Membership) -> None:
        """Have all ready for the next epoch, in which the world has other members."""
        self._take_place(membership, None)
        self._state.prepare_epoch(membership.epoch, membership.max_in_flight)

    @property
    def rank(self) -> int:
        """This trainer's number in the group, from 0."""
        return self._place.rank

    @property
    def world_size(self) -> int:
        """How many ranks the group has."""
        return len(self._place.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The group's members as ranks of the world, in the order of the group."""
        return self._place.ranks

    @property
    def group(self) -> int:
        """The group's number in this epoch, equal on its members; 0 is the world."""
        return self._place.group

    @property
    def epoch(self) -> int:
        """Which set of trainers this is: those that started together."""
        return self._membership.epoch

    @property
    def default_timeout_s(self) -> float:
        """The deadline of calls that name none, in seconds from their beginning."""
        return self._usual.timeout_s

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the parent of this process."""
        state = self._state
        if isinstance(state.ended, CommunicatorClosedError):
            return True
        return bool(self.group) and not (state.stands(self.epoch) and self.group in state.groups)

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
            dtype: a name, as torch has it, or the library's own dtype object; numpy has neither
                bfloat16 nor the float8 types.
            like: "torch" for a ``torch.Tensor``, "numpy" for a ``numpy.ndarray``.

        Raises:
            UnsupportedTypeError: no such dtype.
            InvalidArgumentError: no such shape, or no such library.
            ArenaFullError: no room below ``arena_limit_bytes``.
            ResourceError: this process has no file descriptor, or no memory, left.
            CommunicatorClosedError: it is closed.

        Cost: some microseconds when a block of that size is free; otherwise about 0.5 ms per
        MiB, once.
        """
        self._state.admit(self._place.group)
        try:
            adapter = adapter_named(like)
        except Exception as exc:  # it is loaded by its first use
            if lack := out_of(exc):
                raise lack from exc
            raise
        if isinstance(dtype, int):
            raise InvalidArgumentError(
                f"dtype is a name, not {dtype}; several sizes are one argument: empty((3, 4))"
            )
        name = adapter.dtype_name(dtype)
        size = _checked_shape(shape)
        try:
            owner = self._arena.lend(max(prod(size), 1) * DTYPES[name].itemsize)
        except UnsentError as exc:
            raise self._end(exc) from exc.__cause__
        return adapter.wrap(owner, name, size)

    def _prepare(
        self,
        collective: str,
        plan: Callable[..., Operation[Any]],
        arguments: tuple[Any, ...],
        timeout_s: float | None,
        recv_timeout_ms: float | None,
        output: T,
    ) -> Operation[T]:
        """An operation that is ready to be posted; its input has been read.

        Args:
            collective: what is called, for the poison.
            plan: a method of the :class:`Planner`, unbound.
            arguments: its arguments.
            output: what a wait for it returns.

        Raises:
            RingdError: it was refused here (and its place in the order taken), or may not be
                posted.
        """
        planner, state = self._planner, self._state
        if not state.admits(planner.group, planner.epoch):
            self._admit(planner)
        began = time.monotonic()
        try:
            bound = self._usual if timeout_s is None else self._bound(timeout_s)
            silence_s = 0.0
            state.patience.until = began + bound.timeout_s + GRACE_S
            if recv_timeout_ms is not None:
                silence_s = positive("recv_timeout_ms", recv_timeout_ms) / 1000
            operation = plan(planner, *arguments)
        except Exception as exc:
            self._turn_down(collective, exc)
            raise
        operation.begin(began, bound, silence_s)
        operation.epoch = planner.epoch
        operation.output = output
        return operation

    def _all_reduce_again(
        self,
        tensor: Any,
        op: Any = "sum",
        deterministic: bool = False,
        timeout_s: float | None = None,
    ) -> Operation[Any] | None:
        """As :meth:`_prepare`, in fewer steps, for an all_reduce that looks like an earlier one.

        Args:
            tensor, op: of the call.
            deterministic, timeout_s: of the call; the latter has been checked.

        Returns:
            None: it is to be prepared the ordinary way, which has all checks.

        Raises:
            RingdError: as :meth:`_prepare`.
        """
        planner, state = self._planner, self._state
        cls = type(tensor)
        if cls not in by_class or op.__class__ is not str or deterministic.__class__ is not bool:
            return None
        if not state.admits(planner.group, planner.epoch):
            return None
        began = time.monotonic()
        bound = self._usual if timeout_s is None else self._bound(timeout_s)
        state.patience.until = began + bound.timeout_s + GRACE_S
        try:
            look = (planner, cls, tensor.dtype, tensor.shape, op, "auto", deterministic)
            operation = again(self._arena, look, tensor)
        except Exception as exc:
            self._turn_down("all_reduce", exc)
            raise
        if operation is not None:
            operation.begin(began, bound)
            operation.epoch = planner.epoch
            operation.output = tensor
        return operation

    def _admit(self, planner: Planner) -> None:
        """Whether a call may be made.

        Raises:
            RingdError: as of :meth:`ClientState.admit_call`.
        """
        try:
            self._state.admit_call(planner.group, planner.epoch)
        except TooManyOperationsError:
            self._arena.lingering.catch_up()  # nobody may have read what would make room
            self._state.admit_call(planner.group, planner.epoch)

    def _turn_down(self, collective: str, cause: Exception) -> None:
        """A call can't be prepared: let it take its place in the order, if it is to have one.

        Raises:
            RingdError: in place of a cause that is none.
        """
        if isinstance(cause, REFUSALS):
            self._refuse(collective, cause)
        elif isinstance(cause, UnsentError):
            raise self._end(cause) from cause.__cause__
        elif not isinstance(cause, RingdError):  # those may be made again, and have no place yet
            self._refuse(collective, refusal := unreadable(cause))
            raise refusal from cause

    def _bound(self, timeout_s: float | None) -> Bound:
        """The deadline of a call: its own, else ours, else the daemon's.

        Raises:
            InvalidArgumentError: ``timeout_s`` is no positive number.
        """
        if timeout_s is None:
            return self._usual
        last = self._last_bound
        if timeout_s.__class__ is float and timeout_s == last.timeout_s:
            return last  # not 0: that never was one
        bound = self._last_bound = Bound(positive("timeout_s", timeout_s), OF_CALL)
        return bound

    def _post_all(
        self, operations: list[Operation[Any]]
    ) -> tuple[list[Operation[Any]], RingdError | None]:
        """Post in order, up to the first that can't be; those that were, and why not all."""
        for n, operation in enumerate(operations):
            try:
                self._post(operation)
            except RingdError as exc:
                withdraw(operations[n + 1 :], exc)
                return operations[:n], exc
        return operations, None

    def _refuse(self, collective: str, refusal: RingdError, call: str = "") -> None:
        """Take a refused call's place in the order; what stands in the way is told later.

        A message has no place in the order.

        Args:
            call: what others are told of, where that is more than the ``collective``.
        """
        if collective not in POINT_TO_POINT:
            if call:
                refusal = type(refusal)(refusal.message, call=call)
            packed = poison_spec(collective, self._place.group).packed
            with contextlib.suppress(RingdError):
                self._post_poison(packed, refusal)

    @contextlib.contextmanager
    def _refusing(self, collective: str, call: str = "") -> Iterator[None]:
        """For what comes before the first operation, a ``collective``, of a ``call``: where it is
        refused, or there is no room for it, that is poisoned."""
        self._state.admit_call(self._place.group, self.epoch)
        try:
            yield
        except REFUSALS as refusal:
            self._refuse(collective, refusal, call)
            raise
        except RingdError:
            raise
        except Exception as exc:
            self._refuse(collective, cause := unreadable(exc), call)
            raise cause from exc

    def _collecting(self) -> Batch | None:
        """The open ``coalesce`` block of whoever calls."""
        batch = self._batch
        return batch if batch is not None and batch.is_callers() else None

    @abstractmethod
    def _post(self, operation: Operation[Any]) -> None:
        """Submit an operation."""

    @abstractmethod
    def _end(self, unsent: UnsentError) -> RingdError:
        """The daemon did not take a message: end everything, and say why."""

    @abstractmethod
    def _post_poison(self, packed: bytes, refusal: RingdError) -> None:
        """Submit a refused call."""

    def _status_request(self, scope: str, timeout_s: float | None) -> Operation[Any]:
        """A request that is not posted yet.

        Raises:
            InvalidArgumentError: a scope that does not exist, or a bad timeout.
        """
        if scope not in ("daemon", "group"):
            raise InvalidArgumentError(f'scope is "daemon" or "group", not {scope!r}')
        operation: Operation[Any] = Operation(f"status of the {scope}", b"")
        bound_s = STATUS_TIMEOUT_S if timeout_s is None else positive("timeout_s", timeout_s)
        operation.begin(time.monotonic(), Bound(bound_s))
        return operation

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"epoch {self.epoch}"
        group = ""
        if self.group:
            group = f" in group {self.group} (ranks {_listed(self.ranks)} of the world)"
        elif self.ranks != tuple(range(self.world_size)):
            group = f" (started as ranks {_listed(self.ranks)})"
        return f"<{type(self).__name__} rank {self.rank} of {self.world_size}{group}, {state}>"


def _listed(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:RANKS_SHOWN]))
    return f"{shown}, ..." if len(ranks) > RANKS_SHOWN else shown


def unreadable(exc: Exception) -> RingdError:
    """The error of a call one of whose arguments, most likely a tensor, raised when it was read;
    or what of its library was to be loaded for that."""
    return out_of(exc) or InvalidTensorError(
        f"an argument can't be read: {exc!r}; pass an ordinary tensor, array or number"
    )


def positive(name: str, value: float) -> float:
    """A number of seconds or milliseconds, cut to what clocks can take.

    Raises:
        InvalidArgumentError: not a positive number.
    """
    if value.__class__ in (int, float):  # nothing of it raises: what does is a signal handler's
        if is_positive(value):
            return cut(value)
    else:
        with contextlib.suppress(Exception):  # whatever the caller's object raises
            if is_positive(value):
                return cut(value)
    raise InvalidArgumentError(f"{name} is a positive number, and finite, not {value!r}")


def checked_default(default_timeout_s: float | None) -> float | None:
    """The default deadline of a communicator, as ``connect`` and ``new_group`` take it.

    Raises:
        InvalidArgumentError: not a positive number.
    """
    if default_timeout_s is None:
        return None
    return positive("default_timeout_s", default_timeout_s)


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
