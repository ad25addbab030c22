"""Sends and receives that came to their deadline: who or what is to blame, the rendezvous says.

It asks the other side, or for a receive from any all that might have sent. Meanwhile such a message
is in flight still, but withdrawn: nothing of it moves any more. So is its other side, if that one
had begun: it ends with the same verdict.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from ringd.engine import message_errors
from ringd.engine.endings import VERDICT_S
from ringd.engine.engine_answers import NO_ANSWER
from ringd.engine.message import Post, Recv, Send
from ringd.engine.waits import count_of, waits_of
from ringd.errors import CollectiveTimeoutError, RingdError
from ringd.vocabulary import ANY_SOURCE, RECV, SEND

if TYPE_CHECKING:
    from ringd.engine.engine import Engine, Surroundings
    from ringd.engine.mail import Mail
    from ringd.engine.mail_box import Mailbox

MAX_GIVEN_UP = 64
"""Messages of ours that are remembered after their deadline."""
MAX_HEARD = 64
"""Verdicts on others' messages that are remembered, as their word of it may come later."""


class Asking:
    """The messages of one rank that wait for a verdict, and what this rank knows of others'."""

    def __init__(self, engine: Engine, mail: Mail, surroundings: Surroundings) -> None:
        self._engine = engine
        self._mail = mail
        self._surroundings = surroundings
        self._asked: dict[int, tuple[Post, CollectiveTimeoutError]] = {}
        self._last = 0
        # With the times when they were made, and given up.
        self._given_up: deque[tuple[Mailbox, str, int, int, float, float]] = deque(
            maxlen=MAX_GIVEN_UP
        )
        # By the rank that asks, and its number: messages that it gave up, and verdicts.
        self._revoked: dict[tuple[int, int], tuple[Post, CollectiveTimeoutError]] = {}
        self._heard: dict[tuple[int, int], dict[str, Any]] = {}

    def fail(self, post: Post, *, quiet: bool, elapsed_s: float) -> None:
        """``post`` came to its end in time: withdraw it here and there, and end it by a verdict.

        Without a rendezvous in reach, or an answer in time, it ends with this rank's own view.
        """
        own = message_errors.timed_out(post, elapsed_s=elapsed_s, quiet=quiet)
        peers = [[peer, count_of(post, peer)] for peer in self._mail.may_be_awaited(post)]
        self._last = number = self._last + 1
        post.box.revoke(post, message_errors.told_there(own, number))
        post.box.forget(post)
        post.withdraw()
        self._asked[number] = (post, own)
        now = self._engine.now()
        names = (post.box, post.spec.collective, post.peer, post.tag)
        self._given_up.append((*names, post.started, now))
        fields = {"group": post.spec.group, "members": list(post.box.group.ranks)}
        question = {"number": number, "op": post.spec.collective, "tag": post.tag, "peers": peers}
        if self._surroundings.post_failed({"epoch": post.box.epoch, **fields, **question}):
            self._engine.loop.call_later(VERDICT_S, self._end_alone, number)
        else:
            self._end_alone(number)

    def verdict(self, verdict: dict[str, Any]) -> None:
        """The rendezvous says why a message of ours did not end, or one whose other side is ours.

        Args:
            verdict: the fields of "post_verdict".
        """
        asker, number = verdict["rank"], verdict["number"]
        if asker == self._engine.rank:
            self._end(number, verdict)
        elif (asker, number) in self._revoked:
            _, own = self._revoked[asker, number]
            self._end_revoked((asker, number), message_errors.judged(own, verdict))
        else:
            self._heard[asker, number] = verdict
            if len(self._heard) > MAX_HEARD:
                del self._heard[next(iter(self._heard))]

    def _end_alone(self, number: int) -> None:
        self._end(number, None)

    def _end(self, number: int, verdict: dict[str, Any] | None) -> None:
        if number not in self._asked:
            return
        post, own = self._asked.pop(number)
        if post.live:
            self._mail.end(post, message_errors.judged(own, verdict))

    # What others give up

    def revoked(self, post: Post, peer: int, error: RingdError) -> None:
        """``peer`` gave a message up, and ``post`` is its other side: end it, too.

        At the peer's deadline it ends with the verdict on that; without one it ends with ``error``.
        """
        question = message_errors.question_in(error)
        if question is None or not self._surroundings.in_reach():
            self._mail.end(post, error if question is None else question[2])
            return
        post.box.forget(post)
        post.withdraw()
        number, own, view = question
        key = (peer, number)
        self._revoked[key] = (post, own)
        if key in self._heard:
            self._end_revoked(key, message_errors.judged(own, self._heard.pop(key)))
        else:
            self._engine.loop.call_later(VERDICT_S, self._end_revoked, key, view)

    def _end_revoked(self, key: tuple[int, int], error: RingdError) -> None:
        post, _ = self._revoked.pop(key, (None, None))
        if post is not None and post.live:
            self._mail.end(post, error)

    def begin_epoch(self) -> None:
        """Nobody asks about messages of an earlier one."""
        self._revoked.clear()
        self._heard.clear()

    def matched(self, post: Post) -> None:
        """One of ours is done: messages of its kind that we gave up before are not to be met any
        more, and who comes to us now does not come late for those."""
        if not self._given_up:
            return
        peer = post.source if isinstance(post, Recv) else post.peer
        mine = (post.box, post.spec.collective, post.tag)
        self._given_up = deque(
            (
                one
                for one in self._given_up
                if (one[0], one[1], one[3]) != mine or one[2] not in (peer, ANY_SOURCE)
            ),
            maxlen=MAX_GIVEN_UP,
        )

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
            return self._of_ours(question)
        for post in self._mail.live:
            if post.box.group is group and post.tag == tag and _meets(post, asker, op):
                return self._waiting(post)
        count = next((n for peer, n in question["peers"] if peer == self._engine.rank), 0)
        box, now = self._mail.box(group), self._engine.now()
        sides = ((SEND, asker),) if op == RECV else ((RECV, asker), (RECV, ANY_SOURCE))
        for *given_up, made, at in reversed(self._given_up):
            if any(given_up == [box, side, peer, tag] for side, peer in sides):
                idle_s, made_s = now - at, now - made
                return {**NO_ANSWER, "state": "failed", "idle_s": idle_s, "made_s": made_s}
        on_its_way = count < 0
        if op == RECV:
            made_at = None if on_its_way else box.sent_to(asker, tag, count)
        else:
            made_at = box.received_from(asker, count, tag)
            on_its_way = on_its_way or box.came_from(asker) <= count
        if made_at is not None and made_at > -math.inf:
            return {**NO_ANSWER, "state": "done", "made_s": now - made_at}
        if on_its_way or made_at is not None:  # ours to it, or its own: a link has it
            return {**NO_ANSWER, "state": "done"}
        facts = {"idle_s": self._engine.idle_s(), "waits": waits_of(self._engine)}
        return {**NO_ANSWER, "state": "absent", **facts}

    def _of_ours(self, question: dict[str, Any]) -> dict[str, Any]:
        """Of one that waits for its verdict, or (without a number) one that we said we wait for."""
        if question["number"] in self._asked:
            return self._waiting(self._asked[question["number"]][0])
        names = (question["group"], question["op"], question["tag"])
        peers = [peer for peer, _ in question["peers"]]
        for post in self._mail.live if question["number"] < 0 else ():
            spec = post.spec
            if (spec.group, spec.collective, post.tag) != names:
                continue
            if self._mail.may_be_awaited(post) == peers:
                return self._waiting(post)
        return {**NO_ANSWER, "state": "failed"}

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
