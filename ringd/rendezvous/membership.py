"""Who is here, which epoch runs, and what each daemon must be told: a pure state machine.

Events go in with the time, instructions come out. Each rank has a seat. A daemon takes it with
its handshake, says where it listens, and keeps it until it leaves, is lost, or is silent too
long. When every seat is taken, all are told the addresses, and again whenever a seat found a new
daemon. When every seat's daemon has a trainer that waits, the first epoch starts. A trainer that
attaches while others run an epoch waits until they ask for the next one (ADR 15), or until all of
them have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

from ringd.rendezvous.bounds import DEAD_AFTER_S, GATHER_LINK_REPORTS_S, LAST_CALL_S
from ringd.rendezvous.events import (
    BeginAnew,
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
    OpAnswered,
    OpFailed,
    PostFailed,
    ReformWanted,
    Send,
    Tick,
    TrainerAttached,
    TrainerDetached,
)
from ringd.rendezvous.gathering import Gathering
from ringd.rendezvous.link_verdict import LinkReports, judge
from ringd.rendezvous.news import Lost
from ringd.rendezvous.recovery import TOO_FEW_BACK, Recovery
from ringd.rendezvous.reforming import Wishes, other_side_text
from ringd.rendezvous.seats import Seat
from ringd.rendezvous.sentences import Sentences
from ringd.rendezvous.silence import Silence
from ringd.vocabulary import ranks_text

MAX_VERDICTS = 16


class Membership:
    """The state of one group.

    Args:
        world_size: how many ranks.
        dead_after_s: a daemon silent for so long is lost.
        gather_s: how long reports of a broken link are gathered.
        min_size: the first epoch may begin with so many; 0: with all ranks.
        last_call_s: and does when no other came for so long.
        majority: an epoch must hold more than half of the members of the one before, and a
            rendezvous that knows nothing judges only with so many.
        unreachable: ranks that the successor of a rendezvous has tried in vain.
    """

    def __init__(
        self,
        world_size: int,
        *,
        dead_after_s: float = DEAD_AFTER_S,
        gather_s: float = GATHER_LINK_REPORTS_S,
        min_size: int = 0,
        last_call_s: float = LAST_CALL_S,
        majority: bool = False,
        unreachable: Set[int] = frozenset(),
    ) -> None:
        self._rules: dict[str, Any] = {
            "dead_after_s": dead_after_s,
            "gather_s": gather_s,
            "min_size": min_size,
            "last_call_s": last_call_s,
            "majority": majority,
        }
        self.world_size = world_size
        self.epoch = 0
        self.members: tuple[int, ...] = ()
        self._majority = majority
        self._dead_after_s = dead_after_s
        self._silence = Silence(dead_after_s)
        self._seats = [Seat() for _ in range(world_size)]
        self._gathering = Gathering(self._seats, min_size or world_size, last_call_s)
        self._left: set[int] = set()  # members that said goodbye, or have no trainer any more
        self._wishes = Wishes()
        self._all_lost = False  # every member was; those that ask for the next epoch come back
        self._changed = False  # a member asked for the next epoch: this one is over
        self._announced: set[int] = set()  # ranks lost in the current epoch
        self._link_reports = LinkReports(gather_s)
        self._sentences = Sentences(self.number, self.joined)
        self._recovery = Recovery(self, dead_after_s, majority=majority, unreachable=unreachable)
        self.n_verdicts = 0
        self._verdicts: deque[Lost] = deque(maxlen=MAX_VERDICTS)

    def anew(self) -> Membership:
        """One that knows of no daemon, as if the rendezvous had been restarted (ADR 16): only the
        verdicts, and what has a number, it goes on with."""
        fresh = Membership(self.world_size, **self._rules)
        fresh.members = self.members  # they are missed, as far as another rendezvous asks
        fresh.n_verdicts = self.n_verdicts
        fresh._verdicts.extend(self._verdicts)
        fresh._recovery.highest = self.highest_epoch
        return fresh

    # Queries

    @property
    def highest_epoch(self) -> int:
        """Of all that ever began, as far as is known; 0: none did."""
        return max(self.epoch, self._recovery.highest)

    def refusal(self, rank: int) -> str | None:
        """Why no daemon may take the place of ``rank`` now; None when one may."""
        seat = self._seats[rank]
        return f"rank {rank} already taken by {seat.holder()}" if seat.peer else None

    def next_deadline(self) -> float | None:
        """When a Tick is due if nothing else happens."""
        times = [
            due
            for due in (
                self._silence.next_deadline(),
                self._link_reports.judge_at,
                self._sentences.next_deadline(),
                self._recovery.next_deadline(),
                self._wishes.next_deadline(),
                self._gathering.last_call(),
            )
            if due is not None
        ]
        return min(times, default=None)

    def joined(self) -> tuple[int, ...]:
        """Ranks whose daemon is here."""
        return self._gathering.joined()

    def attached(self) -> tuple[int, ...]:
        """Ranks whose trainer waits to be let in."""
        return self._gathering.attached()

    def running(self) -> tuple[int, ...]:
        """Ranks whose trainer takes part in the current epoch."""
        return self._gathering.running()

    def outnumbered(self) -> bool:
        """Whether half of the last epoch's members, or more, are not here."""
        here = sum(self._seats[rank].daemon is not None for rank in self.members)
        return 0 < len(self.members) >= 2 * here

    def status(self) -> dict[str, Any]:
        """A snapshot, as plain data."""
        return {
            "world_size": self.world_size,
            "epoch": self.epoch,
            "joined": list(self.joined()),
            "attached": list(self.attached()),
            "running": list(self.running()),
            "members": list(self.members),
            "daemons": [self._seats[rank].describe() for rank in self.joined()],
            "recovering": self._recovery.waiting,
            "verdicts": [verdict.to_fields() for verdict in self._verdicts],
        }

    # Events

    def apply(self, event: Event, now: float) -> list[Instruction]:
        """Take one event in at the time ``now``; what is to be done, in order."""
        self._note_heard(event, now)
        if self._is_in_vain(event, now):
            text = "it was held up or cut off, and can't know which of its daemons live"
            return [BeginAnew(text)]
        if isinstance(event, Tick):
            out = self._tick(now)
        else:
            out = self._from_daemon(event, now)
        told, held = self._recovery.advance(now)
        out += told
        for waited in held:
            out += self._from_daemon(waited, now)
        return [*out, *self._sentences.ended(now), *self._advance(now)]

    def _note_heard(self, event: Event, now: float) -> None:
        if not isinstance(event, Tick | DaemonAdmitted) and self._seats[event.rank].peer:
            self._silence.heard(event.rank, now)

    def _is_in_vain(self, event: Event, now: float) -> bool:
        """Whether a loss would say nothing of the daemon: it was us who could not be reached."""
        if isinstance(event, Tick):
            return self._silence.total(now)
        return isinstance(event, DaemonLost) and self._silence.in_doubt(now)

    def _from_daemon(self, event: FromDaemon, now: float) -> list[Instruction]:
        seat = self._seats[event.rank]
        if isinstance(event, DaemonAdmitted):
            return self._admit(seat, event, now)
        if not seat.peer:
            return []
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

    def _from_joined(self, seat: Seat, event: FromDaemon, now: float) -> list[Instruction]:
        match event:
            case TrainerAttached():
                return self._attach(seat, event, now)
            case ReformWanted():
                return self._reform(seat, event, now)
            case TrainerDetached():
                return self._detach(seat, event)
            case LinkLost():
                return self._link_lost(event, now)
            case OpFailed() | PostFailed():
                return self._op_failed(event, now)
            case OpAnswered():
                return [*self._sentences.answer(event, now)]
            case LinkWanted():
                return self._link_wanted(event)
        raise TypeError(f"{event!r} is no event of a daemon")

    def _tick(self, now: float) -> list[Instruction]:
        out: list[Instruction] = []
        for rank in self._silence.lost(now):
            out += self._drop(rank, f"silent for {self._dead_after_s:g} s")
        if reports := self._link_reports.due(now):
            out += self._judge_links(reports)
        return out

    # Seats

    def _admit(self, seat: Seat, event: DaemonAdmitted, now: float) -> list[Instruction]:
        if seat.peer:
            raise ValueError(self.refusal(event.rank))
        seat.peer, seat.remote = event.peer, event.remote
        self._silence.heard(event.rank, now)
        return []

    def _join(self, seat: Seat, event: DaemonJoined, now: float) -> list[Instruction]:
        if seat.daemon is not None:
            return self._drop(event.rank, "it joined twice")
        seat.daemon = event
        self._gathering.daemon_came(now)
        return self._recovery.joined(event, now)

    def _drop(self, rank: int, reason: str) -> list[Instruction]:
        return [Drop(rank, reason), *self._vacate(rank, "daemon lost", reason)]

    def _vacate(self, rank: int, case: str, detail: str) -> list[Instruction]:
        was_running = self._seats[rank].running
        self._seats[rank] = Seat()
        self._silence.gone(rank)
        self._sentences.gone(rank)
        self._wishes.forget(rank)
        self._gathering.gone(rank)
        self._link_reports.forget(rank)
        if self._recovery.gone(rank, case, detail) or not was_running:
            return []
        return self.announce(Lost(rank, case, detail, self.epoch))

    def _advance(self, now: float) -> list[Instruction]:
        """Tell addresses, the start, or who is here, as far as that changed."""
        told = [] if self._recovery.waiting else self._gathering.introduce(now)
        return [*told, *self._next_epoch(now), *self._gathering.tell_who_waits(self.epoch)]

    # Epochs

    def _attach(self, seat: Seat, event: TrainerAttached, now: float) -> list[Instruction]:
        if seat.running or seat.attempt:
            return self._drop(event.rank, "it attached a second trainer")
        seat.attempt = event.attempt
        self._gathering.trainer_came(now)
        return []

    def _reform(self, seat: Seat, event: ReformWanted, now: float) -> list[Instruction]:
        seat.running = seat.running or self._is_survivor(event)
        if not seat.running:  # the others went on without it: it comes as a new one
            return self._attach(seat, TrainerAttached(event.rank, event.attempt), now)
        if event.epoch != self.epoch or event.rank in self._wishes.asked:
            return self._drop(event.rank, "it asked for the next epoch out of its turn")
        self._wishes.add(event, now)
        if self._changed:
            return []
        self._changed = True
        to = tuple(rank for rank in self.running() if rank != event.rank)
        fields = {"epoch": self.epoch, "rank": event.rank}
        return [Send(to, "changed", fields)] if to else []

    def _is_survivor(self, event: ReformWanted) -> bool:
        """Whether it was called lost, as all others of its epoch were: they go on together."""
        if event.epoch != self.epoch or self._recovery.waiting:
            return False
        self._all_lost = self._all_lost or not self.running()
        return self._all_lost and event.rank in self.members and event.rank not in self._left

    def _survivors(self) -> Sequence[int]:
        """Who may ask for the next epoch as a member of this one."""
        if not self._all_lost:
            return self.running()
        seats = self._seats
        return [r for r in self.members if r not in self._left and not seats[r].attempt]

    def _next_epoch(self, now: float) -> list[Instruction]:
        if self._recovery.waiting:
            text = TOO_FEW_BACK.format(missing=ranks_text(self._recovery.absent()))
            return self._refuse(self._wishes.overdue(now), text)
        if self._silence.in_doubt(now):  # who asks may have given up, a message later
            return []
        new = self._gathering.newcomers()
        if not self.running():
            return self._start(new, None) if self._gathering.may_begin(now) else []
        wishes = self._wishes
        due = wishes.next_deadline()
        late = [rank for rank in self._survivors() if rank not in wishes.asked]
        if due is None or (late and now < due):
            return []
        choice = wishes.choose(
            self.members,
            self._left,
            new,
            majority=self._majority,
            returned=[rank for rank in new if self._seats[rank].is_of(self.epoch)],
        )
        if not choice.members and not choice.final and now < due:
            return []
        if choice.cut_off and now < due and self._any_silent(choice.members):
            return []
        out = self._refuse(choice.cut_off, other_side_text(choice.members))
        if choice.members:
            for rank in (*late, *choice.cut_off):
                self._seats[rank].running = False
            history = wishes.history(self.epoch, self.members, choice.members)
            return out + self._start(choice.members, history)
        out += self._refuse(list(wishes.asked), choice.obstacle, quorum=choice.final)
        wishes.clear()
        return out

    def _any_silent(self, ranks: Sequence[int]) -> bool:
        """Whether one of ``ranks`` may be dead, and therefore out of its peers' reach: nobody is
        left out in its favour."""
        return any(self._silence.since(rank, self._wishes.cut_told_at) for rank in ranks)

    def _refuse(self, ranks: Sequence[int], text: str, *, quorum: bool = True) -> list[Instruction]:
        """Tell those of ``ranks`` that asked for the next epoch that they can't be in one."""
        missing = [rank for rank in self.members if rank not in ranks]
        facts = {"epoch": self.epoch, "here": sorted(ranks), "missing": missing}
        refusals = self._wishes.refusals(ranks, text, quorum=quorum, facts=facts)
        for rank in ranks:
            self._wishes.forget(rank)
        return [*refusals]

    def _begin(self, epoch: int, members: tuple[int, ...]) -> None:
        self.epoch, self.members = epoch, members
        self._announced.clear()
        self._sentences.clear()
        self._left.clear()
        self._link_reports.clear()
        self._changed = self._all_lost = False

    def _start(self, members: Sequence[int], history: dict[str, Any] | None) -> list[Instruction]:
        """The next epoch begins: ``members`` are its seats, in order."""
        self._begin(self.highest_epoch + 1, tuple(members))
        out: list[Instruction] = []
        for rank in members:
            seat, wish = self._seats[rank], self._wishes.asked.get(rank)
            fields = {
                "epoch": self.epoch,
                "attempt": seat.attempt if wish is None else wish.attempt,
                "members": list(members),
                "last": history,
            }
            out.append(Send((rank,), "start", fields))
            seat.attempt, seat.running = 0, True
        self._wishes.clear()
        self._gathering.begun()
        return out

    def _detach(self, seat: Seat, event: TrainerDetached) -> list[Instruction]:
        if seat.attempt:
            seat.attempt = 0
            return []
        gave_up = event.how == "gave_up"
        asked = event.rank in self._wishes.asked
        self._wishes.forget(event.rank)
        if gave_up and asked and event.epoch == self.epoch:
            return []  # it may ask again
        if not seat.running or (event.epoch != self.epoch and not gave_up):
            return []
        crossed = event.epoch != self.epoch  # the start, on its way: the trainer called nothing
        seat.running = False
        if gave_up or event.how == "goodbye":
            self._left.add(event.rank)
            self._link_reports.forget(event.rank)
            next_seq, groups = (0, ()) if crossed else (event.next_seq, event.groups)
            fields = {
                "rank": event.rank,
                "epoch": self.epoch,
                "next_seq": next_seq,
                "groups": [list(pair) for pair in groups],
            }
            return self._broadcast("left", fields, but=event.rank)
        how = f"trainer {event.how}"
        return self.announce(Lost(event.rank, how, event.detail, self.epoch, raised=event.raised))

    def announce(self, lost: Lost) -> list[Instruction]:
        """Tell all but the lost rank, once; what else is reported of links adds nothing then."""
        if lost.rank in self._announced:
            return []
        self._announced.add(lost.rank)
        if lost.case.startswith("trainer"):
            self._left.add(lost.rank)  # its own daemon said so: it is on no other side
        if not lost.number:
            lost = replace(lost, number=self.number())
        self._verdicts.append(lost)
        self._link_reports.clear()
        return self._broadcast("lost", lost.to_fields(), but=lost.rank)

    # What recovery needs

    def take_over(self, epoch: int, members: tuple[int, ...]) -> None:
        """This epoch runs, and nothing of it is known yet; nobody counts as running."""
        self._begin(epoch, members)
        for seat in self._seats:
            seat.running = False
        for rank, wish in self._wishes.asked.items():  # of an older epoch: it comes as a new one
            self._seats[rank].attempt = wish.attempt
        self._wishes.clear()

    def take_part(self, rank: int) -> None:
        """The trainer of ``rank`` takes part in the epoch."""
        self._seats[rank].running = True

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
        self._link_reports.add(event, now)
        return []

    def _judge_links(self, reports: Sequence[LinkLost]) -> list[Instruction]:
        lost = judge(reports, self.epoch)
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

    def _op_failed(self, event: OpFailed | PostFailed, now: float) -> list[Instruction]:
        members = set(event.members)
        known = event.rank in members and max(members) < self.world_size
        if not known or len(members) < len(event.members):
            return self._drop(event.rank, "it reports on a group that can't be its own")
        return [*self._sentences.report(event, now)] if event.epoch == self.epoch else []

    def number(self) -> str:
        """The id of the next verdict."""
        self.n_verdicts += 1
        return f"{self.epoch}.{self.n_verdicts}"

    def _broadcast(self, kind: str, fields: dict[str, Any], *, but: int) -> list[Instruction]:
        to = tuple(rank for rank in self.joined() if rank != but)
        return [Send(to, kind, fields)] if to else []
