"""All operations of one rank: takes requests, routes frames, keeps time.

The engine knows links and groups, and nothing of sockets, processes or the rendezvous; what it
needs of them it asks of its ``Surroundings``. The same code runs in a daemon and, over the
in-memory transport and virtual time, in the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Protocol

from ringd.engine import failures
from ringd.engine.busy_poll import POLL_BYTES, BusyPoll
from ringd.engine.compiler import Compiled, Splits
from ringd.engine.deadlines import Deadlines
from ringd.engine.endings import Endings
from ringd.engine.engine_answers import NO_ANSWER
from ringd.engine.group import Group
from ringd.engine.groups import Groups
from ringd.engine.landing import PIECE_BYTES, ScratchPool
from ringd.engine.leaving import Leaving
from ringd.engine.link import Link
from ringd.engine.mail import Mail
from ringd.engine.message import Post
from ringd.engine.operation import OnDone, Operation
from ringd.engine.probing import Probing
from ringd.engine.router import Router
from ringd.engine.times import Times, times_of
from ringd.engine.waits import waits_of
from ringd.errors import (
    GroupFreedError,
    InvalidArgumentError,
    MembershipChangedError,
    RingdError,
    TooManyOperationsError,
)
from ringd.schedules.select import Thresholds
from ringd.vocabulary import (
    MAY_RETURN_EARLY,
    NEW_GROUP,
    POINT_TO_POINT,
    OpSpec,
    check_spec,
    spec_or_unknown,
    unpack_spec,
)
from ringd.wire.bounds import OF_DAEMON, Bound

Local = int | Splits | None
"""What of a call may differ between ranks: the tag of send and recv, the splits of all_to_all."""
CALL_AGAIN_S = 1.0
LINK_GRACE_S = 1.0
"""How long after a broken link the rendezvous may take to say what happened."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes and defaults; every rank of a job must have the same segment and eager sizes."""

    segment_bytes: int = 1024 * 1024
    eager_bytes: int = 64 * 1024
    timeout_s: float = 300.0
    recv_timeout_s: float = 0.0
    max_in_flight: int = 1024
    tick_s: float = 0.02
    busy_poll_s: float = 0.0
    inline_bytes: int = 64 * 1024
    resume_s: float = 5.0


class Surroundings(Protocol):
    """What the engine asks of the daemon around it."""

    def want_link(self, peer: int) -> None:
        """Make a link to ``peer``; ``Engine.link_up`` follows, or the operation's deadline."""

    def op_failed(
        self, epoch: int, group: int, members: Sequence[int], seq: int, error: RingdError
    ) -> bool:
        """Tell the rendezvous; whether it is in reach, so that a verdict may be expected."""

    def in_reach(self) -> bool:
        """Whether the rendezvous is."""

    def post_failed(self, question: dict[str, Any]) -> bool:
        """Ask the rendezvous about a message that came to its deadline; whether it is in reach."""

    def link_down(self, peer: int, reason: str) -> None:
        """A link's connection broke; it is being made anew."""

    def link_lost(self, peer: int, reason: str) -> None:
        """A link ended without a goodbye, and did not come back."""

    def op_ended(self, op: Operation, error: RingdError | None) -> None:
        """For the accounting and the flight recorder."""

    def call_void(self, group: Group, spec: OpSpec, seq: int, error: RingdError) -> None:
        """A call ended before it began: its place was void, or it is the first on a group that is
        over, which has no place in the order any more."""

    def post_ended(self, post: Post, error: RingdError | None) -> None:
        """A send or a receive ended."""


