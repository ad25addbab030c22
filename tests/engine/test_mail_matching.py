"""The matching of messages and receives, against the rule written out; and lanes' counts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from ringd.engine.mail_lane import MAX_UNTAKEN_MESSAGES, TELL_AT, Lane
from ringd.engine.mail_matching import Matching
from ringd.engine.run_ahead import Budget
from ringd.vocabulary import ANY_SOURCE
from ringd.wire.frame import FrameError


@dataclass(eq=False)
class Receive:
    peer: int
    tag: int
    order: int = -1
    waits: bool = False


@dataclass(eq=False)
class Message:
    source: int
    tag: int
    order: int = -1


def fits(receive: Receive, message: Message) -> bool:
    return receive.tag == message.tag and receive.peer in (ANY_SOURCE, message.source)


@dataclass
class ByTheRule:
    """The rule in its own words: the first that fits, found by looking at all."""

    receives: list[Receive] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def receive_for(self, message: Message) -> Receive | None:
        return next((r for r in self.receives if fits(r, message)), None)

    def message_for(self, receive: Receive) -> Message | None:
        return next((m for m in self.messages if fits(receive, m)), None)


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_matches_as_the_rule_says(seed: int) -> None:
    rng = random.Random(seed)
    matching: Matching[Receive, Message] = Matching()
    rule = ByTheRule()
    matched = 0
    for _ in range(1500):
        what = rng.random()
        if what < 0.45:
            receive = Receive(rng.choice([ANY_SOURCE, 0, 1, 2]), rng.randrange(4))
            receive.order = matching.next_place()
            expected = rule.message_for(receive)
            assert matching.message_for(receive.peer, receive.tag) is expected
            if expected is None:
                matching.add_receive(receive)
                rule.receives.append(receive)
            else:
                rule.messages.remove(expected)
                matched += 1
        elif what < 0.9:
            message = Message(rng.randrange(3), rng.randrange(4))
            found = rule.receive_for(message)
            assert matching.receive_for(message.source, message.tag) is found
            if found is None:
                matching.add_message(message)
                rule.messages.append(message)
            else:
                rule.receives.remove(found)
                matched += 1
        elif what < 0.95 and rule.receives:
            gone = rule.receives.pop(rng.randrange(len(rule.receives)))
            matching.drop_receive(gone)
        elif rule.messages:
            matching.drop_message(rule.messages.pop(rng.randrange(len(rule.messages))))
        for source in (ANY_SOURCE, 0, 1, 2):
            tags = {m.tag for m in rule.messages if source in (ANY_SOURCE, m.source)}
            assert matching.tags_from(source) == sorted(tags)
    assert matched > 100
    assert all(receive.waits for receive in rule.receives)


@pytest.mark.parametrize("back", [(0, 1), (1, 0), (1,), (2, 0, 1)])
def test_a_receive_that_comes_back_stands_where_it_stood(back: tuple[int, ...]) -> None:
    matching: Matching[Receive, Message] = Matching()
    receives = [Receive(0, 5, order=matching.next_place()) for _ in range(4)]
    for receive in receives:
        matching.add_receive(receive)
    for receive in receives[:3]:
        assert matching.receive_for(0, 5) is receive
    for place in back:
        matching.add_receive(receives[place])
    for place in [*sorted(back), 3]:
        assert matching.receive_for(0, 5) is receives[place]
    assert matching.receive_for(0, 5) is None


def lane(limit_bytes: int = 1000, eager_bytes: int = 400, budget: Budget | None = None) -> Lane:
    return Lane(budget or Budget(limit_bytes), eager_bytes=eager_bytes, max_in_flight=2)


def test_a_message_over_the_eager_limit_never_goes_whole_and_one_alone_always() -> None:
    one = lane(limit_bytes=100)
    assert not one.may_send_whole(401)
    assert one.may_send_whole(400)  # though it is over the limit: nothing else waits
    assert not one.may_send_whole(1)
    one.peer_used(1, 400)
    assert one.may_send_whole(100)


def test_groups_share_what_may_wait_at_a_peer_and_a_freed_one_gives_its_part_back() -> None:
    budget = Budget(1000)
    first, second = lane(budget=budget), lane(budget=budget)
    assert first.may_send_whole(400)
    assert second.may_send_whole(400)
    assert not second.may_send_whole(400)
    first.give_back()
    assert second.may_send_whole(400)
    second.peer_used(2, 800)
    assert (budget.operations, budget.parked_bytes) == (0, 0)


@pytest.mark.parametrize("size", [0, 1, 10, 250, 400])
def test_a_sender_and_a_receiver_that_keep_the_rules_never_collide(size: int) -> None:
    """Whatever the receiver has told when, its bound is never below what the sender may send."""
    rng = random.Random(size)
    sender, receiver = lane(), lane()
    parked = told = 0
    on_its_way: list[tuple[int, int]] = []
    refused = 0
    for _ in range(6000):
        if rng.random() < 0.6:
            if sender.may_send_whole(size):
                receiver.came_whole(size)  # must not raise
                parked += 1
            else:
                refused += 1
        elif parked:
            parked -= 1
            tell = receiver.used(size)
            if tell is not None:
                on_its_way.append(tell)
        if on_its_way and rng.random() < 0.1:
            sender.peer_used(*on_its_way.pop(0))
            told += 1
        assert parked <= MAX_UNTAKEN_MESSAGES
        assert receiver.parked_bytes == parked * size
    assert told
    assert refused


def test_a_receiver_tells_often_enough_for_its_sender_to_go_on() -> None:
    sender, receiver = lane(limit_bytes=10**6), lane(limit_bytes=10**6)
    for _ in range(MAX_UNTAKEN_MESSAGES):
        assert sender.may_send_whole(1)
        receiver.came_whole(1)
    assert not sender.may_send_whole(1)
    tells = [tell for _ in range(MAX_UNTAKEN_MESSAGES) if (tell := receiver.used(1)) is not None]
    assert len(tells) == TELL_AT
    sender.peer_used(*tells[0])
    assert sender.may_send_whole(1)


@pytest.mark.parametrize("claim", [(4, 30), (3, 31), (0, 10), (1, 0)])
def test_a_peer_can_not_claim_more_than_was_sent_nor_take_back_what_it_said(
    claim: tuple[int, int],
) -> None:
    one = lane()
    for _ in range(3):
        assert one.may_send_whole(10)
    one.peer_used(1, 10)
    with pytest.raises(FrameError, match="can't have been received"):
        one.peer_used(*claim)
    one.peer_used(3, 30)
