"""Drills: a fault, at a rank, at a point of an operation; and what all others must make of it.

A drill leaves its group as it found it: all daemons up, all trainers connected, calls work.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ringd.bench.faults.sockets import End
from tests.processes.harness import WIDER, Daemons, until
from tests.processes.links import link_of
from tests.processes.programs import drills, faults

Result = dict[str, Any]
Point = Literal["before", "amid", "between"]
POINTS: tuple[Point, ...] = ("before", "amid", "between")
"""The victim has not entered a call that the others are in; a large call is under way on all; no
call is under way, and the next one follows."""

LARGE, SMALL = 1_000_000, 1000
SEEN_S = 0.5 * WIDER
"""From an event that can be seen to the exception."""
LATE_S = 0.25 * WIDER
"""From the deadline to the exception."""
SHORT_S, LONG_S = 1.0, 60.0
"""Deadlines of calls: where the deadline ends them, and where it must not."""
FIRST_CALLS = 3
HELD_UP_S = 0.3
"""A call that takes so long waits for somebody."""


@dataclass
class Drill:
    """One fault's course.

    Attributes:
        struck_at: when the fault was there.
    """

    group: Daemons
    victim: int
    point: Point
    struck_at: float = 0.0
    working: set[int] = field(default_factory=set)

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.group.n) if rank != self.victim]

    def work(self, ranks: Sequence[int], timeout_s: float) -> None:
        """These ranks begin to sum, until a call fails or :meth:`stop` is called."""
        count = LARGE if self.point == "amid" else SMALL
        stop = str(self.group.folder / "stop")
        for rank in ranks:
            self.working.add(rank)
            arguments = {"count": count, "timeout_s": timeout_s, "stop": stop}
            self.group.trainer(rank).start(drills.work, **arguments)

    def stop(self) -> None:
        """Let the work end, on all ranks after the same call."""
        (self.group.folder / "stop").touch()

    def result(self, rank: int) -> Result:
        """How the work of a rank ended."""
        self.working.discard(rank)
        told: Result = self.group.trainers[rank].result()
        assert told["wrong"] == 0, f"rank {rank}: {told['wrong']} sums were wrong"
        assert told["untouched"], f"rank {rank}: an ordinary tensor was changed by a failed call"
        return told

    def results(self) -> list[Result]:
        """How the work of all others ended."""
        return [self.result(rank) for rank in self.others]

    def strike(self, fault: Callable[[], object], timeout_s: float) -> None:
        """Bring the ranks to the point, and let the fault happen there."""
        group = self.group
        if self.point == "amid":
            self.work(range(group.n), timeout_s)
            until(self._is_under_way, "a large call is under way")
        else:
            group.do(faults.call, times=FIRST_CALLS)
        if self.point == "before":
            self.work(self.others, timeout_s)
            until(self._others_wait, "the others wait for the victim")
        self.struck_at = time.monotonic()
        fault()
        if self.point == "between":
            self.work(self.others, timeout_s)

    def _is_under_way(self) -> bool:
        state = self.group.status(self.victim)
        moving = any(0 < op["bytes_done"] < op["bytes_total"] for op in state["operations"])
        return state["next_seq"] >= FIRST_CALLS and moving

    def _others_wait(self) -> bool:
        return all(self.group.status(rank)["in_flight"] == 1 for rank in self.others)

    def victim_joins(self, timeout_s: float) -> None:
        """The victim makes the calls that the others are in, if it does not yet."""
        if self.victim not in self.working:
            self.work([self.victim], timeout_s)

    def a_call_is_held_up(self) -> None:
        """Until the others see that the fault holds them up."""

        def held_up(rank: int) -> bool:
            return any(op["elapsed_s"] > HELD_UP_S for op in self.group.status(rank)["operations"])

        until(lambda: all(map(held_up, self.others)), "a call is held up")

    def calls_go_on(self) -> None:
        """All ranks complete further calls."""
        goals = [self.group.status(rank)["completed"] + 2 for rank in range(self.group.n)]

        def reached() -> bool:
            states = [self.group.status(rank) for rank in range(self.group.n)]
            broken = [state["broken"] for state in states if state["broken"]]
            assert not broken, broken
            return all(s["completed"] >= goal for s, goal in zip(states, goals, strict=True))

        until(reached, "all ranks complete further calls")

    def end_of_work(self) -> None:
        """Stop the work; every rank ends it without an error."""
        self.stop()
        for rank in sorted(self.working):
            told = self.result(rank)
            assert told["error"] is None, f"rank {rank}: {told}"


# What the others must say


def one_verdict(told: Sequence[Result], culprits: list[int], case: str) -> None:
    """All name these culprits, and have one verdict of the rendezvous: for all who were in the
    same operation, where it ends a single one; a fault may meet ranks in two that follow."""
    for one in told:
        fields = one["fields"]
        assert fields["culprits"] == culprits, one
        assert case in fields["case"], one
        assert fields["partial"] is False, one
        assert all(f"rank {rank}" in one["text"] for rank in culprits), one["text"]
    lost = all(one["error"] == "PeerLostError" for one in told)
    ids = {(0 if lost else one["fields"]["seq"], one["fields"]["verdict"]) for one in told}
    assert len({seq for seq, _ in ids}) == len(ids), ids
    assert all(number for _, number in ids), ids


def all_lost(drill: Drill, told: Sequence[Result], case: str, within_s: float = SEEN_S) -> None:
    """All raised PeerLostError, soon, and raise it again at once at the next call."""
    for one in told:
        assert one["error"] == "PeerLostError", one
        assert one["fields"]["rank"] == drill.victim, one
        assert one["retry"] == "new_epoch"
        assert one["at"] - drill.struck_at < within_s, one
    one_verdict(told, [drill.victim], case)
    for rank in drill.others:
        again = drill.group.trainer(rank).do(faults.call, timeout_s=LONG_S)
        assert again["error"] == "PeerLostError", again
        assert again["fields"]["rank"] == drill.victim
        assert again["took_s"] < SEEN_S


def all_timed_out(
    drill: Drill, told: Sequence[Result], case: str, timeout_s: float = SHORT_S
) -> None:
    """All raised CollectiveTimeoutError at the deadline, with one verdict."""
    for one in told:
        assert one["error"] == "CollectiveTimeoutError", one
        assert timeout_s - 0.1 < one["took_s"] < timeout_s + LATE_S, one
    one_verdict(told, [drill.victim], case)


def all_sum(group: Daemons) -> None:
    """The next call is an ordinary one, on every rank."""
    for rank, told in enumerate(group.do(faults.call, timeout_s=LONG_S)):
        assert told["error"] is None, f"rank {rank}: {told}"
        assert told["value"] == group.n


def next_epoch_works(group: Daemons) -> None:
    """All trainers attach again, fresh ones where there are none, and calls work."""
    assert len(set(group.do(drills.connect_anew))) == 1
    all_sum(group)


# The faults


def kill_trainer(drill: Drill) -> None:
    """SIGKILL of a trainer."""
    group, victim = drill.group, drill.victim
    drill.strike(lambda: group.kill_trainer(victim), LONG_S)
    drill.working.discard(victim)
    all_lost(drill, drill.results(), "trainer died")
    next_epoch_works(group)


def kill_daemon(drill: Drill) -> None:
    """SIGKILL of a daemon; its own trainer is told so at once."""
    group, victim = drill.group, drill.victim
    drill.strike(lambda: group.kill_daemon(victim), LONG_S)
    drill.victim_joins(LONG_S)
    all_lost(drill, drill.results(), "daemon lost")
    own = drill.result(victim)
    assert own["error"] == "DaemonLostError", own
    assert own["at"] - drill.struck_at < SEEN_S
    again = group.trainer(victim).do(faults.call)
    assert again["error"] == "DaemonLostError"
    group.start_daemon(victim)
    group.await_daemon(victim)
    next_epoch_works(group)


@contextlib.contextmanager
def _continued(send: Callable[[int], None]) -> Iterator[None]:
    """Whatever happens within, what was stopped goes on afterwards."""
    try:
        yield
    finally:
        send(signal.SIGCONT)


def stop_trainer(drill: Drill) -> None:
    """SIGSTOP of a trainer until after the deadline: it is named, and then may go on."""
    trainer = drill.group.trainers[drill.victim]
    with _continued(trainer.signal):
        drill.strike(lambda: trainer.signal(signal.SIGSTOP), SHORT_S)
        told = drill.results()
        all_timed_out(drill, told, "trainer stopped")
    drill.victim_joins(SHORT_S)
    late = drill.result(drill.victim)
    assert late["error"] == "CollectiveTimeoutError", late
    assert late["fields"]["verdict"] in {one["fields"]["verdict"] for one in told}, late
    all_sum(drill.group)


def pause_trainer(drill: Drill) -> None:
    """SIGSTOP and SIGCONT of a trainer before any deadline: nobody notices."""
    trainer = drill.group.trainers[drill.victim]
    with _continued(trainer.signal):
        drill.strike(lambda: trainer.signal(signal.SIGSTOP), LONG_S)
        drill.victim_joins(LONG_S)
        drill.a_call_is_held_up()
    drill.calls_go_on()
    drill.end_of_work()
    all_sum(drill.group)


def stop_daemon(drill: Drill) -> None:
    """SIGSTOP of a daemon until after the deadline; its trainer keeps its own clock."""
    group, victim = drill.group, drill.victim
    with _continued(lambda number: group.daemon_signal(victim, number)):
        drill.strike(lambda: group.daemon_signal(victim, signal.SIGSTOP), SHORT_S)
        drill.victim_joins(SHORT_S)
        all_timed_out(drill, drill.results(), "daemon does not answer")
        own = drill.result(victim)
        assert own["error"] == "CollectiveTimeoutError", own
        assert own["fields"]["daemon_state"] == "stopped", own
        assert own["took_s"] < SHORT_S + LATE_S, own
    if drill.point == "amid":  # the others may have had the result of the victim's last call
        next_epoch_works(group)
    else:
        all_sum(group)


def pause_daemon(drill: Drill) -> None:
    """SIGSTOP and SIGCONT of a daemon before any deadline: nobody notices."""
    group, victim = drill.group, drill.victim
    with _continued(lambda number: group.daemon_signal(victim, number)):
        drill.strike(lambda: group.daemon_signal(victim, signal.SIGSTOP), LONG_S)
        drill.victim_joins(LONG_S)
        drill.a_call_is_held_up()
    drill.calls_go_on()
    drill.end_of_work()
    all_sum(group)


def silence_daemon(drill: Drill) -> None:
    """SIGSTOP of a daemon for longer than the rendezvous waits for its heartbeat."""
    group, victim = drill.group, drill.victim
    with _continued(lambda number: group.daemon_signal(victim, number)):
        drill.strike(lambda: group.daemon_signal(victim, signal.SIGSTOP), LONG_S)
        drill.working.discard(victim)
        all_lost(drill, drill.results(), "daemon lost", within_s=3.5 * WIDER)
    with contextlib.suppress(OSError):
        group.kill_daemon(victim)  # what becomes of one that is called lost is no matter of ours
    if drill.point == "amid":
        own = group.trainers[victim].result()
        assert own["error"] in ("DaemonLostError", "PeerLostError", "MembershipChangedError"), own
    group.start_daemon(victim)
    group.await_daemon(victim)
    next_epoch_works(group)


def _broken_link(drill: Drill, how: Callable[[End], None]) -> None:
    group, victim = drill.group, drill.victim
    with link_of(group, victim, (victim + 1) % group.n) as link:
        drill.strike(lambda: how(link), LONG_S)
    drill.victim_joins(LONG_S)
    drill.calls_go_on()
    drill.end_of_work()
    all_sum(group)


def close_link(drill: Drill) -> None:
    """The link to the right neighbour ends, in order: it is made anew, and nobody raises."""
    _broken_link(drill, End.cut)


def reset_link(drill: Drill) -> None:
    """The link to the right neighbour is reset: it is made anew, and nobody raises."""
    _broken_link(drill, End.reset)


KINDS: dict[str, Callable[[Drill], None]] = {
    drill.__name__: drill
    for drill in (
        kill_trainer,
        kill_daemon,
        stop_trainer,
        pause_trainer,
        stop_daemon,
        pause_daemon,
        silence_daemon,
        close_link,
        reset_link,
    )
}
