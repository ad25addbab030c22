"""The walk along the wait-for graph from a call on: what was asked, and who waits for whom.

A question about one call is a hop. Who has not made it, or the other side of it, may itself wait in
another call; that is the next hop. Where a rank's program is, its Python stack says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringd.rendezvous.events import OpFailed, PostFailed
from ringd.rendezvous.verdicts import LATE_SHARE, Answer, Verdict

Call = OpFailed | PostFailed
Key = tuple[object, ...]

_IN_CLIENT = re.compile(r"ringd_client\.(\w+) \(waiting\)")
_IDLE = ("selectors.py:", "threading.py:", "queue.py:", "asyncio/", "concurrent/", "uvloop/")
"""Where a main thread waits for another thread, or in an event loop."""


@dataclass(slots=True)
class Hop:
    """What is known of one call that does not end.

    Attributes:
        about: the call; its ``rank`` waits in it.
        answers: by rank; who is missing did not answer in time.
        waits: by rank that has not made the call or its other side: those that it waits in itself.
    """

    about: Call
    answers: dict[int, Answer] = field(default_factory=dict)
    waits: dict[int, tuple[Call, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Over:
    """A call in which a rank waited until a moment ago.

    Attributes:
        about: the call; ``verdict``: the one on it, ``ago_s`` ago.
        waited_s: how long it had waited then.
    """

    about: Call
    verdict: Verdict
    ago_s: float
    waited_s: float

    def filled(self, span_s: float) -> bool:
        """Whether it was most of what the rank did in the last ``span_s``."""
        most_s = LATE_SHARE * span_s
        return self.ago_s < most_s < min(self.waited_s, span_s - self.ago_s)


def waited_in(answer: Answer, calls: Sequence[Call]) -> tuple[Call, ...]:
    """Which of the calls that are in flight on a rank its program waits for.

    None, if it is known to be elsewhere, so that nothing but itself holds it up. Of a call that
    says by its name what it waits for, the last one of that name.

    Args:
        answer: on the call that it has not made.
        calls: oldest first.
    """
    if answer.state != "absent" or answer.trainer in ("stopped", "gone", "none"):
        return ()
    if not answer.stack or answer.stack[0].startswith(_IDLE):
        return tuple(calls)
    found = _IN_CLIENT.match(answer.stack[0])
    if found is None:
        return ()
    named = [call for call in calls if op_of(call) == found[1]]
    return (named[-1],) if named else tuple(calls)


def op_of(call: Call) -> str:
    """Its name."""
    if isinstance(call, PostFailed):
        return call.op
    fields = call.error.get("fields")
    return str(fields.get("op", "a call")) if isinstance(fields, dict) else "a call"
