"""What torch says of a call or a group, in the client's words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
from torch.distributed import ReduceOp

from ringd.errors import InvalidArgumentError
from ringd_client._environment import adopts_storages
from ringd_client._reductions import Op, premul_sum

K = TypeVar("K")

UNSET: Final = timedelta(milliseconds=-1)
_WORDS: Final = (
    (ReduceOp.SUM, "sum"),
    (ReduceOp.AVG, "avg"),
    (ReduceOp.MAX, "max"),
    (ReduceOp.MIN, "min"),
    (ReduceOp.PRODUCT, "prod"),
    (ReduceOp.BAND, "band"),
    (ReduceOp.BOR, "bor"),
    (ReduceOp.BXOR, "bxor"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """``pg_options`` of ``init_process_group`` and ``new_group``.

    Attributes:
        deterministic: reductions are the left fold in rank order, whatever size and algorithm.
        recv_timeout_ms: end a call earlier when a peer whose bytes are waited for is silent for so
            long.
        arena_limit_bytes: cap of the shared memory; for ``init_process_group`` only.
        adopt_storages: move what is reduced again and again into shared memory, instead of
            copying it at each call; None: as RINGD_ADOPT_STORAGES says, which is on.
    """

    deterministic: bool = False
    recv_timeout_ms: float | None = None
    arena_limit_bytes: int | None = None
    adopt_storages: bool | None = None

    @classmethod
    def of(cls, given: Any) -> Options:
        """From what the script passed; what it left open is as the environment says.

        Raises:
            InvalidArgumentError: the options of another backend.
            ConfigError: RINGD_ADOPT_STORAGES is neither true nor false.
        """
        options = cls() if given is None else given
        if not isinstance(options, cls):
            raise InvalidArgumentError(
                "pg_options of the backend ringd are ringd_client.torch.Options, "
                f"not {type(given).__qualname__}"
            )
        if options.adopt_storages is None:
            return replace(options, adopt_storages=adopts_storages())
        return options


def reduction(op: Any) -> Op:
    """The client's reduce op.

    Raises:
        InvalidArgumentError: torch has it, ringd has not.
    """
    for known, word in _WORDS:
        if op == known:
            return word
    if op == ReduceOp.PREMUL_SUM:
        _, factor = op.__getstate__()  # ``op.factor`` came with torch 2.13
        return premul_sum(factor.item() if isinstance(factor, torch.Tensor) else factor)
    names = ", ".join(word.upper() for _, word in _WORDS)
    raise InvalidArgumentError(
        f"the reduce op {op!r} is none of ringd's: take one of {names}, PREMUL_SUM"
    )


def seconds(timeout: timedelta | None) -> float | None:
    """A timeout of torch's; None: unset, which torch says by a negative number."""
    if timeout is None or timeout == UNSET:
        return None
    value = timeout.total_seconds()
    return value if value > 0 else None


def given_as(kind: type[K], given: Any, timeout: timedelta | None = None, **more: Any) -> K:
    """The options of a call, whichever of torch's overloads was used.

    Args:
        kind: the class of the options.
        given: such options; or what stands in their place: a reduce op, a root, a timeout.
        timeout: where it was passed as an argument of its own.
        more: further fields that were passed so; None: not passed.
    """
    if isinstance(given, kind):
        return given
    made: Any = kind()
    if isinstance(given, timedelta):
        timeout = given
    elif isinstance(given, int) and hasattr(made, "rootRank"):
        made.rootRank = given
    elif given is not None:
        made.reduceOp = given
    if timeout is not None:
        made.timeout = timeout
    for name, value in more.items():
        if value is not None:
            setattr(made, name, value)
    return made  # type: ignore[no-any-return]
