"""The torch.distributed backend "ringd": what ``dist.init_process_group("ringd")`` finds.

torch loads it by itself, through its entry point ``torch.backends``. Where that is turned off
(``TORCH_DEVICE_BACKEND_AUTOLOAD=0``), ``import ringd_client.torch`` does the same. What works, and
what can't: docs/torch.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch  # noqa: F401  first: it may load us while it is imported

from ringd_client.torch.autoload import register

if TYPE_CHECKING:
    from ringd_client.torch import hooks
    from ringd_client.torch.late import monitored_barrier
    from ringd_client.torch.options import Options

__all__ = ["Options", "hooks", "monitored_barrier", "register"]

register()


def __getattr__(name: str) -> Any:
    """The rest is imported when it is used: every ``import torch`` comes by here."""
    if name == "Options":
        from ringd_client.torch.options import Options

        return Options
    if name == "monitored_barrier":
        from ringd_client.torch.late import monitored_barrier

        return monitored_barrier
    if name == "hooks":
        return import_module("ringd_client.torch.hooks")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
