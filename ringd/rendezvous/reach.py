"""Reaching the rendezvous: dial until it answers, or the deadline passes, or it says no."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ringd.errors import RendezvousError
from ringd.transport.base import Address

T = TypeVar("T")

_LAST_TRY_S = 0.020
"""So close to the deadline no further attempt is made."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Jittered exponential backoff between attempts, in seconds."""

    first_delay_s: float = 0.050
    max_delay_s: float = 2.0
    attempt_timeout_s: float = 5.0
    """Of one attempt to connect: a name may resolve to something else at the next one."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """An agent's intervals.

    Attributes:
        heartbeat_s: how often it says that it lives.
        retry: pauses between attempts to reach the rendezvous.
        dead_after_s: the rendezvous is lost when it was silent for so long.
    """

    heartbeat_s: float = 1.0
    retry: RetrySettings = field(default_factory=RetrySettings)
    dead_after_s: float = 3.0


async def reach(
    address: Address,
    attempt: Callable[[float], Awaitable[T]],
    *,
    who: str,
    deadline: float,
    rng: random.Random,
    log: logging.Logger,
    settings: RetrySettings,
) -> T:
    """Call ``attempt`` (with the loop time by which it must be connected) until it succeeds.

    What may heal is tried again: a name that does not resolve, a refused or reset connection, a
    silent peer. A refusal by name (HandshakeRefusedError) is final.

    Raises:
        RendezvousError: the deadline passed; has the last cause.
        HandshakeRefusedError: by the rendezvous, or by us.
    """
    loop = asyncio.get_running_loop()
    began, delay, tries, cause = loop.time(), settings.first_delay_s, 0, ""
    while True:
        tries += 1
        until = min(deadline, loop.time() + settings.attempt_timeout_s)
        try:
            return await attempt(until)
        except OSError as exc:  # TimeoutError and socket.gaierror are among its kinds
            cut_short = isinstance(exc, TimeoutError) and until == deadline
            if describe(exc) != cause and not (cause and cut_short):
                cause = describe(exc)
                log.info("%s can't reach the rendezvous at %s yet: %s", who, address, cause)
        remaining = deadline - loop.time()
        if remaining < _LAST_TRY_S:
            break
        await asyncio.sleep(min(delay * rng.uniform(0.5, 1.0), remaining / 2))
        delay = min(2 * delay, settings.max_delay_s)
    elapsed = loop.time() - began
    raise RendezvousError(
        f"{who} could not reach the rendezvous at {address} within {elapsed:.1f} s "
        f"({tries} attempts): {cause}; is it running, and is the address right?",
        address=str(address),
        attempts=tries,
        elapsed_s=round(elapsed, 3),
        cause=cause,
    )


def describe(error: BaseException) -> str:
    """An error's text, or what its class says where it has none."""
    if isinstance(error, TimeoutError):
        return str(error) or "no answer in time"
    return str(error) or type(error).__name__
