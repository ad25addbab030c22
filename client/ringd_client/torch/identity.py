"""What torch asks of a process group beside its calls: who it is, how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ringd.errors import InvalidArgumentError, RingdError
from ringd.vocabulary import POINT_TO_POINT
from ringd_client._connection import Connection
from ringd_client._operation import Operation
from ringd_client.communicator import Communicator
from ringd_client.torch.autoload import NAME
from ringd_client.torch.errors import for_torch, leaves_place, void
from ringd_client.torch.options import Options, seconds
from ringd_client.torch.work import Pending, failed

_open: Final[set[Identity]] = set()
"""If only C++ held a group, its Python methods would be gone."""


if TYPE_CHECKING:

    class _ProcessGroup:
        """torch's, whose declared overloads no method in Python could override."""

        def __init__(self, rank: int, size: int) -> None: ...

else:
    _ProcessGroup = dist.ProcessGroup


class Identity(_ProcessGroup):
    """The part of a group that is no call.

    Args:
        comm: its communicator, which it owns.
        store: torch's, for this group.
        meeting: a part of torch's store, in which groups of this world's ranks are agreed on.
        options: of the group.
    """

    def __init__(self, comm: Communicator, store: Store, meeting: Store, options: Options) -> None:
        super().__init__(comm.rank, comm.world_size)
        self.comm = comm
        self.options = options
        self.meeting = meeting
        self._store = store
        self._connection: Connection = comm._connection
        self._name = ""
        self._desc = "undefined"
        self._collected: list[Pending] | None = None
        self._adopts = options.adopt_storages
        comm._arena.lingering.warns = True  # torch's reducer fills its buckets whatever has failed
        _open.add(self)

    # ------------------------------------------------------------ who it is

    def getBackendName(self) -> str:
        """Always "ringd"."""
        return NAME

    def name(self) -> str:
        """Always "ringd"."""
        return NAME

    def getGroupName(self) -> str:
        """As torch named it."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """For torch."""
        self._name = name

    def getGroupDesc(self) -> str:
        """As the script described it."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """For torch."""
        self._desc = desc

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def _get_backend_name(self) -> str:
        return NAME

    def get_group_store(self) -> Store:
        """torch's store, for this group."""
        return self._store

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False
    supports_tensor_alloc = supports_tensor_alloc_flag = False

    # ------------------------------------------------------------ deadlines

    @property
    def timeout_s(self) -> float:
        """The deadline of a call that does not say another."""
        return self.comm.default_timeout_s

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of later calls.

        Raises:
            InvalidArgumentError: not positive.
        """
        value = seconds(timeout)
        if value is None:
            raise for_torch(InvalidArgumentError(f"a timeout is positive, not {timeout}"))
        self.comm._default_to(value)

    _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Nothing: a deadline of ours holds for one call."""

    # ------------------------------------------------------------ coalescing

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the works of the calls that follow; they begin at once all the same."""
        self._collected = []

    def _end_coalescing(self, device: torch.device) -> Pending:
        """One work for all calls since :meth:`_start_coalescing`."""
        works, self._collected = self._collected or [], None
        operations = [operation for work in works for operation in work._operations]
        outputs = [output for work in works for output in work._outputs]

        def after() -> None:
            for work in works:
                work.wait()

        return Pending(self._connection, operations, outputs, after)

    # ------------------------------------------------------------ calls that fail at once

    def _failed(
        self,
        collectives: Sequence[str],
        error: RingdError,
        posted: Sequence[Operation[Any]] = (),
        outputs: Sequence[torch.Tensor] = (),
    ) -> Pending:
        """The work of an asynchronous call that failed before all of it was posted.

        To torch the call was made, and others follow it: DDP goes on to its next bucket. So it
        takes its place in the order, that they are not taken for it, and is void on all ranks.

        Args:
            collectives: one for each operation that was not posted.
            error: why.
            posted: the operations before these.
            outputs: of the call.
        """
        if leaves_place(error) and not POINT_TO_POINT.issuperset(collectives):
            error = void(error)
            for collective in collectives:
                self.comm._refuse(collective, error)
        operations = (*posted, failed(collectives[0], for_torch(error)))
        return self._collect(Pending(self._connection, operations, list(outputs)))

    def _collect(self, work: Pending) -> Pending:
        """The work of an asynchronous call, which is also kept if works are collected."""
        if self._collected is not None:
            self._collected.append(work)
        return work

    # ------------------------------------------------------------ the end

    def shutdown(self) -> None:
        """Wait for what is in flight, up to the deadlines, and close; once is enough."""
        _open.discard(self)
        try:
            self.comm.close()
        except RingdError as exc:
            raise for_torch(exc) from exc.__cause__

    def abort(self) -> None:
        """Close at once; what is in flight fails."""
        _open.discard(self)
        aborted = RingdError("its process group was aborted")
        self.comm.__exit__(RingdError, aborted, None)

    def split_group(self, *_: Any, **__: Any) -> NoReturn:
        """Not there.

        Raises:
            NotImplementedError: says what to call instead.
        """
        raise NotImplementedError(
            "the backend ringd has no split_group: dist.new_group(ranks) makes the same group, and "
            "costs no more"
        )

    splitGroup = split_group

    def merge_remote_group(self, *_: Any, **__: Any) -> NoReturn:
        """Not there.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "the backend ringd can't merge groups: destroy_process_group() and "
            "init_process_group() with all ranks"
        )

    mergeRemoteGroup = merge_remote_group

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """See :func:`ringd_client.torch.monitored_barrier`."""
        from ringd_client.torch.late import monitored_barrier

        monitored_barrier(self, timeout=timeout, wait_all_ranks=wait_all_ranks)
