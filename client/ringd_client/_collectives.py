"""Every collective, once: its signature, its contract, and how an operation comes of it.

The communicators make their methods of these functions: a blocking one that returns the
output, one that returns a handle, one to await. ``caller`` is the communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ringd_client._operation import Operation
from ringd_client._plan import Planner
from ringd_client._reductions import Op

T = TypeVar("T")
Counts = Sequence[int]


class Preparer(Protocol):
    """Who takes a call: a communicator, or the block that collects calls for one."""

    def _prepare(
        self,
        collective: str,
        plan: Callable[..., Operation[Any]],
        arguments: tuple[Any, ...],
        timeout_s: float | None,
        recv_timeout_ms: float | None,
        output: T,
    ) -> Operation[T]:
        """See :meth:`ringd_client._calls.Caller._prepare`."""


def all_reduce(
    caller: Preparer,
    tensor: T,
    op: Op = "sum",
    *,
    timeout_s: float | None = None,
    recv_timeout_ms: float | None = None,
    algorithm: str = "auto",
    deterministic: bool = False,
    preserve_input: bool = False,
) -> Operation[T]:
    """Combine the tensors of all ranks element by element, in place.

    Args:
        tensor: this rank's contribution, which becomes the result; of equal shape and dtype
            on all ranks.
        op: sum, prod, min, max, avg, band, bor, bxor, or ``premul_sum(factor)``. Not every
            dtype has every op: docs/dtypes.md has the table.
        deterministic: fold from the left in rank order, whatever size and algorithm.
        timeout_s, recv_timeout_ms, algorithm, preserve_input: see the class.

    Returns:
        ``tensor``.

    Cost: for T bytes and N ranks each sends 2T(N-1)/N, in 2(N-1) steps on a ring (Patarasuk and
    Yuan, 2009), 2 log2 N by halving and doubling (Thakur, Rabenseifner and Gropp, 2005) and 2
    with "direct"; small tensors travel whole, in one step or log2 N. One copy in and one out,
    unless the tensor is from ``empty``; ``premul_sum`` always copies.
    """
    arguments = (tensor, op, algorithm, deterministic, preserve_input)
    return caller._prepare(
        "all_reduce", Planner.all_reduce, arguments, timeout_s, recv_timeout_ms, tensor
    )


def reduce(
    caller: Preparer,
    tensor: T,
    root: int,
    op: Op = "sum",
    *,
    timeout_s: float | None = None,
    recv_timeout_ms: float | None = None,
    algorithm: str = "auto",
    deterministic: bool = False,
    preserve_input: bool = False,
) -> Operation[T]:
    """Combine the tensors of all ranks element by element, on rank ``root`` alone.

    A rank may return before the root has the result.

    Args:
        tensor: this rank's contribution; on the root it becomes the result, elsewhere it is
            only read and never changed. Of equal shape and dtype on all ranks.
        root: a rank of the group, the same on all ranks.
        op, deterministic: as for :meth:`all_reduce`.
        timeout_s, recv_timeout_ms, algorithm, preserve_input: see the class.

    Returns:
        ``tensor``.

    Cost: ceil(log2 N) steps on a binomial tree, T bytes over each of its links; large ones go
    in segments along a chain, or by "direct", where no rank sends more than T and the root
    gets T(N-1)/N twice over. Elsewhere than on the root the tensor is always copied.
    """
    arguments = (tensor, root, op, algorithm, deterministic, preserve_input)
    return caller._prepare("reduce", Planner.reduce, arguments, timeout_s, recv_timeout_ms, tensor)


def broadcast(
    caller: Preparer,
    tensor: T,
    root: int,
    *,
    timeout_s: float | None = None,
    recv_timeout_ms: float | None = None,
    algorithm: str = "auto",
    preserve_input: bool = False,
) -> Operation[T]:
    """Give every rank the tensor of rank ``root``, bit for bit.

    The root may return before the others have the data.

    Args:
        tensor: the data on the root, where it is only read; overwritten on the others. Of
            equal shape and dtype on all ranks.
        root: a rank of the group, the same on all ranks.
        timeout_s, recv_timeout_ms, algorithm, preserve_input: see the class.

    Returns:
        ``tensor``.

    Cost: ceil(log2 N) steps on a binomial tree, T bytes over each of its links; large ones go
    in segments along a chain, where no rank sends more than T.
    """
    arguments = (tensor, root, algorithm, preserve_input)
    return caller._prepare(
        "broadcast", Planner.broadcast, arguments, timeout_s, recv_timeout_ms, tensor
    )


def all_gather(
    caller: Preparer,
    output: T,
    input: Any,
    *,
    counts: Counts | None = None,
    timeout_s: float | None = None,
    recv_timeout_ms: float | None = None,
    algorithm: str = "auto",
    preserve_input: bool = False,
) -> Operation[T]:
    """Give every rank the inputs of all, in rank order, bit for bit.

    Args:
        output: one tensor with room for all parts, of shape (N, ...) or any other with as many
            elements; or a list of N tensors, one for each rank's part.
        input: this rank's part; only read. It may be its own part of ``output``. Without
            counts all have equal shapes; parts of a list may differ in their first dimension.
        counts: for uneven parts in one tensor: the rows (of the first dimension) of each
            rank's part, the same on all ranks. A list has them in its shapes.
        timeout_s, recv_timeout_ms, algorithm, preserve_input: see the class; what is
            preserved is ``output``.

    Returns:
        ``output``.

    Cost: for an output of T bytes each rank sends T(N-1)/N if parts are equal, in N-1 steps on
    a ring and one with "direct". One copy in and one out, unless ``output`` is one tensor
    from ``empty``, which takes the copy out away.
    """
    arguments = (output, input, counts, algorithm, preserve_input)
    return caller._prepare(
        "all_gather", Planner.all_gather, arguments, timeout_s, recv_timeout_ms, output
    )


def reduce_scatter(
    caller: Preparer,
    output: T,
    input: Any,
    op: Op = "sum",
    *,
    counts: Counts | None = None,
    timeout_s: float | None = None,
    recv_timeout_ms: float | None = None,
    algorithm: str = "auto",
    deterministic: bool = False,
) -> Operation[T]:
    """Combine the inputs of all ranks, and give each rank its part of the result.

    Args:
        output: where this rank's part goes.
        input: N parts in rank order, in one tensor or in a list of N; only read. It may share
            memory with ``output``.
        op, deterministic: as for :meth:`all_reduce`.
        counts: as for :meth:`all_gather`.
        timeout_s, recv_timeout_ms, algorithm: see the class.

    Returns:
        ``output``.

    Cost: for an input of T bytes each rank sends T(N-1)/N if parts are equal, in N-1 steps on
    a ring and one with "direct". The input is always copied.
    """
    arguments = (output, input, op, counts, algorithm, deterministic)
    return caller._prepare(
        "reduce_scatter", Planner.reduce_scatter, arguments, timeout_s, recv_timeout_ms, output
    )


def gather(
    caller: Preparer,
    output: T,
    input: Any,
    root: int,
    *,
    counts: Counts | None = None,
    timeout_s: float | None = None,
    recv_timeout_ms: float | None = None,
    algorithm: str = "auto",
    preserve_input: bool = False,
) -> Operation[T]:
    """Give rank ``root`` the inputs of all, in rank order, bit for bit.

    A rank may return before the root has all.

    Args:
        output: on the root as for :meth:`all_gather`; None elsewhere.
        input: this rank's part, as for :meth:`all_gather`; only read.
        root: a rank of the group, the same on all ranks.
        counts: as for :meth:`all_gather`. A list of uneven tensors has them in its shapes only
            on the root, where it is: the other ranks must pass ``counts`` too, else all get
            CollectiveMismatchError (about shape and counts).
        timeout_s, recv_timeout_ms, algorithm, preserve_input: see the class.

    Returns:
        ``output``.

    Cost: for an output of T bytes ceil(log2 N) steps on a binomial tree, whose inner nodes
    pass on what they got (scratch memory of the daemon); one with "direct", where each
    sends its own part only. The root gets T(N-1)/N.
    """
    arguments = (output, input, root, counts, algorithm, preserve_input)
    return caller._prepare("gather", Planner.gather, arguments, timeout_s, recv_timeout_ms, output)


def scatter(
    caller: Preparer,
    output: T,
    input: Any,
    root: int,
    *,
    counts: Counts | None = None,
    timeout_s: float | None = None,
    recv_timeout_ms: float | None = None,
    algorithm: str = "auto",
    preserve_input: bool = False,
) -> Operation[T]:
    """Give each rank its part of what rank ``root`` has, bit for bit.

    The root may return before the others have their parts.

    Args:
        output: where this rank's part goes; the root too has one.
        input: on the root N parts in rank order, in one tensor or in a list of N, only read;
            None elsewhere.
        root: a rank of the group, the same on all ranks.
        counts: as for :meth:`gather`: of uneven parts all ranks but a root with a list pass them.
        timeout_s, recv_timeout_ms, algorithm, preserve_input: see the class.

    Returns:
        ``output``.

    Cost: as :meth:`gather`, the other way round.
    """
    arguments = (output, input, root, counts, algorithm, preserve_input)
    return caller._prepare(
        "scatter", Planner.scatter, arguments, timeout_s, recv_timeout_ms, output
    )


def all_to_all(
    caller: Preparer,
    output: T,
    input: Any,
    *,
    output_splits: Counts | None = None,
    input_splits: Counts | None = None,
    timeout_s: float | None = None,
    recv_timeout_ms: float | None = None,
    algorithm: str = "auto",
) -> Operation[T]:
    """Send a part of the input to each rank, and get one from each, bit for bit.

    Args:
        output, input: both tensors, whose first dimension is divided between the ranks and
            whose rows have one shape; or both lists of N tensors. ``input`` is only read, and
            may share memory with ``output``.
        output_splits: the rows that come from each rank, in rank order; default: equal.
        input_splits: the rows that go to each rank. What one rank sends another must expect:
            otherwise both, and all that depend on them, raise CollectiveMismatchError.
        timeout_s, recv_timeout_ms, algorithm: see the class.

    The row shape is part of what ranks must agree on. Of lists the elements are counted, as rows
    of shape (): any shapes do, if each tensor has as many elements as the one that it meets.

    Returns:
        ``output``.

    Cost: for an input of T bytes each rank sends T(N-1)/N, in N-1 steps by pairwise exchange
    (Thakur, Rabenseifner and Gropp, 2005) and one with "direct". Always one copy in and one
    out.
    """
    arguments = (output, input, output_splits, input_splits, algorithm)
    return caller._prepare(
        "all_to_all", Planner.all_to_all, arguments, timeout_s, recv_timeout_ms, output
    )


def barrier(
    caller: Preparer,
    *,
    timeout_s: float | None = None,
    recv_timeout_ms: float | None = None,
    algorithm: str = "auto",
) -> Operation[None]:
    """Be done when every rank has come here.

    Args:
        timeout_s, recv_timeout_ms, algorithm: see the class. The error of a barrier that ran
            out of time lists the ranks that had not come.

    Cost: one step of empty messages to all, or 2 ceil(log2 N) on a tree.
    """
    return caller._prepare(
        "barrier", Planner.barrier, (algorithm,), timeout_s, recv_timeout_ms, None
    )


def agree(caller: Preparer, flag: bool, *, timeout_s: float | None = None) -> Operation[bool]:
    """Whether all ranks say yes: the same answer on every rank that gets one.

    It has a place in the order of calls, and nobody has the answer before every rank has made the
    call. So a program that keeps the work of a step only when this says True, and after an error
    when what ``reform()`` returns says so (``agreed``), keeps the same steps on all ranks.

    Args:
        flag: True or False.
        timeout_s: see the class.

    Returns:
        True if every rank has passed True.

    Cost: an all_reduce of one byte.
    """
    return caller._prepare("agree", Planner.agree, (flag,), timeout_s, None, False)
