"""Point-to-point messages of one rank: they match by group, peer and tag, not by order of calls.

See ADR 11. A mailbox per group and epoch holds what waits; here they are found, timed, and ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ringd.engine import message_errors
from ringd.engine.landing import bin_for
from ringd.engine.mail_asking import Asking
from ringd.engine.mail_box import Mailbox
from ringd.engine.mail_frames import (
    KEPT_ALLOWANCES,
    LEFT,
    MESSAGE,
    OFFER,
    PART,
    REVOKE,
    TAKE,
    KeptFrame,
    KeptFrames,
    check_header,
    check_message,
)
from ringd.engine.message import OnDone, Post, Recv, Send, WholeLanding
from ringd.engine.run_ahead import Budget, allowance_bytes
from ringd.errors import MembershipChangedError, RingdError
from ringd.vocabulary import ANY_SOURCE, SEND, OpSpec
from ringd.wire.decoder import Sink
from ringd.wire.frame import CONNECTION_STREAM, FrameError

if TYPE_CHECKING:
    from ringd.engine.engine import Engine, Surroundings
    from ringd.engine.group import Group
    from ringd.engine.link import Link
    from ringd.engine.times import Times

LEAVING_S = 1.0
"""How long a link to a rank that said goodbye may still be in the making, with messages on it."""
MAX_UNTOLD = 4096
"""Freed groups of which a member without a link to us has not heard; the oldest is forgotten."""


class Mail:
    """The sends, receives and mailboxes of one rank. Runs on the engine's thread only.

    Attributes:
        live: sends and receives in flight. While there are any, :meth:`tick` is to be called.
        asking: those of them that wait for a verdict.
    """

    def __init__(self, engine: Engine, surroundings: Surroundings) -> None:
        self.engine = engine
        self.asking = Asking(engine, self, surroundings)
        self.live: dict[Post, None] = {}
        self._boxes: dict[int, Mailbox] = {}
        self._budgets: dict[int, Budget] = {}
        allowance = max(allowance_bytes(engine.world_size), engine.options.eager_bytes)
        self._kept = KeptFrames(KEPT_ALLOWANCES * allowance)
        self._left: dict[int, float] = {}  # ranks that left, and when nothing comes any more
        self._silent: set[int] = set()  # nothing comes any more, surely
        self._early_left: dict[int, int] = {}  # ranks that left an epoch that we do not know yet
        self._untold: dict[int, deque[int]] = {}  # peer to streams freed here without a link to it
        self._closed = False

    # Requests

    def submit(
        self,
        group: Group,
        spec: OpSpec,
        tag: int,
        region: Callable[[int], memoryview],
        on_done: OnDone,
        until: float,
        times: Times,
    ) -> None:
        """Post a send or a receive.

        A send up to the eager limit is done when it was copied, and costs one frame; a larger one
        when the peer has all of it, and costs a round trip more.

        Args:
            spec: its collective is SEND or RECV, its root the peer as a rank of the group.
            region: gives the memory of so many bytes; may raise RingdError. It is the daemon's
                until ``on_done``.
            on_done: called once, perhaps before this returns: with None or the error, and for a
                receive that succeeded with the sender's rank in the group.
            until: its deadline, in loop time.
            times: how long the sender may be silent in the middle of a message, and who says so.
        """
        try:
            message_errors.check_post(group, spec, tag)
            if group.broken is not None and not group.goodbye:
                raise group.broken.copy()
            mem = region(spec.count * spec.itemsize)
        except (ValueError, TypeError, RingdError) as exc:
            on_done(exc if isinstance(exc, RingdError) else RingdError(str(exc)), None)
            return
        box = self.box(group)
        peer = ANY_SOURCE if spec.root == ANY_SOURCE else group.ranks[spec.root]
        post = (Send if spec.collective == SEND else Recv)(box, spec, peer, tag, mem, on_done)
        post.started = self.engine.now()
        post.times = times
        post.deadline = until
        self.live[post] = None
        if isinstance(post, Recv):
            box.receive(post)
        elif peer not in self._left and not self._is_hopeless(post):
            box.send(post)
        else:
            self._end_hopeless(post)
        if isinstance(post, Recv) and post.live:
            if self._is_hopeless(post):
                self._end_hopeless(post)
            elif group.number:
                self._listen_to(post)

    def end(self, post: Post, error: RingdError | None) -> None:
        """The one way out; afterwards the region is the caller's again."""
        if not post.live:
            return
        del self.live[post]
        post.box.forget(post)
        self.engine.post_ended(post, error)
        post.close(failed=error is not None)
        source = None
        if isinstance(post, Recv) and error is None:
            source = post.box.group.ranks.index(post.source)
        post.on_done(error, source)

    def _give_up(self, post: Post, error: RingdError) -> None:
        """End it here and on the other side."""
        post.box.revoke(post, error)
        self.end(post, error)

    # Frames

    def on_frame(
        self,
        link: Link,
        kind: int,
        stream: int,
        header: Any,
        size: int,
        inline: memoryview | None,
    ) -> Sink | None:
        """A frame of a kind from MESSAGE to LEFT came.

        Raises:
            FrameError: it is malformed, out of order, or over a bound: its connection ends.
        """
        check_header(kind, header, size)
        if kind == LEFT and stream == CONNECTION_STREAM:
            self._on_left(link.peer, header[0])
        elif kind == PART:
            return self._on_part(link, stream, header, size, inline)
        else:
            if kind in (MESSAGE, OFFER):
                check_message(kind, header, size, self.engine.options.eager_bytes)
            if size and inline is None:
                return WholeLanding(size, partial(self._route, link, kind, stream, header))
            self._route(link, kind, stream, header, inline or b"")
        return None

    def _route(
        self, link: Link, kind: int, stream: int, header: list[Any], payload: memoryview | bytes
    ) -> None:
        """To its mailbox; what comes before its group is kept, what comes after it is dropped."""
        epoch = header[0]
        box = self._box_of(link.peer, stream, epoch)
        if box is not None:
            if kind != LEFT:
                link.users.add(stream)
            self._hand(box, link.peer, kind, header, payload)
        elif self.engine.groups.is_future(stream, epoch):
            self._kept.keep(stream, epoch, KeptFrame(link.peer, kind, header, bytes(payload)))
        else:
            self._drop(link, kind, stream, header)

    def _drop(self, link: Link | None, kind: int, stream: int, header: list[Any]) -> None:
        """A frame of a group that is not ours, or not any more; who offered something is told."""
        self.engine.router.dropped_frames += 1
        epoch = header[0]
        if link is not None and kind == OFFER and epoch == self.engine.world.epoch:
            error = message_errors.freed_there(self.engine.rank, group=stream - 1, epoch=epoch)
            link.send_note(REVOKE, stream, [epoch, header[1], False, error.to_wire()])

    def _hand(
        self,
        box: Mailbox,
        peer: int,
        kind: int,
        header: list[Any],
        payload: memoryview | bytes,
    ) -> None:
        if kind in (MESSAGE, OFFER):
            spec = check_message(kind, header, len(payload), self.engine.options.eager_bytes)
            place = box.group.rank
            if spec.group != box.group.number or spec.root != place:
                raise FrameError(f"{spec} is not meant for rank {place} of {box.group.number}")
            if kind == MESSAGE:
                box.on_message(peer, header[1], header[2], spec, payload)
            else:
                box.on_offer(peer, header[1], header[2], spec)
        elif kind == LEFT:
            self._on_freed(box, peer)
        elif kind == TAKE:
            box.on_take(peer, header[1])
        elif kind == REVOKE:
            box.on_revoke(peer, header[1], header[2], message_errors.from_peer(header[3]))
        else:
            box.on_taken(peer, header[1], header[2])

    def _on_part(
        self, link: Link, stream: int, header: list[Any], size: int, inline: memoryview | None
    ) -> Sink | None:
        box = self._box_of(link.peer, stream, header[0])
        wanted = False
        if box is not None:
            wanted, landing = box.on_part(link.peer, header[1], header[2], size, inline)
            if wanted:
                return landing
        elif self.engine.groups.is_future(stream, header[0]):
            raise FrameError("a segment came before it was asked for")
        self.engine.router.dropped_frames += 1
        return bin_for(size, inline)

    def _box_of(self, peer: int, stream: int, epoch: int) -> Mailbox | None:
        group = self.engine.groups.get(stream)
        if group is None or group.epoch != epoch or group.void:
            return None
        return self.box(group) if peer in group.ranks else None  # it has another of that number

    def box(self, group: Group) -> Mailbox:
        """The group's mailbox, with what came before the group was known."""
        found = self._boxes.get(group.stream)
        if found is None:
            found = self._boxes[group.stream] = Mailbox(self, group)
            for frame in self._kept.take(group.stream, group.epoch):
                self._replay(found, frame)
        return found

    def _replay(self, box: Mailbox, frame: KeptFrame) -> None:
        link = self.engine.links.get(frame.peer)
        if frame.peer not in box.group.ranks:
            self._drop(link, frame.kind, box.group.stream, frame.header)
            return
        try:
            self._hand(box, frame.peer, frame.kind, frame.header, frame.payload)
        except FrameError as exc:  # the peer's fault, as if it had come just now
            if link is not None:
                link.connection.fail(exc)

    # Time

    def tick(self, now: float, tick_s: float) -> None:
        """End what has waited too long; called every ``tick_s`` while anything is live."""
        for rank, due in list(self._left.items()):
            if now >= due and rank not in self.engine.links:
                self._fall_silent(rank)
        for post in list(self.live):
            if not post.live or post.withdrawn:
                continue
            expired = now >= post.deadline
            if not expired and not post.is_too_quiet(tick_s):
                continue
            if self.may_be_awaited(post):
                self.asking.fail(post, quiet=not expired, elapsed_s=now - post.started)
            else:
                self._end_hopeless(post)

    def may_be_awaited(self, post: Post) -> list[int]:
        """Who may still be the other side of one that has come to its end in time: nobody who has
        freed the group, or said goodbye and left nothing on its way that a connection carries."""
        up = {peer for peer, link in self.engine.links.items() if link.up}
        gone = self._silent | post.box.freed | (self._left.keys() - up)
        return [rank for rank in post.peers if rank not in gone]

    # Links and peers

    def link_up(self, link: Link) -> None:
        """A link is there: what waited for it goes."""
        if self._closed:
            link.send_note(LEFT, CONNECTION_STREAM, [self.engine.world.epoch])
        for stream in self._untold.pop(link.peer, ()):
            link.send_note(LEFT, stream, [self.engine.world.epoch])
        for box in list(self._boxes.values()):
            box.flush(link)

    def uses(self, link: Link) -> bool:
        """Whether something in flight waits for the other end of this link."""
        return any(
            post.peer == link.peer or (isinstance(post, Recv) and post.source == link.peer)
            for post in self.live
        )

    def rank_lost(self, rank: int, error: RingdError) -> None:
        """A rank is gone, and its groups are over: nobody in them sends or receives any more."""
        for post in list(self.live):
            if rank in post.box.group.ranks:
                self.end(post, message_errors.during(error, post))

    def rank_left(self, rank: int) -> None:
        """The rendezvous says that a rank said goodbye.

        With a link to it, its LEFT follows on that after all that it has sent.
        """
        self._left.setdefault(rank, self.engine.now() + LEAVING_S)
        if rank not in self.engine.links:
            for post in list(self.live):
                if post.peer == rank and isinstance(post, Send):
                    self.end(post, message_errors.left(post))

    def _on_left(self, rank: int, epoch: int) -> None:
        known = self.engine.world.epoch
        if epoch == known:
            self._fall_silent(rank)
        elif epoch > known:
            self._early_left[rank] = epoch

    def _fall_silent(self, rank: int) -> None:
        """All that a rank has sent is here: what still waits for it waits in vain."""
        self._left.pop(rank, None)
        if rank in self._silent:
            return
        self._silent.add(rank)
        self._end_all_hopeless()

    def _on_freed(self, box: Mailbox, rank: int) -> None:
        """A member has freed the group, and all that it has sent there is here."""
        box.freed.add(rank)
        self._end_all_hopeless()
        for post in list(self.live):
            if isinstance(post, Recv) and post.box is box:
                self._listen_to(post)

    def _listen_to(self, recv: Recv) -> None:
        """Have a link to whom a receive of a group waits for: it is told there if that one frees
        the group. Of a receive from any one such link is enough."""
        peers = set(recv.peers) - recv.box.freed - self._silent
        if peers.isdisjoint(self.engine.links):
            for peer in sorted(peers - self._left.keys()):
                self.engine.want_link(peer)

    def _end_all_hopeless(self) -> None:
        for post in list(self.live):
            if self._is_hopeless(post):
                self._end_hopeless(post)

    def _is_hopeless(self, post: Post) -> bool:
        """Whether all that it could be waiting for have left, or freed its group."""
        silent, freed = self._silent, post.box.freed
        if not post.live or not (silent or freed):
            return False
        return all(rank in silent or rank in freed for rank in post.peers)

    def _end_hopeless(self, post: Post) -> None:
        freed = post.box.freed.intersection(post.peers)
        error = message_errors.freed(post, sorted(freed)) if freed else message_errors.left(post)
        self.end(post, error)

    # Ends of groups, epochs and our own trainer

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins; ``engine.groups`` know of it already. What is in flight ends."""
        changed = f"epoch {epoch} has begun: what was posted in an earlier one is over"
        self.end_all(MembershipChangedError(changed, epoch=epoch))
        self.asking.begin_epoch()
        self._boxes.clear()
        self._budgets.clear()
        self._left.clear()
        self._silent.clear()
        self._untold.clear()
        self._closed = False
        self.engine.router.dropped_frames += self._kept.drop_before(epoch)
        for rank, left_epoch in list(self._early_left.items()):
            if left_epoch <= epoch:
                del self._early_left[rank]
                if left_epoch == epoch:
                    self._silent.add(rank)

    def end_all(self, error: RingdError) -> None:
        """Everything in flight ends with ``error``; peers hear of the cause on another way."""
        for post in list(self.live):
            self.end(post, message_errors.during(error, post))

    def group_freed(self, group: Group, error: RingdError) -> None:
        """A group is freed here: its mailbox is given back, what is in flight there ends."""
        box = self.box(group)  # with what came early for it, which has to be answered too
        there = message_errors.freed_there(self.engine.rank, group=group.number, epoch=group.epoch)
        for post in list(self.live):
            if post.box is box:
                box.revoke(post, there)
                self.end(post, message_errors.during(error, post))
        box.dissolve(there)
        del self._boxes[group.stream]
        self._tell_freed(group, box)

    def _tell_freed(self, group: Group, box: Mailbox) -> None:
        """Nothing more comes from us in this group; where there is no link, once there is one."""
        for rank in group.ranks:
            if rank == self.engine.rank or rank in box.freed:
                continue
            link = self.engine.links.get(rank)
            if link is not None:
                link.send_note(LEFT, group.stream, [group.epoch])
            else:
                self._untold.setdefault(rank, deque(maxlen=MAX_UNTOLD)).append(group.stream)

    def trainer_left(self) -> None:
        """This rank's trainer said goodbye: what it still has in flight ends, and peers hear it."""
        for post in list(self.live):
            self._give_up(post, message_errors.trainer_closed(post))
        self._closed = True
        for link in list(self.engine.links.values()):
            link.send_note(LEFT, CONNECTION_STREAM, [self.engine.world.epoch])

    # Looking

    def budget(self, peer: int) -> Budget:
        """What of ours may wait at a peer, in all groups together."""
        found = self._budgets.get(peer)
        if found is None:
            found = self._budgets[peer] = Budget(allowance_bytes(self.engine.world_size))
        return found

    @property
    def parked_bytes(self) -> int:
        """Payload that came and that no receive took yet."""
        return self._kept.held_bytes + sum(box.parked_bytes for box in self._boxes.values())
