"""Who is here, which epoch runs, and what each daemon must be told: a pure state machine.

Events go in with the time, instructions come out. Each rank has a seat. A daemon takes it with
its handshake, says where it listens, and keeps it until it leaves, is lost, or is silent too
long. When every seat is taken, all are told the members, and again whenever a seat found a new
daemon. When every seat's daemon has a trainer that waits, the next epoch starts. A trainer that
attaches while others still run the current epoch waits for the next one, and as all must attach
anew, no epoch starts before every trainer of the one before has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

from ringd.rendezvous.addresses import is_loopback, loopback_text
from ringd.rendezvous.events import (
    DaemonAdmitted,
    DaemonJoined,
    DaemonLeft,
    DaemonLost,
    Drop,
    Event,
    FromDaemon,
    Heartbeat,
    Instruction,
    LinkLost,
    LinkWanted,
    Lost,
    OpAnswered,
    OpFailed,
    Send,
    Tick,
    TrainerAttached,
    TrainerDetached,
)
from ringd.rendezvous.inquiries import ASKED_ABOUT, Inquiries, error_of
from ringd.rendezvous.link_verdict import judge
from ringd.rendezvous.recovery import Recovery

DEAD_AFTER_S = 3.0
GATHER_LINK_REPORTS_S = 0.150
"""How long a report about a link waits for others, and for a sign that the accused is dead."""
MAX_FAILED_OPS = 4096
"""Operations whose first error is remembered, so that later ones are not told."""
MAX_VERDICTS = 16


@dataclass(slots=True)
class _Seat:
    """One rank's place."""

    peer: str = ""  # "" while it is vacant
    remote: bool = False
    daemon: DaemonJoined | None = None
    heard_at: float = 0.0
    attempt: int = 0  # of the trainer that waits for the next epoch; 0: none
    running: bool = False  # its trainer takes part in the current epoch


