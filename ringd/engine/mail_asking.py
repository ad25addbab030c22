"""Sends and receives that came to their deadline: who or what is to blame, the rendezvous says.

It asks the other side, or for a receive from any all that might have sent. Meanwhile such a message
is in flight still, but withdrawn: nothing of it moves any more.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ringd.engine import message_errors
from ringd.engine.endings import VERDICT_S
from ringd.engine.engine_answers import NO_ANSWER
from ringd.engine.message import Post, Recv, Send
from ringd.errors import CollectiveTimeoutError
from ringd.vocabulary import ANY_SOURCE, RECV, SEND

if TYPE_CHECKING:
    from ringd.engine.engine import Engine, Surroundings
    from ringd.engine.mail import Mail
    from ringd.engine.mail_box import Mailbox

MAX_GIVEN_UP = 64
"""Messages of ours that are remembered after their deadline."""


class Asking:
    """The messages of one rank that wait for a verdict, and what this rank knows of others'."""

    def __init__(self, engine: Engine, mail: Mail, surroundings: Surroundings) -> None:
        self._engine = engine
        self._mail = mail
        self._surroundings = surroundings
        self._asked: dict[int, tuple[Post, CollectiveTimeoutError]] = {}
        self._last = 0
        self._given_up: deque[tuple[Mailbox, str, int, int, float]] = deque(maxlen=MAX_GIVEN_UP)

    def fail(self, post: Post, *, quiet: bool, elapsed_s: float) -> None:
        """``post`` came to its end in time: withdraw it here and there, and end it by a verdict.

        Without a rendezvous in reach, or an answer in time, it ends with this rank's own view.
        """
        own = message_errors.timed_out(post, elapsed_s=elapsed_s, quiet=quiet)
        peers = [[peer, self._count_of(post, peer)] for peer in self._mail.may_be_awaited(post)]
        post.box.revoke(post, message_errors.judged(own, None))
        post.box.forget(post)
        post.withdraw()
        self._last = number = self._last + 1
        self._asked[number] = (post, own)
        now = self._engine.now()
        self._given_up.append((post.box, post.spec.collective, post.peer, post.tag, now))
        fields = {"group": post.spec.group, "members": list(post.box.group.ranks)}
        question = {"number": number, "op": post.spec.collective, "tag": post.tag, "peers": peers}
        if self._surroundings.post_failed({"epoch": post.box.epoch, **fields, **question}):
            self._engine.loop.call_later(VERDICT_S, self._end_alone, number)
        else:
            self._end_alone(number)

    def _count_of(self, post: Post, peer: int) -> int:
        """Of a receive how many messages have come from ``peer``; of a send its own number; -1: it
        was matched, or has not gone, so that it is not the peer's program that is waited for."""
        if isinstance(post, Send):
            return -1 if post.taken else post.number
        return -1 if post.at[0] >= 0 else post.box.came_from(peer)

    def verdict(self, number: int, verdict: dict[str, Any]) -> None:
        """The rendezvous says why one of ours did not end; one that nobody waits for is dropped."""
        self._end(number, verdict)

    def _end_alone(self, number: int) -> None:
        self._end(number, None)

    def _end(self, number: int, verdict: dict[str, Any] | None) -> None:
        if number not in self._asked:
            return
        post, own = self._asked.pop(number)
        if post.live:
            self._mail.end(post, message_errors.judged(own, verdict))

    # What others ask

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """What we know of a message of ours, or of the other side of one; as ``Engine.answer``.

        Args:
            question: the fields of "inquire_post", checked.
        """
        group = self._engine.groups.numbered(question["group"])
        known = group is not None and group.epoch == question["epoch"]
        if group is None or not known or question["lowest"] not in group.ranks:
            return {**NO_ANSWER, "state": "absent"}
        asker, op, tag = question["rank"], question["op"], question["tag"]
        if asker == self._engine.rank:
            return self._of_ours(question["number"])
        for post in self._mail.live:
            if post.box.group is group and post.tag == tag and _meets(post, asker, op):
                return self._waiting(post)
        count = next((n for peer, n in question["peers"] if peer == self._engine.rank), 0)
        box = self._mail.box(group)
        sides = ((SEND, asker),) if op == RECV else ((RECV, asker), (RECV, ANY_SOURCE))
        for *given_up, at in reversed(self._given_up):
            if any(given_up == [box, side, peer, tag] for side, peer in sides):
                return {**NO_ANSWER, "state": "failed", "idle_s": self._engine.now() - at}
        on_its_way = box.sent_to(asker) > count if op == RECV else box.came_from(asker) <= count
        if on_its_way or (op == SEND and count < 0):  # ours to it, or its own: a link has it
            return {**NO_ANSWER, "state": "done"}
        return {**NO_ANSWER, "state": "absent", "idle_s": self._engine.idle_s()}

    def _of_ours(self, number: int) -> dict[str, Any]:
        if number not in self._asked:
            return {**NO_ANSWER, "state": "failed"}
        return self._waiting(self._asked[number][0])

    def _waiting(self, post: Post) -> dict[str, Any]:
        owed = post.size_bytes - post.bytes_done + 1
        peers, quiet_s = post.peers, self._engine.quiet_s
        return {
            **NO_ANSWER,
            "state": "waiting",
            "entered_s": self._engine.now() - post.started,
            "waiting_on": peers,
            "bytes_done": post.bytes_done,
            "bytes_total": post.size_bytes,
            "flows": [[peer, owed, post.bytes_done, 0, quiet_s(peer)] for peer in peers],
        }


def _meets(post: Post, asker: int, op: str) -> bool:
    """Whether ``post`` is the other side of an ``op`` of ``asker``'s; the tags are equal."""
    if op == RECV:
        return isinstance(post, Send) and post.peer == asker
    return isinstance(post, Recv) and post.peer in (asker, ANY_SOURCE)
