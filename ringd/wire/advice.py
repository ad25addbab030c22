"""What to do when an epoch is over, as errors say it.

A daemon writes the texts and does not know who reads them. The client's calls are ``reform()``,
``close()`` and ``connect()``; torch.distributed has others, so its backend puts its own words here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

REFORM_TOO: Final = "Call reform() on this rank too, or close."
REFORM: Final = "Call reform(), or close."
_RESTARTS: Final = {
    "torchrun": "the launcher starts all ranks anew (torchrun --max-restarts)",
    "ringd run": "the launcher starts its rank anew (ringd run --max-restarts N; each counts)",
}
_TORCH: Final = (
    "End this process, and {restarts}; or call "
    "destroy_process_group() and init_process_group() again, on all ranks that are to go on "
    "(docs/torch.md, After a lost rank)."
)


def after_loss(rank: object) -> str:
    """For the others, when a rank is lost."""
    return (
        f"Call reform() to go on without rank {rank}, or close and connect again once it has been "
        "started anew."
    )


def for_torch(text: str, fields: Mapping[str, Any], launcher: str = "torchrun") -> str:
    """An error's text with what a script for torch.distributed can do.

    Args:
        fields: of that error.
        launcher: "ringd run", or "torchrun", which stands for all others.
    """
    torchs = _TORCH.format(restarts=_RESTARTS[launcher])
    for ours in (after_loss(fields.get("rank")), REFORM_TOO, REFORM):
        text = text.replace(ours, torchs)
    return text
