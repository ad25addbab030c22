"""Tensors of a GPU: copied into the arena for a call, and results copied back.

A call reads its inputs when it is made. Copies run on the stream that was current then, so they
come after what was queued there before, and the host waits for each: results are in place, for all
streams, when the call has been waited for. If it fails, nothing was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Final

import torch
from torch._C._distributed_c10d import AllreduceOptions
from torch.distributed import Work

from ringd_client import _collectives as collectives
from ringd_client import _messages as messages
from ringd_client._tensors import adapter_of
from ringd_client.communicator import Communicator
from ringd_client.torch.methods import leave_alone, method
from ringd_client.torch.options import given_as, reduction
from ringd_client.torch.process_group import Call, RingdProcessGroup, Tensors
from ringd_client.torch.tensors import single
from ringd_client.torch.work import Pending

DEVICES: Final = ("cpu", "cuda")
"""What a staged group takes; torch calls AMD's GPUs "cuda" too."""


def is_remote(tensor: torch.Tensor) -> bool:
    """Whether its elements lie where the daemon can't reach them."""
    return tensor.is_cuda and tensor.layout is torch.strided


def stream_of(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """A block whose copies to and from a remote tensor run on the stream that is current now."""
    return torch.cuda.stream(torch.cuda.current_stream(tensor.device))


def any_remote(values: Any) -> bool:
    """Whether a tensor among these, or in the lists among them, is remote."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if is_remote(value):
                return True
        elif isinstance(value, (list, tuple)) and any_remote(value):
            return True
    return False


class StagedProcessGroup(RingdProcessGroup):
    """A group that takes tensors of GPUs as well: the class wherever torch could have such."""

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in DEVICES]

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """As ever; what lies here takes the short way of the base class."""
        if any_remote(tensors):
            return self._staged_all_reduce(tensors, opts, timeout)
        return super().allreduce(tensors, opts, timeout)

    leave_alone(allreduce.__code__)

    @method("all_reduce")
    def _staged_all_reduce(self, tensors: Any, opts: Any, timeout: timedelta | None) -> Work:
        opts = given_as(AllreduceOptions, opts, timeout)
        tensor = single(tensors)
        return self._call(
            collectives.all_reduce, opts, [tensor], tensor, reduction(opts.reduceOp),
            deterministic=self.options.deterministic,
        )  # fmt: skip

    def _call(
        self, call: Callable[..., Any], opts: Any, outputs: Tensors, *args: Any, **more: Any
    ) -> Work:
        if not any_remote(args):
            return super()._call(call, opts, outputs, *args, **more)
        staging = Staging(self.comm)
        args = staging.arguments(call, args)
        return staging.give_back_after(super()._call(call, opts, outputs, *args, **more))

    def _begin(
        self,
        call: Callable[..., Any],
        timeout_s: float | None,
        outputs: Tensors,
        *args: Any,
        **more: Any,
    ) -> Pending:
        if not any_remote(args):
            return super()._begin(call, timeout_s, outputs, *args, **more)
        staging = Staging(self.comm)
        args = staging.arguments(call, args)
        work = super()._begin(call, timeout_s, outputs, *args, **more)
        staging.give_back_after(work)
        return work

    def _coalesce(self, calls: Sequence[Call], opts: Any, outputs: Tensors) -> Work:
        staging = Staging(self.comm)
        calls = [(call, staging.arguments(call, args), more) for call, args, more in calls]
        return staging.give_back_after(super()._coalesce(calls, opts, outputs))


class Staging:
    """The remote tensors of a call, and what stands for them in the arena."""

    __slots__ = ("_comm", "_results")

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._results: list[
            tuple[torch.Tensor, torch.Tensor, AbstractContextManager[Any], bool]
        ] = []

    def arguments(self, call: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments of a call of the client, with tensors that the daemon can reach.

        Raises:
            UnsupportedTypeError: a dtype that ringd has not.
            InvalidTensorError: an output can't be written to.
            ArenaFullError: there is no room.
        """
        if not args:
            return ()
        reads, writes = _directions(call, args, self._comm.rank)
        first = self._reachable(args[0], reads, writes)
        return (first, *(self._reachable(value, True, False) for value in args[1:]))

    def give_back_after(self, work: Work) -> Work:
        """Have results copied back at the end of a call, if there are any; returns its work."""
        if self._results:
            if isinstance(work, Pending):
                work.and_then(self._give_back)
            else:
                self._give_back()
        return work

    def _reachable(self, value: Any, reads: bool, writes: bool) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._reachable(part, reads, writes) for part in value]
        if not isinstance(value, torch.Tensor) or not is_remote(value):
            return value
        adapter = adapter_of(value)
        if writes:
            adapter.check_output(value)
        here: torch.Tensor = self._comm.empty(tuple(value.shape), value.dtype)
        with torch.no_grad():
            if reads:
                here.copy_(value.detach())
        if writes:
            self._results.append((value, here, stream_of(value), value.is_inference()))
        return here

    def _give_back(self) -> None:
        for tensor, here, stream, is_inference in self._results:
            # By .data, so that autograd does not take what it has saved for changed: as on the CPU.
            with torch.inference_mode(is_inference), torch.no_grad(), stream:
                tensor.data.copy_(here)
        self._results = []


def _directions(call: Callable[..., Any], args: Sequence[Any], rank: int) -> tuple[bool, bool]:
    """Whether a call reads its first argument, and whether it writes there; others it reads."""
    if call is collectives.reduce:
        return True, args[1] == rank
    if call is collectives.broadcast:
        return args[1] == rank, args[1] != rank
    is_send = call is messages.send
    return is_send or call is collectives.all_reduce, not is_send
