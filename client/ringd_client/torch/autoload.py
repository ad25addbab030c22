"""Tells torch that there is a backend "ringd". Imports torch only when it is called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
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
    modules: tuple[Any, ...] = (dist, dist.distributed_c10d)
    for module in modules:
        module.init_process_group = _with_head_start(module.init_process_group)


def _with_head_start(init: Callable[..., Any]) -> Callable[..., Any]:
    """torch's init_process_group, which for this backend begins with what need not wait for the
    other ranks: torch itself asks us only once it has found them all."""

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        backend = args[0] if args else kwargs.get("backend")
        if not isinstance(backend, str) or NAME not in backend.lower():
            return init(*args, **kwargs)

        from ringd_client.torch.early import head_start

        with head_start(init, args, kwargs):
            return init(*args, **kwargs)

    return init_process_group


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
