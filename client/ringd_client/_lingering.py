"""Memory of the caller's that the daemon may still use, though the call has ended here.

A call that works in the caller's own memory and ends by the client's clock leaves its region with
the daemon, which may be late and not dead. Until it has answered, another call on that memory
would read what is half written, or be overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from ringd.errors import MemoryInUseError
from ringd_client._operation import NOT_POSTED
from ringd_client._parts import Parts
from ringd_client._tensors import adapter_of

MAX_UNWARNED: Final = 64
"""Of so many tensors it is remembered that their next call is to be refused."""


class User(Protocol):
    """The operation whose region the tensor is.

    Attributes:
        answered: the daemon has released it.
        in_place: the daemon may write to it; else it only reads.
    """

    answered: bool
    in_place: bool


class Lent(NamedTuple):
    """Where a tensor lies, from ``start`` to before ``end``, and who uses it."""

    start: int
    end: int
    user: User


class Lingering(dict[object, Lent]):
    """What is still lent, by the settlement that gives it back. Any thread may add and take out.

    A call asks for its truth, and goes on when there is nothing.

    Args:
        catch_up: takes in what the daemon has sent, without waiting.

    Attributes:
        warns: callers may fill a tensor before they know that the daemon is done with it, as
            torch's reducer does; so the first call after that is refused too, which says it.
    """

    def __init__(self, catch_up: Callable[[], object]) -> None:
        super().__init__()
        self.catch_up = catch_up
        self.warns = False
        self._unwarned: set[tuple[int, int]] = set()

    def __bool__(self) -> bool:
        return bool(len(self) or self._unwarned)

    def lend(self, settlement: object, tensor: Any, user: User) -> None:
        """The daemon has a tensor until ``user`` is answered, which ``settlement`` then settles."""
        lent = Lent(*adapter_of(tensor).extent(tensor), user)
        self[settlement] = lent
        if self.warns and user.in_place:
            if len(self._unwarned) >= MAX_UNWARNED:
                self._unwarned.pop()
            self._unwarned.add((lent.start, lent.end))

    def check(self, spec: object, source: Any, output: Any) -> None:
        """Whether a call may use its tensors; to be asked while there is anything.

        Args:
            spec: of the call, for the message.
            source, output: tensors or :class:`Parts`; None: there is none.

        Raises:
            MemoryInUseError: the daemon may write where the call reads, or use what it writes.
        """
        self.catch_up()
        for settlement, lent in self.copy().items():
            written = lent.user.in_place
            if lent.user.answered:
                self.pop(settlement, None)  # who was to do it was interrupted, or does it just now
            elif written and _meets(lent.start, lent.end, source):
                raise _in_use(spec, "input", "write to")
            elif _meets(lent.start, lent.end, output):
                raise _in_use(spec, "output", "write to" if written else "read")
        for start, end in self._unwarned.copy():
            if _meets(start, end, source):
                self._unwarned.discard((start, end))
                raise _overwritten(spec)


def _meets(lent_start: int, lent_end: int, value: Any) -> bool:
    if value is None:
        return False
    for tensor in value.tensors if isinstance(value, Parts) else (value,):
        start, end = adapter_of(tensor).extent(tensor)
        if start < lent_end and lent_start < end:
            return True
    return False


def _overwritten(spec: object) -> MemoryInUseError:
    return MemoryInUseError(
        f"{spec}: the daemon wrote to the memory of the input after an earlier call on it "
        "had ended here, and is done with it now; what was put there meanwhile may be lost. Put "
        f"it there anew, then make this call again {NOT_POSTED}; or use other memory",
        argument="input",
    )


def _in_use(spec: object, argument: str, does: str) -> MemoryInUseError:
    return MemoryInUseError(
        f"{spec}: the daemon may still {does} the memory of the {argument}: an earlier call on it "
        "ended here before the daemon had answered. Wait until it answers, then make this call "
        f"again {NOT_POSTED}; or use other memory",
        argument=argument,
    )
