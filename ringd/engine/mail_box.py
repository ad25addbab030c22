"""One group's messages on one rank: what its members sent, offered, took, and gave up.

sender                         receiver
MESSAGE ─────────────────────▶ received, or waits; TAKEN now and then
OFFER ───────────────────────▶ waits for a receive
      ◀──────────────────TAKE  a receive took it
PART, PART, ... ─────────────▶ into its region
REVOKE ◀─────────────────────▶ either side gives it up
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringd.engine import message_errors
from ringd.engine.mail_frames import OFFER, REVOKE, TAKE, TAKEN
from ringd.engine.mail_lane import Lane
from ringd.engine.mail_matching import Matching
from ringd.engine.message import Arrival, Landing, Post, Recv, Send
from ringd.errors import GroupFreedError, RingdError
from ringd.vocabulary import OpSpec
from ringd.wire.frame import FrameError

if TYPE_CHECKING:
    from ringd.engine.group import Group
    from ringd.engine.link import Link
    from ringd.engine.mail import Mail


class Mailbox:
    """The messages of one group in one epoch. Ranks are those of the world throughout.

    Attributes:
        freed: members that have freed the group, from whom nothing comes any more.
    """

    def __init__(self, mail: Mail, group: Group) -> None:
        self._mail = mail
        self._engine = mail.engine
        self.group = group
        self.epoch = group.epoch
        self.rank = mail.engine.rank
        self.world_size = mail.engine.world_size
        self.segment_bytes = mail.engine.options.segment_bytes
        self.freed: set[int] = set()
        self._lanes: dict[int, Lane] = {}
        self._matching: Matching[Recv, Arrival] = Matching()

    # Sending

    def send(self, send: Send) -> None:
        """Send a message, or offer it; without a link it waits for one."""
        self._lane(send.peer).waiting[send] = None
        link = self._engine.links.get(send.peer)
        if link is None:
            self._engine.want_link(send.peer)
        else:
            self.flush(link)

    def flush(self, link: Link) -> None:
        """There is a link: what waited for it goes."""
        lane = self._lanes.get(link.peer)
        while lane is not None and lane.waiting:
            send = next(iter(lane.waiting))
            del lane.waiting[send]
            self._post(send, lane, link)

    def _post(self, send: Send, lane: Lane, link: Link) -> None:
        link.users.add(self.group.stream)
        send.number = number = lane.number(send.tag, send.started)
        remaining_ms = max(1, int((send.deadline - self._engine.now()) * 1e3))
        header = [self.epoch, number, send.tag, send.spec.packed, remaining_ms]
        if lane.may_send_whole(send.size_bytes):
            link.send_data(send, header, send.mem, hold=False)
            self.finish(send)
        else:
            lane.offers[number] = send
            link.send_note(OFFER, self.group.stream, header)

    def on_take(self, peer: int, number: int) -> None:
        """The peer has a place for a message that we offered."""
        lane = self._lane(peer)
        send = lane.offers.get(number)
        if send is None:
            _was_there(number, lane.sent)  # we gave it up meanwhile
            return
        if send.taken:
            raise FrameError(f"message {number} was taken twice")
        send.taken = True
        if not send.n_sends:
            self.finish(send)
        elif (link := self._engine.leaving.link_to(peer)) is not None:
            send.begin(link)

    def on_taken(self, peer: int, messages: int, size_bytes: int) -> None:
        """The peer says how much of what came whole it has received."""
        self._lane(peer).peer_used(messages, size_bytes)

    # Receiving

    def receive(self, recv: Recv) -> None:
        """Take the first message that fits, or wait for one."""
        recv.order = self._matching.next_place()
        self._seek(recv)

    def _seek(self, recv: Recv) -> None:
        if self._is_late(recv):
            return
        found = self._matching.message_for(recv.peer, recv.tag)
        if found is not None:
            self._lane(found.source).offered.pop(found.number, None)
            self._deliver(recv, found, found.data)
        else:
            self._matching.add_receive(recv)

    def _is_late(self, recv: Recv) -> bool:
        """Its time is up, and the next tick ends it. Until then it may not take a message, which
        would be lost with it: the trainer keeps its own clock, and may have given it up."""
        return self._engine.now() >= recv.deadline

    def _receive_for(self, peer: int, tag: int) -> Recv | None:
        """The receive that takes a message which has come; it waits no more."""
        while (recv := self._matching.receive_for(peer, tag)) is not None and self._is_late(recv):
            pass
        return recv

    def on_message(
        self, peer: int, number: int, tag: int, spec: OpSpec, payload: memoryview | bytes
    ) -> None:
        """A message came whole."""
        lane = self._lane(peer)
        lane.came(number)
        lane.came_whole(len(payload))
        arrival = Arrival(peer, number, tag, spec)
        recv = self._receive_for(peer, tag)
        if recv is not None:
            self._deliver(recv, arrival, payload)
        else:
            arrival.data = bytes(payload)
            self._matching.add_message(arrival)

    def on_offer(self, peer: int, number: int, tag: int, spec: OpSpec) -> None:
        """A message is offered."""
        lane = self._lane(peer)
        lane.came(number)
        arrival = Arrival(peer, number, tag, spec)
        recv = self._receive_for(peer, tag)
        if recv is not None:
            self._deliver(recv, arrival, None)
        else:
            lane.came_offered(arrival)
            self._matching.add_message(arrival)

    def _deliver(self, recv: Recv, arrival: Arrival, payload: memoryview | bytes | None) -> None:
        """``recv`` takes a message; ``payload`` None: it is an offer. Neither waits any more."""
        peer, number = arrival.source, arrival.number
        ours, theirs = recv.spec, arrival.spec
        if payload is not None:
            self._note_use(peer, len(payload))
        if (ours.dtype, ours.count) != (theirs.dtype, theirs.count):
            error = message_errors.mismatch(recv, arrival)
            if payload is None:
                self._note_revoke(peer, number, error, by_sender=False)
            self._mail.end(recv, error)
            return
        recv.source, recv.number = peer, number
        if payload is not None:
            recv.fill(payload)
            self.finish(recv)
            return
        link = recv.link = self._engine.leaving.link_to(peer)
        if link is not None:
            link.send_note(TAKE, self.group.stream, [self.epoch, number])
        if recv.size_bytes:
            self._lane(peer).incoming[number] = recv
        else:
            self.finish(recv)

    def on_part(
        self, peer: int, number: int, index: int, size_bytes: int, inline: memoryview | None
    ) -> tuple[bool, Landing | None]:
        """A segment came; whether it is wanted, and where it goes if it is not inline."""
        lane = self._lane(peer)
        recv = lane.incoming.get(number)
        if recv is None:
            _was_there(number, lane.got)  # we gave it up meanwhile
            if number in lane.offered:
                raise FrameError(f"a segment of message {number}, which was not taken")
            return False, None
        return True, recv.take_part(index, size_bytes, inline)

    def on_revoke(self, peer: int, number: int, by_sender: bool, error: RingdError) -> None:
        """The other side gives a message up."""
        lane = self._lane(peer)
        if not by_sender:
            send = lane.offers.get(number)
            if send is None:
                _was_there(number, lane.sent)
            else:
                self._mail.asking.revoked(send, peer, error)
            return
        arrival = lane.offered.pop(number, None)
        recv = lane.incoming.get(number)
        if arrival is not None:
            self._matching.drop_message(arrival)
        elif recv is None:
            _was_there(number, lane.got)
        elif recv.untouched and not isinstance(error, GroupFreedError):
            # As if the offer had been given up before the receive was posted: it waits on.
            del lane.incoming[number]
            recv.put_back()
            self._seek(recv)
        else:
            self._mail.asking.revoked(recv, peer, error)

    def _note_use(self, peer: int, size_bytes: int) -> None:
        tell = self._lane(peer).used(size_bytes)
        link = self._engine.leaving.link_to(peer)
        if tell is not None and link is not None:
            link.send_note(TAKEN, self.group.stream, [self.epoch, *tell])

    # Ending

    def finish(self, post: Post) -> None:
        """It is through."""
        if isinstance(post, Recv):
            self._lane(post.source).received(post.number, post.tag, post.started)
        self._mail.end(post, None)

    def forget(self, post: Post) -> None:
        """It is over, one way or the other: nothing that comes may find it."""
        if isinstance(post, Send):
            lane = self._lane(post.peer)
            lane.waiting.pop(post, None)
            lane.offers.pop(post.number, None)
        elif isinstance(post, Recv):
            if post.waits:
                self._matching.drop_receive(post)
            elif post.source >= 0:
                self._lane(post.source).incoming.pop(post.number, None)

    def revoke(self, post: Post, cause: RingdError) -> None:
        """Tell the other side, if it knows of the message, that this one gives it up."""
        sends = isinstance(post, Send)
        peer, number = post.at
        lane = self._lanes.get(peer)
        if lane is not None and number in (lane.offers if sends else lane.incoming):
            error = message_errors.given_up(post, cause)
            self._note_revoke(peer, number, error, by_sender=sends)

    def _note_revoke(self, peer: int, number: int, error: RingdError, *, by_sender: bool) -> None:
        link = self._engine.leaving.link_to(peer)
        if link is not None:
            header = [self.epoch, number, by_sender, error.to_wire()]
            link.send_note(REVOKE, self.group.stream, header)

    def dissolve(self, error: RingdError) -> None:
        """The group is freed here: offers that nobody took are sent back with ``error``."""
        for peer, lane in self._lanes.items():
            for number in lane.offered:
                self._note_revoke(peer, number, error, by_sender=False)
            lane.give_back()

    # Looking

    def _lane(self, peer: int) -> Lane:
        found = self._lanes.get(peer)
        if found is None:
            options = self._engine.options
            found = self._lanes[peer] = Lane(
                self._mail.budget(peer),
                eager_bytes=options.eager_bytes,
                max_in_flight=options.max_in_flight,
            )
        return found

    def came_from(self, peer: int) -> int:
        """How many messages, and offers, came from a peer."""
        return self._lane(peer).got

    def sent_to(self, peer: int, tag: int, since: int) -> float | None:
        """When a message, or offer, with a tag that went to a peer after the first ``since`` was
        made; see ``Lane.sent_since``."""
        return self._lane(peer).sent_since(since, tag)

    def received_from(self, peer: int, number: int, tag: int) -> float | None:
        """When the receive of a message from a peer was made; see ``Lane.received_at``."""
        return self._lane(peer).received_at(number, tag)

    def waiting_tags(self, source: int) -> list[int]:
        """The tags of messages from ``source`` (ANY_SOURCE: of all) that wait for a receive."""
        return self._matching.tags_from(source)

    def offered_tags(self, peer: int) -> list[int]:
        """The tags that ``peer`` waits with, to send to us."""
        lane = self._lanes.get(peer)
        return sorted({a.tag for a in lane.offered.values()}) if lane is not None else []

    @property
    def parked_bytes(self) -> int:
        """Payload that came and was not received yet."""
        return sum(lane.parked_bytes for lane in self._lanes.values())


def _was_there(number: int, next_number: int) -> None:
    """A frame for a message that is over may come; one for a message that never was may not.

    Raises:
        FrameError: it never was.
    """
    if number >= next_number:
        raise FrameError(f"a frame for message {number}, and the next one is {next_number}")
