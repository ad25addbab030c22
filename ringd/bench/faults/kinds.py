"""The faults: what is done to whom, what the others are to make of it, and how it is undone."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ringd.bench.faults import sockets
from ringd.bench.faults.group import Group, host_of, until
from ringd.errors import RingdError

Answer = dict[str, Any]
Expected = Literal["lost", "timeout", "none"]
"""What survivors are to raise: PeerLostError, CollectiveTimeoutError, or nothing."""

DEADLINE_S = 1.0
"""Of the calls, where a fault shows at the deadline only."""
LONG_S = 30.0
"""Of the calls, where nobody is to wait for it."""
CALLS_AFTER = 3
"""Calls that must complete after a fault that nobody is to notice."""
AGAIN_LIMIT_S = 15.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        event: what happens, for the table.
        strike: does it to the victim in mid-operation; returns when (monotonic).
        expected: see there.
        timeout_s: the deadline of the calls.
        promised_s: from the event to the exception.
        undo: what lets the victim go on, or waits until it is gone.
        own_network: each rank needs a network of its own that can be cut.
    """

    name: str
    event: str
    strike: Callable[[Group, int], float]
    expected: Expected
    timeout_s: float
    promised_s: float | None
    undo: Callable[[Group, int], None] = lambda group, victim: None
    own_network: bool = False

    def names(self, answer: Answer, victim: int) -> bool:
        """Whether a survivor's error names the victim, and nobody else."""
        found: bool = answer["fields"].get("culprits") == [victim]
        return found

    def is_as_expected(self, answer: Answer) -> bool:
        """Whether a survivor ended as it should."""
        wanted = {"lost": "PeerLostError", "timeout": "CollectiveTimeoutError", "none": None}
        return bool(answer["right"]) and answer["error"] == wanted[self.expected]


def _signal_trainer(number: int, group: Group, victim: int) -> float:
    at = time.monotonic()
    group.workers[victim].signal(number)
    return at


def _signal_daemon(number: int, group: Group, victim: int) -> float:
    at = time.monotonic()
    group.daemon_signal(victim, number)
    return at


def _reap_trainer(group: Group, victim: int) -> None:
    group.workers[victim].await_end()


def _reap_daemon(group: Group, victim: int) -> None:
    group.await_end_of_daemon(victim)


def _continue_trainer(group: Group, victim: int) -> None:
    group.workers[victim].signal(signal.SIGCONT)


def _continue_daemon(group: Group, victim: int) -> None:
    group.daemon_signal(victim, signal.SIGCONT)


def _raise(group: Group, victim: int) -> float:
    """The victim leaves by an exception; it says itself when."""
    group.workers[victim].tell(do="raise")
    return float(group.workers[victim].hear()["at"])


def _break_link(how: Callable[[sockets.End], None], group: Group, victim: int) -> float:
    """The link to the right neighbour breaks; then calls go on."""
    peer = (victim + 1) % group.n
    with sockets.between(group.daemon_pid(victim), group.daemon_pid(peer)) as ends:
        if not ends:
            raise RingdError(f"bench --faults: ranks {victim} and {peer} have no link")
        at = time.monotonic()
        for end in ends:
            how(end)
    _go_on(group)
    return at


def _kill_rendezvous(group: Group, victim: int) -> float:
    at = time.monotonic()
    group.kill_rendezvous()
    _go_on(group)
    return at


def _go_on(group: Group) -> None:
    """Await further calls on all ranks, then let the workers stop, all after the same call."""
    goals = [group.status(rank)["completed"] + CALLS_AFTER for rank in range(group.n)]

    def reached() -> bool:
        states = [group.status(rank) for rank in range(group.n)]
        if any(state["broken"] for state in states):
            return True
        return all(s["completed"] >= goal for s, goal in zip(states, goals, strict=True))

    until(reached, "calls go on after the fault", AGAIN_LIMIT_S)
    group.workers[0].tell(do="stop")


def _cut_network(group: Group, victim: int) -> float:
    assert group.network is not None
    at = time.monotonic()
    group.network.cut(host_of(victim))
    return at


def _heal_network(group: Group, victim: int) -> None:
    assert group.network is not None
    group.network.heal(host_of(victim))
    group.daemon_signal(victim, signal.SIGKILL)  # to the others it is lost: it is started anew
    group.await_end_of_daemon(victim)


DEAD_AFTER_S, HEARTBEAT_S = 3.0, 1.0
AT_DEADLINE_S = DEADLINE_S + 0.25

KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "kill-trainer",
            "kill -9 of the trainer",
            partial(_signal_trainer, signal.SIGKILL),
            "lost",
            LONG_S,
            0.5,
            undo=_reap_trainer,
        ),
        Kind(
            "kill-daemon",
            "kill -9 of the daemon",
            partial(_signal_daemon, signal.SIGKILL),
            "lost",
            LONG_S,
            0.5,
            undo=_reap_daemon,
        ),
        Kind("raise", "an exception in the trainer", _raise, "lost", LONG_S, 0.5),
        Kind(
            "stop-trainer",
            f"SIGSTOP of the trainer, calls of {DEADLINE_S:g} s",
            partial(_signal_trainer, signal.SIGSTOP),
            "timeout",
            DEADLINE_S,
            AT_DEADLINE_S,
            undo=_continue_trainer,
        ),
        Kind(
            "stop-daemon",
            f"SIGSTOP of the daemon, calls of {DEADLINE_S:g} s",
            partial(_signal_daemon, signal.SIGSTOP),
            "timeout",
            DEADLINE_S,
            AT_DEADLINE_S,
            undo=_continue_daemon,
        ),
        Kind(
            "drop-network",
            "all packets of a host are lost",
            _cut_network,
            "lost",
            LONG_S,
            DEAD_AFTER_S + 0.5,
            undo=_heal_network,
            own_network=True,
        ),
        Kind(
            "close-link",
            "a link's stream is ended (FIN)",
            partial(_break_link, sockets.End.cut),
            "none",
            LONG_S,
            None,
        ),
        Kind(
            "reset-link",
            "a link is reset (RST)",
            partial(_break_link, sockets.End.reset),
            "none",
            LONG_S,
            None,
        ),
        Kind(
            "kill-rendezvous",
            "kill -9 of the rendezvous",
            _kill_rendezvous,
            "none",
            LONG_S,
            None,
        ),
    )
}
