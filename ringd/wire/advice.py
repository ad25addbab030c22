"""What to do when an epoch is over, as errors say it.

A daemon writes the texts and does not know who reads them. The client's calls are ``reform()``,
``close()`` and ``connect()``; torch.distributed has others, so its backend puts its own words here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

REFORM_TOO: Final = "Call reform() on this rank too, or close."
REFORM: Final = "Call reform(), or close."
_TORCH: Final = (
    "End this process, and the launcher starts all ranks anew (torchrun --max-restarts); or call "
    "destroy_process_group() and init_process_group() again, on all ranks that are to go on "
    "(docs/torch.md, After a lost rank)."
)


def after_loss(rank: object) -> str:
    """For the others, when a rank is lost."""
    return (
        f"Call reform() to go on without rank {rank}, or close and connect again once it has been "
        "started anew."
    )


def for_torch(text: str, fields: Mapping[str, Any]) -> str:
    """An error's text with what a script for torch.distributed can do.

    Args:
        fields: of that error.
    """
    for ours in (after_loss(fields.get("rank")), REFORM_TOO, REFORM):
        text = text.replace(ours, _TORCH)
    return text
