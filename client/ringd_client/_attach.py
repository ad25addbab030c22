"""The first exchange with a daemon: HELLO, and its answer when all trainers are there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Final

from ringd.errors import ConfigError, DaemonLostError, RendezvousError, RingdError, from_wire
from ringd.wire import ipc
from ringd_client import _stack
from ringd_client._core import MAX_IN_FLIGHT
from ringd_client._environment import out_of
from ringd_client._operation import GRACE_S
from ringd_client._transport import Transport, dial

DEFAULT_TIMEOUT_S: Final = 300.0
"""Of a call, where neither the call nor the daemon's settings say another."""
DIAL_S: Final = 15.0
"""How long a daemon may take to begin to listen; it is started at the same time as we are. Where a
launcher looks after both, it is waited for as long as the caller waits."""
DIAL_EVERY_S: Final = 0.02
JOB_FILE: Final = "job.json"
"""Beside the sockets of a job that ``ringd run`` looks after."""
_NOT_YET = (FileNotFoundError, ConnectionRefusedError, BlockingIOError)
"""Not there, not listening, or its queue is full: all may pass."""


MAX_TIMEOUT_S: Final = 365 * 86400.0
"""Longer ones are cut to this: locks and polls have limits."""


def is_positive(value: Any) -> bool:
    """Whether ``value`` is a positive number, and a finite one; True is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return 0 < float(value) < float("inf")
    except OverflowError:  # a whole number beyond all floats
        return isinstance(value, int) and value > 0


def cut(value: float) -> float:
    """A positive number of seconds, as far as clocks can take it."""
    return float(min(value, MAX_TIMEOUT_S))


@dataclass(frozen=True, slots=True)
class Membership:
    """Which place in which epoch the daemon gave us, and its settings for our calls.

    Attributes:
        rank, world_size: our place among the members of the epoch.
        ranks: the members, each by the rank that its daemon was started with.
        arena_limit_bytes: 0: not set.
    """

    rank: int
    world_size: int
    epoch: int
    timeout_s: float = DEFAULT_TIMEOUT_S
    max_in_flight: int = MAX_IN_FLIGHT
    arena_limit_bytes: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def seat(self) -> int:
        """The rank that our daemon was started with: what errors call this rank."""
        return self.ranks[self.rank]

    @classmethod
    def of(cls, welcome: dict[str, Any]) -> Membership:
        """From the body of a WELCOME; settings that it lacks have their defaults.

        Raises:
            KeyError, ValueError, TypeError: it is none.
        """
        ranks = tuple(welcome.get("ranks") or range(welcome["world_size"]))
        if len(ranks) != welcome["world_size"] or not 0 <= welcome["rank"] < len(ranks):
            raise ValueError(f"rank {welcome['rank']} of the {welcome['world_size']} ranks {ranks}")
        return cls(
            welcome["rank"],
            welcome["world_size"],
            welcome["epoch"],
            float(welcome.get("timeout_s") or DEFAULT_TIMEOUT_S),
            int(welcome.get("max_in_flight") or MAX_IN_FLIGHT),
            int(welcome.get("arena_limit_bytes") or 0),
            ranks,
        )


@dataclass(frozen=True, slots=True)
class Deadline:
    """When an attempt to attach is over (monotonic clock)."""

    timeout_s: float
    at: float

    @classmethod
    def after(cls, timeout_s: float) -> Deadline:
        """``timeout_s`` from now.

        Raises:
            ConfigError: not a positive number.
        """
        if not is_positive(timeout_s):
            raise ConfigError(
                f"timeout_s is a positive number of seconds, and finite, not {timeout_s!r}"
            )
        timeout_s = cut(timeout_s)
        return cls(timeout_s, time.monotonic() + timeout_s)

    @property
    def left_s(self) -> float:
        """What is left, never quite nothing."""
        return max(self.at - time.monotonic(), 0.001)


def attach(
    path: str, deadline: Deadline, has_ended: Callable[[], bool] | None = None
) -> tuple[Transport, Membership]:
    """Connect to the daemon at ``path`` and wait for the group.

    Args:
        has_ended: whether its process has; None: that can't be known.

    Raises:
        RendezvousError: the daemon refused, or somebody was missing at the deadline.
        ResourceError: we, or the daemon, have no file descriptor left.
        DaemonLostError: no daemon there, or it went away.
        ConfigError: RINGD_STACK_SIGNAL is no good.
    """
    transport = Transport(_dial_patiently(path, deadline, has_ended))
    try:
        _say_hello(transport, deadline)
        until = deadline.at + GRACE_S
        while time.monotonic() < until:
            if transport.wait_readable(until):
                answer = transport.receive(wait=False)
                if answer is not None:
                    return transport, _membership(answer, path)
        raise _no_answer(path, deadline)
    except BaseException as exc:
        error = exc
        if isinstance(exc, OSError) and not isinstance(exc, RingdError):
            error = _why_ended(transport, exc, path)
        transport.close()
        if error is not exc:
            raise error from exc
        raise


async def attach_async(path: str, deadline: Deadline) -> tuple[Transport, Membership]:
    """As :func:`attach`, on the running event loop. A cancelled attempt leaves nothing behind."""
    transport = Transport(await _dial_patiently_async(path, deadline))
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(transport.fileno(), readable.set)
    try:
        _say_hello(transport, deadline)
        async with asyncio.timeout(deadline.left_s + GRACE_S):
            while (answer := transport.receive(wait=False)) is None:
                readable.clear()
                await readable.wait()
        loop.remove_reader(transport.fileno())
        return transport, _membership(answer, path)
    except BaseException as exc:
        loop.remove_reader(transport.fileno())
        error = exc
        if isinstance(exc, TimeoutError) and not isinstance(exc, RingdError):
            error = _no_answer(path, deadline)
        elif isinstance(exc, OSError) and not isinstance(exc, RingdError):
            error = _why_ended(transport, exc, path)
        transport.close()
        if error is not exc:
            raise error from exc
        raise


def _dial_patiently(
    path: str, deadline: Deadline, has_ended: Callable[[], bool] | None
) -> socket.socket:
    begun = time.monotonic()
    while True:
        try:
            return dial(path)
        except OSError as exc:
            in_vain = has_ended is not None and has_ended()
            if not isinstance(exc, _NOT_YET) or in_vain or _too_late(path, begun, deadline):
                raise out_of(exc) or _nobody_listens(path, exc) from exc
        time.sleep(DIAL_EVERY_S)


async def _dial_patiently_async(path: str, deadline: Deadline) -> socket.socket:
    begun = time.monotonic()
    while True:
        try:
            return dial(path)
        except OSError as exc:
            if not isinstance(exc, _NOT_YET) or _too_late(path, begun, deadline):
                raise out_of(exc) or _nobody_listens(path, exc) from exc
        await asyncio.sleep(DIAL_EVERY_S)


def _too_late(path: str, begun: float, deadline: Deadline) -> bool:
    now = time.monotonic()
    if now < begun + DIAL_S and now < deadline.at:
        return False
    return now >= deadline.at or not (Path(path).parent / JOB_FILE).exists()


def _say_hello(transport: Transport, deadline: Deadline) -> None:
    clock = time.monotonic()
    hello = {
        "version": ipc.VERSION,
        "role": "trainer",
        "timeout_s": max(deadline.at - clock, 0.001),
        "clock": clock,
        "time_namespace": _time_namespace(),
    }
    stack = _stack.offered()
    if stack is None:
        transport.send(ipc.pack(ipc.HELLO, hello))
    else:
        hello["stack_signal"] = stack.signal
        transport.send_with_fd(ipc.pack(ipc.HELLO, hello), stack.fd)


def _time_namespace() -> int:
    """Which one this process is in; 0: not known. Deadlines on our clock mean nothing elsewhere."""
    try:
        return os.stat("/proc/self/ns/time").st_ino
    except OSError:
        return 0


def _membership(answer: bytes | memoryview, path: str) -> Membership:
    """What the daemon's first message says.

    Raises:
        RingdError: what it refused with.
        DaemonLostError: it closed the connection, or speaks another protocol.
    """
    if not len(answer):
        raise _gone(path)
    try:
        message = ipc.unpack(answer)
        if message[0] == ipc.BYE:
            raise _gone(path)
        kind, body = message[:2]
        if kind == ipc.WELCOME:
            return Membership.of(body)
    except (ValueError, KeyError, TypeError) as exc:
        raise DaemonLostError(
            f"what listens at {path} does not speak ringd's client protocol, version "
            f"{ipc.VERSION} ({exc!r}). Install the same ringd for both, or name another socket"
        ) from exc
    if kind == ipc.REFUSED:
        raise from_wire(body)
    raise DaemonLostError(f"the daemon at {path} answered HELLO with a message of kind {kind}")


def _nobody_listens(path: str, cause: OSError) -> DaemonLostError:
    return DaemonLostError(
        f"no daemon listens at {path} ({cause.strerror or cause}). "
        "Start one with `ringd daemon`, or all of them with `ringd run`",
        socket=path,
    )


def _why_ended(transport: Transport, cause: OSError, path: str) -> RingdError:
    """What we have run out of; else the daemon's last words, which may have come all the same."""
    if lack := out_of(cause):
        return lack
    with contextlib.suppress(OSError):
        answer = transport.receive(wait=False)
        if answer is not None and len(answer):
            try:
                _membership(answer, path)
            except RingdError as error:
                return error
    return _gone(path)


def _gone(path: str) -> DaemonLostError:
    return DaemonLostError(
        f"the daemon at {path} closed the connection before the group was complete; "
        "its log says why. Start it anew, and connect again",
        socket=path,
    )


def _no_answer(path: str, deadline: Deadline) -> RendezvousError:
    return RendezvousError(
        f"the daemon at {path} did not answer within {deadline.timeout_s:g} s "
        f"and {GRACE_S:g} s more: it is stopped, or far too busy. Look at its log and "
        "its process",
        socket=path,
        timeout_s=deadline.timeout_s,
    )
