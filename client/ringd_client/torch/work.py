"""What a call gives torch: something to wait for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias

import torch
from torch.distributed import Work

from ringd.errors import RingdError
from ringd_client._connection import Connection
from ringd_client._handle import Handle
from ringd_client._operation import Operation
from ringd_client.torch.errors import for_torch
from ringd_client.torch.pool import POOL
from ringd_client.torch.profiling import Recording

Tensors: TypeAlias = "list[Any]"
Future: TypeAlias = "torch.futures.Future[Any]"
NO_LIMIT: Final = timedelta(0)
UNAWAITED: Final = 64
"""How many works that nobody waited for stay alive; see Pending."""

_unawaited: Final[deque[Work]] = deque(maxlen=UNAWAITED)


def _value(future: Future) -> Any:
    return future.value()


class Done(Work):
    """A call that was over when it returned."""

    def __init__(self, outputs: Tensors) -> None:
        Work.__init__(self)
        self._outputs = outputs

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Return at once."""
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def is_completed(self) -> bool:
        """It is."""
        return True

    def is_success(self) -> bool:
        """It was; a call that failed raised."""
        return True

    def exception(self) -> None:
        """There is none."""

    def result(self) -> Tensors:
        """The output tensors."""
        return self._outputs

    def get_future(self) -> Future:
        """A future that is completed."""
        future: Future = torch.futures.Future()
        future.set_result(self._outputs)
        return future

    def recorded_by(self, recording: Recording) -> None:
        """End the event of this call in the profiler."""
        recording.end()


class Pending(Work):
    """Operations on their way, seen as one.

    Any thread may wait, and more than once. Dropping it changes nothing. If C++ still has it then,
    as DDP does within ``join``, C++ could find the methods here no more, and would wait forever; so
    the last UNAWAITED that nobody has waited for live on.

    Args:
        connection: on which they were posted.
        operations: in the order of the calls.
        outputs: the tensors that ``result`` and the future give.
        after: what is left to do when all have succeeded, once, before anybody sees the end.
    """

    def __init__(
        self,
        connection: Connection,
        operations: Sequence[Operation[Any]],
        outputs: Tensors,
        after: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._operations = operations
        self._outputs = outputs
        self._future: Future | None = None
        self._after = _once(after) if after is not None else None
        self._recording: Recording | None = None
        self._awaited = False

    def __del__(self, unawaited: deque[Work] = _unawaited) -> None:
        if not self._awaited:
            unawaited.append(self)

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Wait until all are over; results are in the output tensors then.

        Args:
            timeout: how long at most; 0: until the deadlines of the calls.

        Returns:
            True.

        Raises:
            CollectiveTimeoutError: the wait expired, the operations go on; or a deadline passed.
            RingdError: how the first one failed, each time this is called.
        """
        self._awaited = True
        try:
            _finish(self._connection, self._operations, timeout)
        except RingdError as exc:
            raise for_torch(exc) from exc.__cause__
        if self._recording is not None:
            self._recording.end()
        if self._after is not None:
            self._after()
        return True

    def synchronize(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether all are over, well or not. It reads what has come, so polling it is enough."""
        handles = (Handle(self._connection, operation) for operation in self._operations)
        if not all(handle.done() for handle in handles):
            return False
        self._awaited = True
        if self._after is not None and self._error() is None:
            self._after()
        return True

    def is_success(self) -> bool:
        """Whether all are over and none failed."""
        return self.is_completed() and self._error() is None

    def exception(self) -> RingdError | None:
        """How the first that failed did."""
        error = self._error()
        return None if error is None else for_torch(error)

    def result(self) -> Tensors:
        """The output tensors."""
        return self._outputs

    def get_future(self) -> Future:
        """A future of the output tensors, always the same one.

        Its callbacks run on a thread of ours and may wait for other operations.
        """
        self._awaited = True
        if self._future is None:
            base: Future = torch.futures.Future()
            # An exception that is set in Python is unknown to C++ until a callback raises it.
            self._future = base.then(_value)
            completion = _Completion(self, base)
            if all(operation.finished for operation in self._operations):
                completion.complete()  # C++ takes the value at once after its wait
            else:
                completion.watch(self._operations)
                self._connection.hasten()
        return self._future

    def and_then(self, after: Callable[[], None]) -> None:
        """Set what is left to do when all have succeeded; before anybody waits."""
        self._after = _once(after)

    def recorded_by(self, recording: Recording) -> None:
        """End the event of this call in the profiler when the last operation has finished."""
        self._recording = recording
        if self._operations:
            self._operations[-1].when_finished(recording.end)

    def source_rank(self) -> int:
        """Who sent what was received, as a rank of the group."""
        self.wait()
        return int(self._operations[0].output)

    _source_rank = source_rank

    def _error(self) -> RingdError | None:
        errors = (operation.error for operation in self._operations)
        return next((error for error in errors if error is not None), None)


def failed(collective: str, error: RingdError) -> Operation[Any]:
    """An operation that was not posted: it is over, and each wait for it raises the error."""
    operation: Operation[Any] = Operation(collective, b"")
    operation.withdraw(error)
    return operation


class _Completion:
    """Completes a future when the last of some operations has finished."""

    def __init__(self, work: Pending, future: Future) -> None:
        self._work = work
        self._future = future
        self._lock = threading.Lock()
        self._left = 0

    def watch(self, operations: Sequence[Operation[Any]]) -> None:
        """Wait for them, at least one, on no thread."""
        self._left = len(operations)
        for operation in operations:
            operation.when_finished(self._one_less)

    def _one_less(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            POOL.run(self.complete)

    def complete(self) -> None:
        """Wait for the work, and complete the future."""
        try:
            self._work.wait()
        except Exception as exc:
            self._future.set_exception(exc)
        else:
            self._future.set_result(self._work.result())


def _finish(
    connection: Connection, operations: Sequence[Operation[Any]], timeout: timedelta
) -> None:
    if not timeout or timeout < NO_LIMIT:
        for operation in operations:
            Handle(connection, operation).wait()
        return
    until = time.monotonic() + timeout.total_seconds()
    for operation in operations:
        Handle(connection, operation).wait(max(until - time.monotonic(), 0.0))


def _once(work: Callable[[], None]) -> Callable[[], None]:
    """``work``, done by the first call; later and simultaneous ones see it done."""
    lock = threading.Lock()
    left = [work]

    def run() -> None:
        with lock:
            if left:
                left[0]()
                left.clear()

    return run
