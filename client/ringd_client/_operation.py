"""One request to the daemon, from its submission until its memory is free again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

from ringd.errors import RingdError
from ringd.wire.bounds import Bound
from ringd_client._environment import out_of
from ringd_client._locks import OwnedLock, is_mine, reentrant

T = TypeVar("T")

GRACE_S: Final = 0.24
"""How long after a deadline the client goes on trusting its daemon to end the operation: what is
left of the 250 ms that a call may outlive its deadline is for itself, to notice and to raise."""
NO_BOUND: Final = Bound(0.0)
"""Of an operation that has not begun."""


NOT_POSTED: Final = "(it was not posted)"
"""In the text of an error: the call has no place in the order, and may be made again."""
UNDEFINED: Final = (
    ". This call worked in the caller's own memory, in shared memory: the tensor's contents are "
    "undefined now; restore it before you call again"
)
NOT_YOURS: Final = (
    ". This call works in the caller's own memory, in shared memory, and the daemon may still "
    "write to it: the tensor is not yours until the daemon answers (calls on it raise "
    "MemoryInUseError until then), and its contents are undefined"
)
STILL_READ: Final = (
    ". The daemon may still read the tensor, which is in shared memory: do not write to it before "
    "the daemon answers"
)


class UnsentError(Exception):
    """A message could not be sent; the text says why, the cause is the socket's error if any.

    It never leaves the package: whoever catches it outside of all locks ends the conversation.
    """


class Settlement(Protocol):
    """What is left to do when the daemon has released an operation's region."""

    @property
    def result_bytes(self) -> int:
        """How much :meth:`settle` may have to write."""

    def linger(self, operation: Operation[Any]) -> bool:
        """The call ends before the daemon has released the region.

        Args:
            operation: whose settlement this is.

        Returns:
            Whether the region is a tensor of the caller's, which is to be used by no other call
            before :meth:`settle`.
        """

    def settle(self, write: bool) -> None:
        """Write the result to the caller's tensor if ``write``; give the memory back."""