class Membership:
    """The state of one group.

    Args:
        world_size: how many ranks.
        dead_after_s: a daemon silent for so long is lost.
        gather_s: how long reports of a broken link are gathered.
        majority: only more than half of the last epoch's members may go on.
        unreachable: ranks that a successor of another rendezvous has tried in vain.
    """

    def __init__(
        self,
        world_size: int,
        *,
        dead_after_s: float = DEAD_AFTER_S,
        gather_s: float = GATHER_LINK_REPORTS_S,
        majority: bool = False,
        unreachable: Set[int] = frozenset(),
    ) -> None:
        self.world_size = world_size
        self.epoch = 0
        self._dead_after_s = dead_after_s
        self._gather_s = gather_s
        self._seats = [_Seat() for _ in range(world_size)]
        self.members = tuple(range(world_size))
        self._majority = majority
        self._recovery = Recovery(self, dead_after_s, majority=majority, unreachable=unreachable)
        self._told: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._formed = False  # the members were told, and none has gone since
        self._announced: set[int] = set()  # ranks lost in the current epoch
        self._reports: list[LinkLost] = []
        self._judge_at: float | None = None
        self._failed_ops: dict[tuple[int, int, int], None] = {}
        self._inquiries = Inquiries()
        self.n_verdicts = 0
        self._verdicts: deque[Lost] = deque(maxlen=MAX_VERDICTS)

    # Queries

    def refusal(self, rank: int) -> str | None:
        """Why no daemon may take the place of ``rank`` now; None when one may."""
        seat = self._seats[rank]
        if not seat.peer:
            return None
        text = f"rank {rank} already taken by {seat.peer}"
        daemon = seat.daemon
        if daemon is not None:
            text += f" (pid {daemon.pid} on {daemon.host or '?'}, listens on {daemon.address})"
        return text

    def next_deadline(self) -> float | None:
        """When a Tick is due if nothing else happens."""
        times = [seat.heard_at + self._dead_after_s for seat in self._seats if seat.peer]
        others = (
            self._judge_at,
            self._inquiries.next_deadline(),
            self._recovery.next_deadline(),
        )
        times += [due for due in others if due is not None]
        return min(times, default=None)

    def joined(self) -> tuple[int, ...]:
        """Ranks whose daemon is here."""
        return tuple(r for r, seat in enumerate(self._seats) if seat.daemon is not None)

    def attached(self) -> tuple[int, ...]:
        """Ranks whose trainer waits for the next epoch."""
        return tuple(r for r, seat in enumerate(self._seats) if seat.attempt)

    def running(self) -> tuple[int, ...]:
        """Ranks whose trainer takes part in the current epoch."""
        return tuple(r for r, seat in enumerate(self._seats) if seat.running)

    def status(self) -> dict[str, Any]:
        """A snapshot, as plain data."""
        return {
            "world_size": self.world_size,
            "epoch": self.epoch,
            "joined": list(self.joined()),
            "attached": list(self.attached()),
            "running": list(self.running()),
            "daemons": [self._describe(rank) for rank in self.joined()],
            "recovering": self._recovery.waiting,
            "verdicts": [verdict.to_fields() for verdict in self._verdicts],
        }

    def _describe(self, rank: int) -> dict[str, Any]:
        seat = self._seats[rank]
        daemon = seat.daemon
        assert daemon is not None
        trainer = "waiting" if seat.attempt else "running" if seat.running else "none"
        return {
            "rank": rank,
            "address": str(daemon.address),
            "control_peer": seat.peer,
            "pid": daemon.pid,
            "host": daemon.host,
            "version": daemon.version,
            "trainer": trainer,
        }

    # Events

    def apply(self, event: Event, now: float) -> list[Instruction]:
        """Take one event in at the time ``now``; what is to be done, in order."""
        if isinstance(event, Tick):
            out = self._tick(now)
        else:
            out = self._from_daemon(event, now)
        told, held = self._recovery.advance(now)
        out += told
        for waited in held:
            out += self._from_daemon(waited, now)
        return out + self._end_inquiries(now) + self._presence()

    def _from_daemon(self, event: FromDaemon, now: float) -> list[Instruction]:
        seat = self._seats[event.rank]
        if isinstance(event, DaemonAdmitted):
            return self._admit(seat, event, now)
        if not seat.peer:
            return []
        seat.heard_at = now
        match event:
            case Heartbeat():
                return []
            case DaemonLeft():
                return self._vacate(event.rank, "daemon left", "it ended on purpose")
            case DaemonLost():
                return self._vacate(event.rank, "daemon lost", event.reason)
            case DaemonJoined():
                return self._join(seat, event, now)
        if seat.daemon is None:
            return self._drop(event.rank, "it spoke before it joined")
        if self._recovery.holds(event):
            return []
        return self._from_joined(seat, event, now)

    def _from_joined(self, seat: _Seat, event: FromDaemon, now: float) -> list[Instruction]:
        match event:
            case TrainerAttached():
                return self._attach(seat, event)
            case TrainerDetached():
                return self._detach(seat, event)
            case LinkLost():
                return self._link_lost(event, now)
            case OpFailed():
                return self._op_failed(event, now)
            case OpAnswered():
                self._inquiries.answer(event)
                return []
            case LinkWanted():
                return self._link_wanted(event)
        raise TypeError(f"{event!r} is no event of a daemon")

    def _tick(self, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for rank, seat in enumerate(self._seats):
            if seat.peer and now >= seat.heard_at + self._dead_after_s:
                out += self._drop(rank, f"silent for {self._dead_after_s:g} s")
        if self._judge_at is not None and now >= self._judge_at:
            out += self._judge_links()
        return out

    # Seats

    def _admit(self, seat: _Seat, event: DaemonAdmitted, now: float) -> list[Instruction]:
        if seat.peer:
            raise ValueError(self.refusal(event.rank))
        seat.peer, seat.remote, seat.heard_at = event.peer, event.remote, now
        return []

    def _join(self, seat: _Seat, event: DaemonJoined, now: float) -> list[Instruction]:
        if seat.daemon is not None:
            return self._drop(event.rank, "it joined twice")
        seat.daemon = event
        return self._recovery.joined(event, now)

    def _drop(self, rank: int, reason: str) -> list[Instruction]:
        return [Drop(rank, reason), *self._vacate(rank, "daemon lost", reason)]

    def _vacate(self, rank: int, case: str, detail: str) -> list[Instruction]:
        was_running = self._seats[rank].running
        self._seats[rank] = _Seat()
        self._inquiries.gone(rank)
        self._formed = False
        self._forget_reports_of(rank)
        if self._recovery.gone(rank, case, detail) or not was_running:
            return []
        return self.announce(Lost(rank, case, detail, self.epoch))

    def _presence(self) -> list[Instruction]:
        """Tell the members, the start, or who is here, if that changed."""
        here = (self.joined(), self.attached())
        if here == self._told:
            return []
        self._told = here
        joined, attached = here
        out: list[Instruction] = []
        complete = len(joined) == self.world_size
        if complete and not self._formed:
            out += self._form()
        if self._formed and len(attached) == self.world_size and not self._recovery.waiting:
            return out + self._start()
        to = attached if complete else joined
        if to:
            out.append(Send(to, "waiting", {"joined": list(joined), "attached": list(attached)}))
        return out

    def _form(self) -> list[Instruction]:
        obstacle = self._unreachable() or self._unequal()
        if obstacle is not None:
            return [Send(self.joined(), "refused", {"text": obstacle})]
        self._formed = True
        daemons = (seat.daemon for seat in self._seats)
        members = [[d.rank, d.address.host, d.address.port] for d in daemons if d is not None]
        return [Send(self.joined(), "members", {"members": members})]

    def _unreachable(self) -> str | None:
        """A rank that advertises loopback while another one sits on another host."""
        remote = [rank for rank, seat in enumerate(self._seats) if seat.remote]
        for rank, seat in enumerate(self._seats):
            others = [r for r in remote if r != rank]
            if others and seat.daemon is not None and is_loopback(seat.daemon.address.host):
                other = f"rank {others[0]} (at {self._seats[others[0]].peer})"
                return loopback_text(rank, seat.daemon.address, other)
        return None

    def _unequal(self) -> str | None:
        """A rank whose sizes differ from rank 0's: they would cut a tensor differently."""
        sizes = [seat.daemon.sizes for seat in self._seats if seat.daemon is not None]
        for rank, its in enumerate(sizes):
            if its != sizes[0]:
                return (
                    f"rank {rank} has segment_bytes and eager_bytes {list(its)}, rank 0 has "
                    f"{list(sizes[0])}: set them alike on all ranks"
                )
        return None

    # Epochs

    def _attach(self, seat: _Seat, event: TrainerAttached) -> list[Instruction]:
        if seat.running or seat.attempt:
            return self._drop(event.rank, "it attached a second trainer")
        seat.attempt = event.attempt
        return []

    def _begin(self, epoch: int, members: tuple[int, ...]) -> None:
        self.epoch, self.members = epoch, members
        self._announced.clear()
        self._failed_ops.clear()
        self._inquiries.clear()

    def _start(self) -> list[Instruction]:
        self._begin(max(self.epoch, self._recovery.highest) + 1, tuple(range(self.world_size)))
        out: list[Instruction] = []
        for rank, seat in enumerate(self._seats):
            fields = {"epoch": self.epoch, "attempt": seat.attempt}
            out.append(Send((rank,), "start", fields))
            seat.attempt, seat.running = 0, True
        self._told = (self.joined(), ())
        return out

    def _detach(self, seat: _Seat, event: TrainerDetached) -> list[Instruction]:
        if seat.attempt:
            seat.attempt = 0
            return []
        gave_up = event.how == "gave_up"
        if not seat.running or (event.epoch != self.epoch and not gave_up):
            return []
        crossed = event.epoch != self.epoch  # the start, on its way: the trainer called nothing
        seat.running = False
        if gave_up or event.how == "goodbye":
            self._forget_reports_of(event.rank)
            next_seq, groups = (0, ()) if crossed else (event.next_seq, event.groups)
            fields = {
                "rank": event.rank,
                "epoch": self.epoch,
                "next_seq": next_seq,
                "groups": [list(pair) for pair in groups],
            }
            return self._broadcast("left", fields, but=event.rank)
        return self.announce(Lost(event.rank, f"trainer {event.how}", event.detail, self.epoch))

    def announce(self, lost: Lost) -> list[Instruction]:
        """Tell all but the lost rank, once; what else is reported of links adds nothing then."""
        if lost.rank in self._announced:
            return []
        self._announced.add(lost.rank)
        if not lost.number:
            lost = replace(lost, number=self.number())
        self._verdicts.append(lost)
        self._reports.clear()
        self._judge_at = None
        return self._broadcast("lost", lost.to_fields(), but=lost.rank)

    # What recovery needs

    def take_over(self, epoch: int, members: tuple[int, ...]) -> None:
        """This epoch runs, and nothing of it is known yet; nobody counts as running."""
        self._begin(epoch, members)
        for seat in self._seats:
            seat.running = False

    def take_part(self, rank: int) -> None:
        """The trainer of ``rank`` takes part in the epoch, if the rank is not lost."""
        self._seats[rank].running = rank not in self._announced

    def verdicts_on(self, epoch: int) -> list[Lost]:
        """Why that epoch is over, as far as it is remembered."""
        return [verdict for verdict in self._verdicts if verdict.epoch == epoch]

    # Links

    def _link_lost(self, event: LinkLost, now: float) -> list[Instruction]:
        known = 0 <= event.peer < self.world_size and event.peer != event.rank
        if not known or event.epoch != self.epoch or self._announced:
            return []
        if not (self._seats[event.rank].running and self._seats[event.peer].running):
            return []
        if any((r.rank, r.peer) == (event.rank, event.peer) for r in self._reports):
            return []
        self._reports.append(event)
        if self._judge_at is None:
            self._judge_at = now + self._gather_s
        return []

    def _forget_reports_of(self, rank: int) -> None:
        """A rank that went explains the links that it had."""
        self._reports = [r for r in self._reports if rank not in (r.rank, r.peer)]
        if not self._reports:
            self._judge_at = None

    def _judge_links(self) -> list[Instruction]:
        lost = judge(self._reports, self.epoch)
        # The accused lives, and its epoch is over too: it is told like the others.
        told = self.announce(lost)
        return [*told, *(Send((lost.rank,), s.type, s.fields) for s in told if isinstance(s, Send))]

    def _link_wanted(self, event: LinkWanted) -> list[Instruction]:
        low, high = sorted((event.rank, event.peer))
        if low < 0 or high >= self.world_size or low == high:
            return self._drop(event.rank, f"it wants a link to rank {event.peer}")
        if self._seats[low].daemon is None or self._seats[high].daemon is None:
            return []
        return [Send((low,), "dial", {"peer": high})]

    # Operations

    def _op_failed(self, event: OpFailed, now: float) -> list[Instruction]:
        members = set(event.members)
        known = event.rank in members and max(members) < self.world_size
        if not known or len(members) < len(event.members):
            return self._drop(event.rank, "it reports on a group that can't be its own")
        op = event.key
        if event.epoch != self.epoch or op in self._failed_ops:
            return []
        if len(self._failed_ops) >= MAX_FAILED_OPS:
            del self._failed_ops[next(iter(self._failed_ops))]
        self._failed_ops[op] = None
        if event.error.get("code") in ASKED_ABOUT:
            asked = self._inquiries.begin(event, self.joined(), now)
            if asked is not None:
                return [asked]
        error = dict(event.error)
        fields = error.get("fields")
        fields = fields if isinstance(fields, dict) else {}
        # One that quotes an earlier operation's is that verdict.
        error["fields"] = {**fields, "verdict": fields.get("verdict") or self.number()}
        return self._sentence(event, error)

    def _end_inquiries(self, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for inquiry in self._inquiries.ended(now):
            error = error_of(inquiry.first, inquiry.judge(), self.number())
            out += self._sentence(inquiry.first, error)
        return out

    def _sentence(self, event: OpFailed, error: dict[str, Any]) -> list[Instruction]:
        """Tell everybody how an operation ended, who reported it too."""
        fields = {
            "epoch": event.epoch,
            "group": event.group,
            "lowest": event.lowest,
            "seq": event.seq,
            "error": error,
        }
        return [Send(self.joined(), "abort", fields)]

    def number(self) -> str:
        """The id of the next verdict."""
        self.n_verdicts += 1
        return f"{self.epoch}.{self.n_verdicts}"

    def _broadcast(self, kind: str, fields: dict[str, Any], *, but: int) -> list[Instruction]:
        to = tuple(rank for rank in self.joined() if rank != but)
        return [Send(to, kind, fields)] if to else []
