"""The process group: each method of torch's, as a call of the client.

torch calls some of them from C++ (lists of tensors, options always given), some from Python, and
scripts call them with fewer words; names changed with torch 2.13. Each takes all of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from torch.distributed import Work

from ringd.errors import RingdError
from ringd_client import _collectives as collectives
from ringd_client import _messages as messages
from ringd_client._adoption import MIN_BYTES, consider
from ringd_client._coalesce import Batch
from ringd_client._plan import Planner
from ringd_client.torch.errors import for_torch, leaves_place
from ringd_client.torch.identity import Identity
from ringd_client.torch.methods import method
from ringd_client.torch.options import given_as, reduction, seconds
from ringd_client.torch.sparse import sparse_sum
from ringd_client.torch.tensors import all_moved, cut, moved, rows, single
from ringd_client.torch.work import Done, Pending

Tensor = torch.Tensor
Tensors = list[torch.Tensor]
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A collective, its arguments, its options."""


class RingdProcessGroup(Identity):
    """A group of ranks.

    Calls that are not asynchronous are over when they return. Outputs are written in place, past
    autograd; on failure they are untouched, unless their storage was adopted. All raise twins of
    ``ringd.errors``, which are ``DistBackendError`` too; refused arguments raise at the call,
    everything else at ``wait`` if the call is asynchronous.
    """

    # ------------------------------------------------------------ reductions

    @method("all_reduce")
    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Combine the tensors of all ranks, in place."""
        opts = given_as(AllreduceOptions, opts, timeout)
        tensor = single(tensors)
        op = reduction(opts.reduceOp)
        if tensor.is_sparse:
            sparse_sum(self, tensor, op, opts)
            return Done([tensor])
        if self._adopts and tensor.nbytes >= MIN_BYTES:
            consider(tensor, self.comm._arena)
        deterministic = self.options.deterministic
        if opts.asyncOp or self._collected is not None:
            return self._begin(
                collectives.all_reduce, seconds(opts.timeout), [tensor], tensor, op,
                deterministic=deterministic,
            )  # fmt: skip
        # As _call does, with fewer frames: what a small call costs is mostly Python.
        connection = self._connection
        timeout_s, silence_ms = seconds(opts.timeout), self.options.recv_timeout_ms
        try:
            operation = None
            if silence_ms is None:
                operation = self.comm._all_reduce_again(tensor, op, deterministic, timeout_s)
            if operation is None:
                arguments = (tensor, op, "auto", deterministic, False)
                operation = self.comm._prepare(
                    "all_reduce", Planner.all_reduce, arguments, timeout_s, silence_ms, tensor
                )
            connection.post(operation)
            connection.finish(operation)
        except RingdError as exc:
            raise for_torch(exc) from exc.__cause__
        return Done([tensor])

    @method("reduce")
    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Work:
        """Combine the tensors of all ranks on the root; elsewhere they stay as they are."""
        opts = given_as(ReduceOptions, opts if root is None else root, timeout, reduceOp=op)
        tensor = single(tensors)
        word = reduction(opts.reduceOp)
        return self._call(
            collectives.reduce, opts, [tensor], tensor, opts.rootRank, word,
            deterministic=self.options.deterministic,
        )  # fmt: skip

    @method("reduce_scatter")
    def reduce_scatter(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Combine lists of tensors, one for each rank; give each rank its own."""
        opts = given_as(ReduceScatterOptions, opts, timeout)
        output = single(outputs, "output_tensors")
        parts = inputs[0] if inputs and isinstance(inputs[0], (list, tuple)) else inputs
        op = reduction(opts.reduceOp)
        return self._reduce_scatter(output, list(parts), op, opts)

    @method("reduce_scatter")
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """The same with the parts in one tensor."""
        opts = given_as(ReduceScatterOptions, opts)
        op = reduction(opts.reduceOp)
        return self._reduce_scatter(output, input, op, opts)

    def _reduce_scatter(self, output: Tensor, input: Any, op: Any, opts: Any) -> Work:
        return self._call(
            collectives.reduce_scatter, opts, [output], output, input, op,
            deterministic=self.options.deterministic,
        )  # fmt: skip

    # ------------------------------------------------------------ moves

    @method("broadcast")
    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Give every rank the root's tensor."""
        opts = given_as(BroadcastOptions, opts, timeout)
        tensor = single(tensors)
        return self._call(collectives.broadcast, opts, [tensor], moved(tensor), opts.rootRank)

    @method("all_gather")
    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Give every rank the tensors of all, as a list."""
        opts = given_as(AllgatherOptions, opts, timeout)
        tensor = single(inputs, "input_tensors")
        parts = list(outputs[0]) if isinstance(outputs[0], (list, tuple)) else list(outputs)
        return self._call(collectives.all_gather, opts, parts, all_moved(parts), moved(tensor))

    @method("all_gather")
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """The same in one tensor."""
        opts = given_as(AllgatherOptions, opts)
        return self._call(collectives.all_gather, opts, [output], moved(output), moved(input))

    @method("gather")
    def gather(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Work:
        """Give the root the tensors of all, as a list."""
        opts = given_as(GatherOptions, opts if root is None else root, timeout)
        tensor = single(inputs, "input_tensors")
        parts = None
        if opts.rootRank == self.comm.rank:
            parts = list(single(outputs, "output_tensors"))
        output = None if parts is None else all_moved(parts)
        return self._call(
            collectives.gather, opts, parts or [], output, moved(tensor), opts.rootRank
        )

    @method("scatter")
    def scatter(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Work:
        """Give each rank its tensor of the root's list."""
        opts = given_as(ScatterOptions, opts if root is None else root, timeout)
        tensor = single(outputs, "output_tensors")
        parts = None
        if opts.rootRank == self.comm.rank:
            parts = list(single(inputs, "input_tensors"))
        source = None if parts is None else all_moved(parts)
        return self._call(collectives.scatter, opts, [tensor], moved(tensor), source, opts.rootRank)

    @method("all_to_all")
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Send rows to each rank, and get rows from each.

        Ranks compare elements, not rows, so that both tensors may have any shape.
        """
        opts = given_as(AllToAllOptions, opts, timeout)
        target, source = moved(output), moved(input)
        got = rows(output_split_sizes, target, self.comm.world_size)
        sent = rows(input_split_sizes, source, self.comm.world_size)
        if target.is_contiguous() and source.is_contiguous():
            return self._call(
                collectives.all_to_all, opts, [output], target.view(-1), source.view(-1),
                output_splits=got, input_splits=sent,
            )  # fmt: skip
        return self._call(
            collectives.all_to_all, opts, [output], cut(target, got), cut(source, sent)
        )

    @method("all_to_all")
    def alltoall(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Send a tensor to each rank, and get one from each."""
        opts = given_as(AllToAllOptions, opts, timeout)
        got, sent = all_moved(outputs), all_moved(inputs)
        return self._call(collectives.all_to_all, opts, list(outputs), got, sent)

    @method("barrier")
    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Be done when every rank has come here."""
        return self._call(collectives.barrier, given_as(BarrierOptions, opts, timeout), [])

    # ------------------------------------------------------------ several in one

    @method("all_reduce")
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        """:meth:`allreduce` of several tensors, as few operations."""
        opts = given_as(AllreduceCoalescedOptions, opts)
        op = reduction(opts.reduceOp)
        options = {"deterministic": self.options.deterministic}
        calls = [(collectives.all_reduce, (tensor, op), options) for tensor in tensors]
        return self._coalesce(calls, opts, list(tensors))

    @method("all_gather")
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """:meth:`all_gather_single` of several pairs."""
        opts = given_as(AllgatherOptions, opts)
        pairs = zip(all_moved(outputs), all_moved(inputs), strict=True)
        calls: list[Call] = [(collectives.all_gather, pair, {}) for pair in pairs]
        return self._coalesce(calls, opts, list(outputs))

    @method("reduce_scatter")
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """:meth:`reduce_scatter_single` of several pairs."""
        opts = given_as(ReduceScatterOptions, opts)
        op = reduction(opts.reduceOp)
        options = {"deterministic": self.options.deterministic}
        pairs = zip(outputs, inputs, strict=True)
        calls = [(collectives.reduce_scatter, (*pair, op), options) for pair in pairs]
        return self._coalesce(calls, opts, list(outputs))

    @method("all_gather")
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """:meth:`allgather` of several tensors; ``outputs`` is by rank, then by tensor."""
        opts = given_as(AllgatherOptions, opts)
        lists = [[moved(of_rank[i]) for of_rank in outputs] for i in range(len(inputs))]
        pairs = zip(lists, all_moved(inputs), strict=True)
        calls: list[Call] = [(collectives.all_gather, pair, {}) for pair in pairs]
        return self._coalesce(calls, opts, [t for of_rank in outputs for t in of_rank])

    # ------------------------------------------------------------ messages

    @method("send")
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """Send a tensor to one rank."""
        tensor = single(tensors)
        return self._begin(messages.send, None, [], moved(tensor), dst, tag)

    @method("recv")
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        """Receive a tensor of one rank."""
        tensor = single(tensors)
        return self._begin(messages.recv, None, [tensor], moved(tensor), src, tag)

    @method("recv", event="recvAnySource")
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receive the tensor that comes first; ``_source_rank`` of the work says whose it was."""
        tensor = single(tensors)
        return self._begin(messages.recv, None, [tensor], moved(tensor), None, tag)

    # Names before torch 2.13, and some that only Python callers use.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ------------------------------------------------------------ how a call is made

    def _call(
        self, call: Callable[..., Any], opts: Any, outputs: Tensors, *args: Any, **more: Any
    ) -> Work:
        """Make a call; wait for it here unless it is asynchronous."""
        if opts.asyncOp or self._collected is not None:
            return self._begin(call, seconds(opts.timeout), outputs, *args, **more)
        connection = self._connection
        try:
            operation = call(
                self.comm, *args, timeout_s=seconds(opts.timeout),
                recv_timeout_ms=self.options.recv_timeout_ms, **more,
            )  # fmt: skip
            connection.post(operation)
            connection.finish(operation)
        except RingdError as exc:
            raise for_torch(exc) from exc.__cause__
        return Done(outputs)

    def _begin(
        self,
        call: Callable[..., Any],
        timeout_s: float | None,
        outputs: Tensors,
        *args: Any,
        **more: Any,
    ) -> Pending:
        """Make a call that somebody will wait for, or nobody."""
        try:
            operation = call(
                self.comm, *args, timeout_s=timeout_s,
                recv_timeout_ms=self.options.recv_timeout_ms, **more,
            )  # fmt: skip
            operation.detached = True
            self._connection.post(operation)
        except RingdError as exc:
            raise for_torch(exc) from exc.__cause__
        return self._collect(Pending(self._connection, (operation,), outputs))

    def _coalesce(self, calls: Sequence[Call], opts: Any, outputs: Tensors) -> Work:
        """Make several calls as few operations."""
        comm = self.comm
        timeout_s = seconds(opts.timeout)
        silence_ms = self.options.recv_timeout_ms
        batch = None
        try:
            batch = Batch.open(comm, threading.get_ident)
            try:
                for call, args, more in calls:
                    call(batch, *args, timeout_s=timeout_s, recv_timeout_ms=silence_ms, **more)
            except BaseException:
                batch.abandon()
                raise
            operations = batch.operations()
            if not opts.asyncOp:
                comm._finish_all(operations)
                return Done(outputs)
        except RingdError as exc:
            if batch is not None and opts.asyncOp and leaves_place(exc):
                return self._failed(batch.collectives(calls[0][0].__name__), exc)
            raise for_torch(exc) from exc.__cause__
        for operation in operations:
            operation.detached = True
            operation.output = None
        posted, failure = comm._post_all(operations)
        if failure is not None:
            specs: list[Any] = [operation.spec for operation in operations[len(posted) :]]
            unposted = [spec.collective for spec in specs]
            return self._failed(unposted, failure, posted, outputs)
        return Pending(self._connection, posted, outputs)
