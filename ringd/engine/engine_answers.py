"""What a rank says of an operation, for a verdict: the part that all answers have."""

from __future__ import annotations

from typing import Any, Final

NO_ANSWER: Final[dict[str, Any]] = {
    "entered_s": 0.0,
    "idle_s": 0.0,
    "waiting_on": [],
    "bytes_done": 0,
    "bytes_total": 0,
    "flows": [],
    "next_seq": 0,
}
"""Of an operation that is not in flight here."""
