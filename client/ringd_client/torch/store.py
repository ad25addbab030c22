"""torch's store: how ranks tell each other where to meet, before there is anything of ours.

It is not authenticated, and keeps what was written before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store

from ringd.errors import RendezvousError


def fresh(store: Store, size: int) -> PrefixStore:
    """A part of the store that nobody has written to: the same for all of ``size`` ranks.

    It is counted, so each rank has to come here once for each time that all do: keys of an earlier
    group of the same name may still be there.
    """
    came = store.add("ringd/came", 1)
    return PrefixStore(f"ringd/{(came - 1) // size}", store)


def gather(store: Store, keys: Mapping[int, str], until: float) -> dict[int, str]:
    """What the ranks have written, by rank; waits for them.

    Args:
        keys: which key is whose.
        until: on the monotonic clock.

    Raises:
        RendezvousError: some did not come; its field ``missing`` has them.
    """
    began = time.monotonic()
    left = timedelta(seconds=max(until - began, 0.001))
    try:
        store.wait(list(keys.values()), left)
    except RuntimeError as exc:  # torch's errors of a store are such
        missing = [rank for rank, key in keys.items() if not _has(store, key)]
        here = len(keys) - len(missing)
        raise RendezvousError(
            f"{here} of {len(keys)} joined within {time.monotonic() - began:.1f} s: missing "
            f"rank{'s' if len(missing) != 1 else ''} {', '.join(map(str, missing))}. Start what is "
            "missing, or raise the timeout of the group",
            joined=[rank for rank in keys if rank not in missing],
            missing=missing,
        ) from exc
    return {rank: store.get(key).decode() for rank, key in keys.items()}


def _has(store: Store, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except RuntimeError:  # the store itself is gone
        return False
