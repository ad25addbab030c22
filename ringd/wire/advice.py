"""What to do when an epoch is over, and which setting to raise, as errors say it.

A daemon writes the texts and does not know who reads them. The client's calls are ``reform()``,
``close()`` and ``connect()``; torch.distributed has others, so its backend puts its own words here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

REFORM_TOO: Final = "Call reform() on this rank too, or close."
REFORM: Final = "Call reform(), or close."
LONGER_TO_CONNECT: Final = "raise timeout_s of connect()"
LONGER_TO_JOIN: Final = "raise join_timeout_s (--join-timeout)"
MORE_MEMORY: Final = "raise arena_limit_bytes in connect()"
_TORCHS: Final = (
    (LONGER_TO_CONNECT, "raise timeout of init_process_group()"),
    (MORE_MEMORY, "raise arena_limit_bytes of ringd_client.torch.Options (pg_options)"),
)
_RESTARTS: Final = {
    "torchrun": "the launcher starts all ranks anew (torchrun --max-restarts N)",
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
    for ours, torchs in _TORCHS:
        text = text.replace(ours, torchs)
    return text


def of_own_daemon(text: str) -> str:
    """The last words of a daemon that init_process_group started, whose timeout is its too."""
    return text.replace(LONGER_TO_JOIN, LONGER_TO_CONNECT)
