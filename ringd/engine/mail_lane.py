"""What passes between this rank and one peer in one group: numbers, in order, and allowances.

A sender counts its small messages until the peer says that it has received them; the receiver
counts the same, from what it has said. So it knows to the byte how far a peer may go.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from ringd.engine.run_ahead import RUN_AHEAD_OPERATIONS, Budget
from ringd.wire.frame import FrameError

if TYPE_CHECKING:
    from ringd.engine.message import Arrival, Recv, Send

MAX_UNTAKEN_MESSAGES = RUN_AHEAD_OPERATIONS
"""How many small messages may wait at a peer; more are offered, and wait at home."""
OFFERS_FACTOR = 4
"""How many times the bound of operations in flight a peer may offer us."""
MAX_TAGS = 64
"""Of so many messages that were sent last, and received last, the tags are known."""
TELL_AT = 4
"""A receiver tells what it has received each time that it is one part in so many of the bound."""


class Lane:
    """Both directions between us and one peer in one group.

    Args:
        budget: what all groups together have sent whole and the peer has not received.
        eager_bytes: the largest MESSAGE; one alone may always go.
        max_in_flight: operations that a rank may have in flight.

    Attributes:
        waiting: sends that wait for a link, in order.
        offers: our sends that were offered and have not ended, by number.
        offered: the peer's offers that no receive has taken yet, by number.
        incoming: receives that took an offer of the peer's, by number.
    """

    __slots__ = (
        "_budget",
        "_eager_bytes",
        "_last_received",
        "_last_sent",
        "_max_offered",
        "_peer_used",
        "_told",
        "_whole_got",
        "_whole_sent",
        "_whole_used",
        "got",
        "incoming",
        "offered",
        "offers",
        "sent",
        "waiting",
    )

    def __init__(self, budget: Budget, *, eager_bytes: int, max_in_flight: int) -> None:
        self._budget = budget
        self._eager_bytes = eager_bytes
        self._max_offered = OFFERS_FACTOR * max_in_flight
        self.waiting: dict[Send, None] = {}
        self.offers: dict[int, Send] = {}
        self.offered: dict[int, Arrival] = {}
        self.incoming: dict[int, Recv] = {}
        # When the call was made, too; of those received also the number.
        self._last_sent: deque[tuple[int, float]] = deque(maxlen=MAX_TAGS)
        self._last_received: deque[tuple[int, int, float]] = deque(maxlen=MAX_TAGS)
        self.sent = 0  # messages of both kinds: the number of the next
        self.got = 0
        # Of what travelled as MESSAGE, in all: (messages, bytes).
        self._whole_sent = self._peer_used = (0, 0)
        self._whole_got = self._whole_used = self._told = (0, 0)

    # Sending

    def number(self, tag: int, made_at: float) -> int:
        """The number of the message that is sent now."""
        self._last_sent.append((tag, made_at))
        self.sent += 1
        return self.sent - 1

    def sent_since(self, count: int, tag: int) -> float | None:
        """When the first message with this tag after the first ``count`` was made; None: there is
        none; -inf: too long ago to know."""
        n_since = self.sent - count
        if n_since > MAX_TAGS:
            return -math.inf
        since = list(self._last_sent)[-n_since:] if n_since > 0 else []
        return next((at for one, at in since if one == tag), None)

    def may_send_whole(self, size_bytes: int) -> bool:
        """Whether a message may travel without being asked for; if so it is counted."""
        budget = self._budget
        if size_bytes > self._eager_bytes or budget.operations >= MAX_UNTAKEN_MESSAGES:
            return False
        if budget.parked_bytes and budget.parked_bytes + size_bytes > budget.limit_bytes:
            return False
        budget.operations += 1
        budget.parked_bytes += size_bytes
        self._whole_sent = (self._whole_sent[0] + 1, self._whole_sent[1] + size_bytes)
        return True

    def peer_used(self, messages: int, size_bytes: int) -> None:
        """The peer says how much it has received, in all.

        Raises:
            FrameError: less than before, or more than was sent.
        """
        before, sent = self._peer_used, self._whole_sent
        if not (before[0] <= messages <= sent[0] and before[1] <= size_bytes <= sent[1]):
            raise FrameError(
                f"{messages} messages of {size_bytes} bytes can't have been received: {sent[0]} of "
                f"{sent[1]} were sent, {before[0]} of {before[1]} were received before"
            )
        self._budget.operations -= messages - before[0]
        self._budget.parked_bytes -= size_bytes - before[1]
        self._peer_used = (messages, size_bytes)

    def give_back(self) -> None:
        """The group is freed here: what it has sent does not weigh on the others."""
        self.peer_used(*self._whole_sent)

    # Receiving

    def came(self, number: int) -> None:
        """The peer's next message is here, or its offer.

        Raises:
            FrameError: it is not the next.
        """
        if number != self.got:
            raise FrameError(f"message {number} follows message {self.got - 1}")
        self.got = number + 1

    def received(self, number: int, tag: int, made_at: float) -> None:
        """A receive of ours has all of a message of the peer's."""
        self._last_received.append((number, tag, made_at))

    def received_at(self, number: int, tag: int) -> float | None:
        """When the receive was made that took a message; None: none has, as far as is known.

        Args:
            number: -1: the last one with this tag.
        """
        for one, tagged, at in reversed(self._last_received):
            if number == one or (number < 0 and tagged == tag):
                return at
        return None

    def came_whole(self, size_bytes: int) -> None:
        """The message that came has its payload with it.

        Raises:
            FrameError: it is over the allowance.
        """
        messages, size = self._whole_got[0] + 1, self._whole_got[1] + size_bytes
        over = size - self._told[1] > max(self._budget.limit_bytes, self._eager_bytes)
        if over or messages - self._told[0] > MAX_UNTAKEN_MESSAGES:
            raise FrameError(
                f"{messages - self._told[0]} messages of {size - self._told[1]} bytes that were "
                f"not received are over the limit of {MAX_UNTAKEN_MESSAGES} messages, "
                f"{self._budget.limit_bytes} bytes"
            )
        self._whole_got = (messages, size)

    def came_offered(self, arrival: Arrival) -> None:
        """The message that came is an offer, and no receive waits for it.

        Raises:
            FrameError: the peer offers too many.
        """
        if len(self.offered) >= self._max_offered:
            raise FrameError(f"more than {self._max_offered} messages are offered")
        self.offered[arrival.number] = arrival

    def used(self, size_bytes: int) -> tuple[int, int] | None:
        """A message that came whole was received; what the peer is to be told, if it is time."""
        messages, size = self._whole_used[0] + 1, self._whole_used[1] + size_bytes
        self._whole_used = (messages, size)
        if (
            messages - self._told[0] < MAX_UNTAKEN_MESSAGES // TELL_AT
            and size - self._told[1] < self._budget.limit_bytes // TELL_AT
        ):
            return None
        self._told = self._whole_used
        return self._told

    @property
    def parked_bytes(self) -> int:
        """Payload that came and was not received yet."""
        return self._whole_got[1] - self._whole_used[1]
