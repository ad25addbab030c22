"""Tells torch that there is a backend "ringd". Imports torch only when it is called."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

NAME: Final = "ringd"


def register() -> None:
    """Register the backend, and the init method ``ringd://``; a second call does nothing.

    For torch's entry point ``torch.backends``.
    """
    import torch.distributed as dist

    if not dist.is_available() or NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    handlers: Any = dist
    handlers.register_rendezvous_handler(NAME, _rendezvous)


def _create(opts: Any, pg_options: Any) -> Any:
    import torch

    from ringd.errors import ConfigError
    from ringd_client.torch.errors import for_torch
    from ringd_client.torch.version import check_version

    try:
        check_version(torch.__version__)
    except ConfigError as exc:
        raise for_torch(exc) from None

    from ringd_client.torch.creation import create

    return create(opts, pg_options)


def _rendezvous(url: str, timeout: timedelta | None = None, **_: Any) -> Iterator[Any]:
    from ringd_client.torch.meeting import rendezvous

    return rendezvous(url, timeout)