class Engine:
    """The operations, groups and links of one rank. Runs on its loop's thread only.

    Args:
        bring_torch: called when a 16-bit operation would be quicker with torch's conversions; it
            returns at once.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        rank: int,
        world_size: int,
        surroundings: Surroundings,
        options: EngineOptions,
        clock_ns: Callable[[], int] = monotonic_ns,
        bring_torch: Callable[[], None] | None = None,
    ) -> None:
        self.loop = loop
        self.now = loop.time
        self.rank = rank
        self.world_size = world_size
        self.options = options
        self.links: dict[int, Link] = {}
        self.joining: set[int] = set()
        self.unborn: dict[int, Link] = {}
        self.lost_at: dict[int, float] = {}
        self.cut_off: set[int] = set()  # peers whose link was lost in this epoch, and is not back
        self.scratch = ScratchPool()
        self._pieces: dict[int, memoryview] = {}
        self.completed = 0
        self.groups = Groups(self, bring_torch)
        self.router = Router(self)
        self.mail = Mail(self, surroundings)
        self.leaving = Leaving(self)
        self.probing = Probing(self)
        self.endings = Endings(self, surroundings)
        self._surroundings = surroundings
        self._waiting_for_link: dict[int, list[Operation]] = {}
        self._clock_ns = clock_ns
        self.live: dict[Operation, None] = {}
        self._idle_since = 0.0
        self._deadlines = Deadlines(self, options.tick_s)
        self.busy_poll = BusyPoll(loop, options.busy_poll_s)

    @property
    def world(self) -> Group:
        """The group of all members of the epoch."""
        return self.groups.world

    def piece(self, peer: int) -> memoryview:
        """Scratch for what is landing from ``peer``: a landing may pause with some of it filled."""
        found = self._pieces.get(peer)
        if found is None:
            size = min(PIECE_BYTES, self.options.segment_bytes)
            found = self._pieces[peer] = memoryview(bytearray(size))
        return found

    # Requests

    def submit(
        self,
        packed_spec: bytes,
        region: Callable[[int], memoryview],
        on_done: OnDone,
        *,
        timeout_s: float = 0.0,
        deadline: float | None = None,
        recv_timeout_s: float = 0.0,
        local: Local = None,
        bound: Bound | None = None,
    ) -> None:
        """Enter a collective, or post a send or a receive.

        Args:
            packed_spec: the call, equal on all ranks (but for send and recv).
            region: gives the working region of so many bytes; may raise RingdError.
            on_done: called once, perhaps before this returns.
            timeout_s: deadline from now on, 0: the default.
            deadline: the same in loop time; the earlier of both counts, so that one of another
                clock does no harm.
            recv_timeout_s: limit of a peer's silence, 0: the default.
            local: what of the call is this rank's own.
            bound: the deadline as it was asked for, for errors, and the longest that the call may
                still take; None: ``timeout_s``.
        """
        in_flight = len(self.live) + len(self.mail.live)
        if in_flight >= self.options.max_in_flight:
            # Not posted: it took no place in the order, and may be tried again.
            limit = f"{in_flight} operations are in flight, the limit; wait for some first"
            on_done(failures.not_begun(TooManyOperationsError(limit)), None)
            return
        if bound is None:
            bound = Bound(timeout_s) if timeout_s else Bound(self.options.timeout_s, OF_DAEMON)
        times = times_of(bound, recv_timeout_s, self.options.recv_timeout_s)
        until = self.now() + (timeout_s or bound.timeout_s)
        if deadline is not None and deadline < until:
            until = deadline
        try:
            spec = unpack_spec(packed_spec)
            group = self._group_of(spec)
            if spec.collective in POINT_TO_POINT:
                self._post(group, spec, local, region, on_done, until, times)
                return
            compiled, mem = self._prepared(group, packed_spec, spec, region, local)
        except (ValueError, TypeError, RingdError) as exc:
            error = exc if isinstance(exc, RingdError) else RingdError(str(exc))
            self.endings.refuse(spec_or_unknown(packed_spec), error)
            on_done(failures.not_begun(error), None)
            return
        seq = group.next_seq
        stopped = self.endings.obstacle(group)
        if stopped is not None:
            if group.next_seq > seq or group.first_refusal():
                self._surroundings.call_void(group, spec, seq, stopped)
            on_done(failures.not_begun(stopped), None)
            return
        self._enter(group, compiled, mem, on_done, until, times)

    def _group_of(self, spec: OpSpec) -> Group:
        group = self.groups.numbered(spec.group)
        if group is None:
            raise GroupFreedError(
                f"{spec}: there is no group {spec.group} on this rank; it was closed. Make a "
                "new one",
                group=spec.group,
            )
        return group

    def _post(
        self,
        group: Group,
        spec: OpSpec,
        local: Local,
        region: Callable[[int], memoryview],
        on_done: OnDone,
        until: float,
        times: Times,
    ) -> None:
        """Post a send or a receive; it stands beside the order of calls."""
        if not isinstance(local, int):
            raise InvalidArgumentError(f"the tag of a {spec.collective} is a whole number")
        self.busy_poll.begin()
        self.mail.submit(group, spec, local, region, on_done, until, times)
        self._deadlines.watch()

    def _prepared(
        self,
        group: Group,
        packed: bytes,
        spec: OpSpec,
        region: Callable[[int], memoryview],
        local: Local,
    ) -> tuple[Compiled, memoryview]:
        """Plan and region of a call.

        Raises:
            RingdError, ValueError, TypeError: it is not a call that can be made.
        """
        if isinstance(local, int):
            raise InvalidArgumentError(f"{spec.collective} takes no tag")
        compiled = group.compiler.known(packed, local)
        if compiled is not None:
            return compiled, region(compiled.region_bytes)
        check_spec(spec, group.size)
        # The region first: a plan's cost grows with the size that is claimed.
        mem = region(group.compiler.region_bytes(spec, local))
        return group.compiler.compile(packed, spec, local), mem

    def _enter(
        self,
        group: Group,
        compiled: Compiled,
        mem: memoryview,
        on_done: OnDone,
        until: float,
        times: Times,
    ) -> None:
        if compiled.spec.collective == NEW_GROUP:
            try:
                on_done = self.groups.found(group, compiled, mem, on_done)
            except InvalidArgumentError as exc:
                self.endings.refuse(compiled.spec, exc)
                on_done(exc, None)
                return
        seq = group.next_seq
        group.next_seq = seq + 1
        op = Operation(self, group, compiled, seq, mem, on_done)
        op.times = times
        op.started = self.now()
        op.deadline = op.due = until
        op.started_ns = self._clock_ns()
        self._deadlines.watch()
        group.ops[seq] = op
        self.live[op] = None
        if len(mem) <= POLL_BYTES:
            self.busy_poll.begin()
        op.start(self.router.early.take(group.number, group.epoch, seq))

    # Epochs and peers

    def choose_by(self, thresholds: Thresholds) -> None:
        """How "auto" chooses, between two epochs; every rank must be told the same."""
        self.groups.choose_by(thresholds)

    def begin_epoch(self, epoch: int, members: tuple[int, ...]) -> None:
        """A fresh order of operations begins; ``members``: ranks of the job, in order."""
        changed = MembershipChangedError(
            f"epoch {self.world.epoch} is over, epoch {epoch} has begun", epoch=epoch
        )
        self.end_all(changed)
        self.groups.begin_epoch(epoch, members)
        self.cut_off.clear()
        self.mail.begin_epoch(epoch)
        self.router.dropped_frames += self.router.early.drop_before(epoch)

    def end_all(self, error: RingdError) -> None:
        """Every operation in flight here ends with ``error``."""
        for op in list(self.live):
            op.end(failures.during(error, op))
        self.mail.end_all(error)

    def epoch_over(self, error: RingdError) -> None:
        """No call of this epoch can complete any more: all groups are over."""
        for group in self.groups:
            group.break_by(error)
        self.end_all(error)

    def peer_lost(self, rank: int, error: RingdError) -> None:
        """A rank is gone: everything that needs it ends now, and its groups are over."""
        self.groups.rank_lost(rank, error)
        for op in list(self.live):
            if rank in op.group.ranks:
                op.end(failures.during(error, op))
        self.mail.rank_lost(rank, error)
        self.lost_at[rank] = self.now()
        self.forget_link(rank)

    def peer_left(self, rank: int, next_seqs: Mapping[int, int]) -> None:
        """A rank said goodbye; in each group it made the calls before ``next_seqs``."""
        self.groups.rank_left(rank, next_seqs)
        for group in self.groups:
            if rank not in group.ranks:
                continue
            next_seq = group.left[rank] = next_seqs.get(group.number, 0)
            for op in list(group.ops.values()):
                if op.seq >= next_seq:
                    error = failures.left_before(group, rank)
                    group.break_by(error, goodbye=True)
                    op.end(failures.during(error, op))
        self.mail.rank_left(rank)

    def link_up(self, link: Link) -> None:
        """A link to a peer is there (again)."""
        self.links[link.peer] = link
        self.cut_off.discard(link.peer)
        for op in self._waiting_for_link.pop(link.peer, []):
            if op.live:
                op.flows[link.peer].open(link)
        self.mail.link_up(link)
        self.probing.link_up(link)

    def await_link(self, op: Operation, peer: int) -> None:
        """``op`` goes on with ``peer`` once there is a link."""
        self._waiting_for_link.setdefault(peer, []).append(op)
        self.want_link(peer)

    def want_link(self, peer: int) -> None:
        """Somebody here waits for a link to ``peer``."""
        if not self.leaving.holds_back(peer):
            self._surroundings.want_link(peer)

    def on_link_closed(self, link: Link, error: BaseException | None) -> None:
        """A link's connection ended: another one is to take over, unless it was on purpose."""
        if self.leaving.closed(link) or self.links.get(link.peer) is not link:
            return
        if link.said_goodbye:
            del self.links[link.peer]
            return
        reason = f"{type(error).__name__}: {error}" if error else "end of stream"
        broken_off = error is None or isinstance(error, OSError)  # else its bytes were no good
        if not broken_off or not self.options.resume_s:
            self.link_void(link, reason)
            return
        self._surroundings.link_down(link.peer, reason)
        self._call_for(link, link.resumed)
        self.loop.call_later(self.options.resume_s, self._give_up, link, link.resumed, reason)

    def _call_for(self, link: Link, resumed: int) -> None:
        """Ask for a new connection, again and again: a request may cross the peer's noticing."""
        if not link.up and link.resumed == resumed and self.links.get(link.peer) is link:
            self.want_link(link.peer)
            self.loop.call_later(CALL_AGAIN_S, self._call_for, link, resumed)

    def link_asked_for(self, peer: int) -> bool:
        """The peer has no connection to us, and wants one; whether we dial."""
        link = self.links.get(peer)
        if link is not None and link.up and self.now() - link.up_since > CALL_AGAIN_S:
            link.connection.abort()
            link.broke()
            self.on_link_closed(link, ConnectionResetError("its other end is gone"))
        return not self.leaving.holds_back(peer)

    def forget_link(self, peer: int) -> None:
        """The peer is lost: a link that waits for it to come back is void."""
        self.unborn.pop(peer, None)
        link = self.links.get(peer)
        if link is not None and not link.up:
            del self.links[peer]

    def replace_peer(self, peer: int, is_new: Callable[[Link], bool]) -> None:
        """Another daemon has taken a peer's place: a link to the old one is void."""
        link = self.links.get(peer)
        if link is not None and link.up and is_new(link):
            return
        self.unborn.pop(peer, None)
        if link is not None:
            del self.links[peer]
            link.connection.abort()

    def _give_up(self, link: Link, resumed: int, reason: str) -> None:
        """The link had its time to come back."""
        if not link.up and link.resumed == resumed:
            self.link_void(link, reason)

    def link_void(self, link: Link, reason: str) -> None:
        """A link is lost for good, with what was on its way."""
        if self.links.get(link.peer) is not link:
            return
        del self.links[link.peer]
        self.cut_off.add(link.peer)
        used = any(link.peer in op.flows for op in self.live) or self.mail.uses(link)
        if not used and link.last_epoch < self.world.epoch:
            return  # nothing of this epoch was on its way
        self._surroundings.link_lost(link.peer, reason)
        epoch = self.world.epoch
        self.loop.call_later(LINK_GRACE_S, self._no_verdict, link, reason, epoch)

    def _no_verdict(self, link: Link, reason: str, epoch: int) -> None:
        """The rendezvous has not said what happened: operations that used the link end."""
        group = self.world
        flows = [op.flows.get(link.peer) for op in self.live]
        used = any(f is not None and f.link is link for f in flows) or self.mail.uses(link)
        if group.epoch != epoch or not used:
            return
        error = failures.peer_lost(
            link.peer, case="its link broke", detail=reason, epoch=epoch, partial=True
        )
        self.peer_lost(link.peer, error)

    # Ending

    def answer(self, number: int, member: int, epoch: int, seq: int) -> dict[str, Any]:
        """What we know of an operation, for a verdict: see ``wire.control``, "op_answer"."""
        group = self.groups.numbered(number)
        if group is None or member not in group.ranks or group.epoch != epoch:
            return {**NO_ANSWER, "state": "absent"}
        op = group.ops.get(seq)
        if op is not None:
            return {**NO_ANSWER, **op.view(), "next_seq": group.next_seq}
        if seq < group.next_seq:
            state = "failed" if seq in group.verdicts else "done"
            return {**NO_ANSWER, "state": state, "next_seq": group.next_seq}
        told = {"state": "absent", "idle_s": self.idle_s(), "next_seq": group.next_seq}
        return {**NO_ANSWER, **told, "waits": waits_of(self)}

    def idle_s(self) -> float:
        """For how long no collective has been in flight."""
        return 0.0 if self.live else self.now() - self._idle_since

    def quiet_s(self, peer: int) -> float:
        """For how long nothing has come from a peer, as far as somebody waits here."""
        return self._deadlines.quiet_s(peer)

    def ended(self, op: Operation, error: RingdError | None) -> None:
        """``op`` is over; called by it."""
        op.ended_ns = self._clock_ns()
        op.group.note_end(op, error)
        op.group.ops.pop(op.seq, None)
        self.live.pop(op, None)
        self._idle_since = self.now()
        if error is None:
            self.completed += 1
            if op.spec.collective in MAY_RETURN_EARLY:
                op.group.note_return(op.seq, op.spec)
        self._surroundings.op_ended(op, error)

    def post_ended(self, post: Post, error: RingdError | None) -> None:
        """A send or a receive is over; called by the mail."""
        self._surroundings.post_ended(post, error)