class Operation(Generic[T]):
    """One request to the daemon, from its submission until its memory is free again.

    Three things end one after another, and the first two may come in either order:

    - *answered*: the daemon has released the region, and said how the operation ended;
    - *finished*: the caller may see the outcome (``error`` or a written result);
    - *released*: the region's memory is the arena's again.

    An operation whose deadline passed without an answer is finished but not released.

    Attributes:
        spec: what was asked, for messages.
        packed: the same as the daemon wants it.
        segment, offset: where the working region is.
        local: what the daemon is told beside the spec, and other ranks need not say alike.
        output: what a wait returns: the caller's tensor; of a receive, the sender's rank.
        began, expires: when the call began, and when the client itself gives up (monotonic).
        request: its number, which the answer has; 0: it was not posted.
        bound: the call's deadline, as it was asked for.
        recv_timeout_s: its bound of a peer's silence; 0 when it is off.
        epoch: the one it was prepared for.
        in_place: the daemon writes to the caller's own tensor; errors say so.
        loaded: it holds the input already, which was copied there before the call was posted.
        reply: the answer to a status request.
        error: how it failed, once finished; None: it did not.
        sent: the daemon may know of it.
        detached: nobody is bound to wait for it; a progress thread may have to end it.
    """

    __slots__ = (
        "answer",
        "answered",
        "began",
        "bound",
        "detached",
        "epoch",
        "error",
        "expires",
        "finished",
        "in_place",
        "loaded",
        "local",
        "lock",
        "offset",
        "output",
        "packed",
        "recv_timeout_s",
        "released",
        "reply",
        "request",
        "segment",
        "sent",
        "settlement",
        "spec",
        "watcher",
    )

    def __init__(
        self,
        spec: object,
        packed: bytes,
        segment: int = 0,
        offset: int = 0,
        settlement: Settlement | None = None,
    ) -> None:
        self.spec = spec
        self.packed = packed
        self.segment = segment
        self.offset = offset
        self.settlement = settlement
        self.local: Any = None
        self.output: T
        self.request = 0
        self.epoch = 0
        self.began = 0.0
        self.bound = NO_BOUND
        self.recv_timeout_s = 0.0
        self.expires = 0.0
        self.answer: RingdError | None = None
        self.reply: Any = None
        self.error: RingdError | None = None
        self.answered = False
        self.finished = False
        self.released = False
        self.detached = False
        self.sent = False
        self.in_place = False
        self.loaded = False
        self.lock = OwnedLock()
        self.watcher: Callable[[], object] | None = None

    def begin(self, began: float, bound: Bound, recv_timeout_s: float = 0.0) -> None:
        """Fix the bounds of the call, before it is posted."""
        self.began = began
        self.bound = bound
        self.recv_timeout_s = recv_timeout_s
        self.expires = began + bound.timeout_s + GRACE_S

    @property
    def timeout_s(self) -> float:
        """The call's deadline, from when it began."""
        return self.bound.timeout_s

    @property
    def group(self) -> int:
        """The number of the group it is for; 0: the world, or none."""
        return getattr(self.spec, "group", 0)

    @property
    def over(self) -> bool:
        """There is nothing to wait for any more; :meth:`settle` comes next."""
        return self.answered or self.finished

    def when_finished(self, watcher: Callable[[], object]) -> None:
        """Have ``watcher`` called once it is finished, or now; by any thread, so it is to be short.

        One watcher at most.
        """
        with self.lock:
            if not self.finished:
                self.watcher = watcher
                return
        watcher()

    def settle(self) -> None:
        """After the answer: write the result, free the memory, show the outcome. Once.

        Raises:
            ReentrantCallError: this thread was interrupted in the middle of it.
        """
        if is_mine(self.lock):
            raise reentrant()
        with self.lock:
            self._settle()

    def settle_unless_busy(self, *, wait: bool) -> bool:
        """:meth:`settle`, unless a thread is in the middle of a step that it will end with that.

        This thread itself may be, if a signal handler has interrupted it there.

        Args:
            wait: for other threads. Who is waited for by another thread is not to: that one may
                have interrupted such a step.

        Returns:
            False: one is.
        """
        if is_mine(self.lock) or not self.lock.acquire(blocking=wait):
            return False
        try:
            self._settle()
        finally:
            self.lock.release()
        return True

    def _settle(self) -> None:
        if self.released:
            return
        self.released = True
        error = self.answer
        if self.settlement is not None:
            try:
                self.settlement.settle(error is None and not self.finished)
            except RingdError as exc:
                error = exc
            except Exception as exc:
                error = out_of(exc) or RingdError(
                    f"{self.spec}: the result could not be written: {exc!r}"
                )
            except BaseException:
                self._finish(RingdError(f"{self.spec}: interrupted while the result was written"))
                raise
        if error is not None:
            error = self._marked(error)
        if not self.finished:  # no call between: a signal handler may raise at its door
            self.error = error
            self.finished = True
            if self.watcher is not None:
                self.watcher()

    def withdraw(self, error: RingdError) -> None:
        """End an operation that was not posted: the daemon never had its region."""
        self.in_place = self.in_place and self.loaded
        self.answer = error
        self.answered = True
        self.settle()

    def give_up(self, error: RingdError) -> bool:
        """Finish without an answer: the result will not be written. False: it was too late."""
        with self.lock:
            if self.finished:
                return False
            is_callers = self._lingers()
            if is_callers and not self.in_place:
                error = _noted(error, STILL_READ)
            self._finish(error)
        if self.answered:
            self.settle()
        return True

    def _finish(self, error: RingdError) -> None:
        if not self.finished:
            self.error = self._marked(error)
            self.finished = True
            if self.watcher is not None:
                self.watcher()

    def _marked(self, error: RingdError) -> RingdError:
        """The error, with what it means for the caller's tensor."""
        if not self.in_place or (error.fields.get("in_place") is False and not self.loaded):
            return error
        return _noted(error, UNDEFINED if self.answered else NOT_YOURS, in_place=True)

    def _lingers(self) -> bool:
        """Whether the daemon goes on to use the caller's own memory; others are told if so."""
        if not self.request or self.answered or self.settlement is None:
            return False  # it was not posted, or has been released
        return self.settlement.linger(self)


def _noted(error: RingdError, note: str, **fields: Any) -> RingdError:
    noted = type(error)(error.message.rstrip(".") + note + ".", **{**error.fields, **fields})
    noted.__cause__ = error.__cause__
    return noted


class Question(Operation[Any]):
    """A request that is no call of the group: it has no place in the order of calls.

    Args:
        text: for messages.
        kind, body: what the daemon is sent, beside the number of the request.
        ends_epoch: from when it is posted on, no call of the epoch may begin.
    """

    __slots__ = ("body", "ends_epoch", "kind")

    def __init__(self, text: str, kind: int, *body: Any, ends_epoch: bool = False) -> None:
        super().__init__(text, b"")
        self.kind = kind
        self.body = body
        self.ends_epoch = ends_epoch


def cut_short(cause: BaseException) -> RingdError:
    """The error of an operation whose caller left it for what was raised under its feet."""
    if isinstance(cause, RingdError):
        return cause
    lack = out_of(cause) if isinstance(cause, MemoryError) else None
    return lack or RingdError("its caller was interrupted")


def withdraw(operations: Iterable[Operation[Any]], error: RingdError) -> None:
    """End operations that were not posted."""
    for operation in operations:
        operation.withdraw(error)
