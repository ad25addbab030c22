"""What must hold of every run, whatever failed: one verdict for all, and nothing is left over."""

from __future__ import annotations

from collections.abc import Sequence

from ringd.engine.engine import Engine
from ringd.errors import RingdError

LEFT = "it left the job"


def disagreement(errors: Sequence[RingdError]) -> str | None:
    """What differs between the errors with which ranks ended one operation; None: nothing.

    A verdict is one: its id, its culprits, and its text but for the last sentence, which is the
    rank's own. A rank that has no verdict says that its view is partial.
    """
    told = set()
    for error in errors:
        fields = error.fields
        verdict = fields.get("verdict")
        if bool(verdict) == bool(fields.get("partial")):
            return f"verdict {verdict!r}, but partial is {fields.get('partial')}: {error}"
        if verdict:
            own = error.message.find(f" Rank {fields.get('rank')} had ")
            text = error.message if own < 0 else error.message[:own]
            told.add((verdict, str(fields.get("culprits")), str(fields.get("link")), text))
    return f"several verdicts on one operation: {sorted(told)}" if len(told) > 1 else None


def leftovers(engine: Engine) -> list[str]:
    """What a rank still keeps of operations that are over; [] when it is idle and in order."""
    kept = {
        "operations in flight": len(engine.live),
        "messages in flight": len(engine.mail.live),
        "operations of groups": sum(len(group.ops) for group in engine.groups),
        "bytes that came early": engine.router.early.held_bytes,
        "bytes of messages": engine.mail.parked_bytes,
    }
    return [f"{count} {what}" for what, count in kept.items() if count]
