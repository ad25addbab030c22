"""Which message goes to which receive: by source and tag, first in, first out.

A receive from any source stands in one queue of its tag, beside those that name a source. A
message stands in two: its source's, and that of any source. So each look-up is one step, however
many wait.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import Generic, Protocol, TypeVar

from ringd.vocabulary import ANY_SOURCE


class Waiter(Protocol):
    """What waits here."""

    order: int
    """Its place among all of its kind."""


T = TypeVar("T", bound=Waiter)


class Queues(Generic[T]):
    """Waiters by source and tag, each queue in the order of arrival; empty ones are dropped."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int], OrderedDict[int, T]] = {}

    def add(self, waiter: T, source: int, tag: int) -> None:
        """Put ``waiter`` in its place: the end, unless it comes back."""
        queue = self._queues.setdefault((source, tag), OrderedDict())
        comes_back = bool(queue) and next(reversed(queue)) > waiter.order
        queue[waiter.order] = waiter
        if comes_back:
            for order in sorted(queue):
                queue.move_to_end(order)

    def first(self, source: int, tag: int) -> T | None:
        """The one that waits longest."""
        queue = self._queues.get((source, tag))
        return None if queue is None else next(iter(queue.values()))

    def remove(self, waiter: T, source: int, tag: int) -> None:
        """Take ``waiter`` out, wherever it stands."""
        queue = self._queues[source, tag]
        del queue[waiter.order]
        if not queue:
            del self._queues[source, tag]

    def tags_of(self, source: int) -> list[int]:
        """The tags with which something of this source waits, in ascending order."""
        return sorted(tag for of, tag in self._queues if of == source)


class Receive(Waiter, Protocol):
    """A receive that waits for a message."""

    peer: int
    """The rank of the world that it names, or ANY_SOURCE."""
    tag: int
    waits: bool


class Message(Waiter, Protocol):
    """A message that waits for a receive."""

    source: int
    tag: int


R = TypeVar("R", bound=Receive)
M = TypeVar("M", bound=Message)


class Matching(Generic[R, M]):
    """The receives and messages of one group that wait for each other; never two that fit."""

    def __init__(self) -> None:
        self._count = count()
        self._receives: Queues[R] = Queues()
        self._messages: Queues[M] = Queues()

    def receive_for(self, source: int, tag: int) -> R | None:
        """Take out the first receive that a message of ``source`` with ``tag`` fits."""
        named = self._receives.first(source, tag)
        open_to_any = self._receives.first(ANY_SOURCE, tag)
        found = named
        if named is None or (open_to_any is not None and open_to_any.order < named.order):
            found = open_to_any
        if found is not None:
            self.drop_receive(found)
        return found

    def message_for(self, source: int, tag: int) -> M | None:
        """Take out the first message that a receive from ``source`` (ANY_SOURCE: any) fits."""
        found = self._messages.first(source, tag)
        if found is not None:
            self.drop_message(found)
        return found

    def next_place(self) -> int:
        """The order of what is posted, or has come, now."""
        return next(self._count)

    def add_receive(self, receive: R) -> None:
        """No message that is here fits it."""
        receive.waits = True
        self._receives.add(receive, receive.peer, receive.tag)

    def add_message(self, message: M) -> None:
        """No receive that is here fits it."""
        message.order = self.next_place()
        self._messages.add(message, message.source, message.tag)
        self._messages.add(message, ANY_SOURCE, message.tag)

    def drop_receive(self, receive: R) -> None:
        """It waits no more."""
        self._receives.remove(receive, receive.peer, receive.tag)
        receive.waits = False

    def drop_message(self, message: M) -> None:
        """It waits no more."""
        self._messages.remove(message, message.source, message.tag)
        self._messages.remove(message, ANY_SOURCE, message.tag)

    def tags_from(self, source: int) -> list[int]:
        """The tags of the messages from ``source`` (ANY_SOURCE: of all) that wait."""
        return self._messages.tags_of(source)
