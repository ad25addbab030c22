"""Verdicts where ranks wait in chains: the walk ends at who holds all of them up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringd.rendezvous.chains import judge_chain
from ringd.rendezvous.events import OpAnswered, OpFailed, PostFailed
from ringd.rendezvous.hops import Call, Hop, Over, waited_in
from ringd.rendezvous.inquiries import INQUIRY_S, WALK_S, WHOLE_S, Inquiries
from ringd.rendezvous.verdicts import Answer, FlowView, Verdict

ALL = (0, 1, 2, 3)
STACK = ("train.py:9 in load", "train.py:30 in main")


def recv(rank: int, *peers: int, tag: int = 7) -> PostFailed:
    """``rank`` waits in a receive from one, or from any, of ``peers``."""
    return PostFailed(rank, 1, 0, ALL, -1, "recv", tag, tuple((peer, 0) for peer in peers))


def send(rank: int, peer: int) -> PostFailed:
    return replace(recv(rank, peer), op="send")


def barrier(rank: int, members: tuple[int, ...] = ALL) -> OpFailed:
    return OpFailed(rank, 1, 0, members, 4, {"fields": {"op": "barrier"}})


def waits(rank: int) -> Answer:
    """It is in the call that is asked about, and nothing comes."""
    everybody = tuple(peer for peer in ALL if peer != rank)
    return Answer(rank, "waiting", entered_s=2.0, waiting_on=everybody)


def away(rank: int, trainer: str = "sleeping") -> Answer:
    """It is in its own code."""
    return Answer(rank, "absent", trainer=trainer, pid=100 + rank, stack=STACK)


def blocked(rank: int, name: str = "recv") -> Answer:
    """It is in another call."""
    return replace(away(rank), stack=(f"ringd_client.{name} (waiting)", *STACK))


class World:
    """Ranks with what they wait in, and a rendezvous that asks them.

    Args:
        calls: by rank, its calls in flight; who has none is in its own code.
        others: by rank, what it answers on a call that it has not made, otherwise; None: nothing.
    """

    def __init__(
        self, calls: dict[int, list[Call]], others: dict[int, Answer | None] | None = None
    ) -> None:
        self.calls = calls
        self.others = others or {}
        self.inquiries = Inquiries()
        self.questions = 0
        self.now = 0.0

    def ask(self, first: Call) -> Verdict:
        """The verdict, once all have answered, or time is up."""
        asked = [self.inquiries.begin(first, ALL, self.now)]
        about: dict[int, Call] = {1: first}
        while asked:
            question = asked.pop(0)
            assert question is not None
            self.questions += 1
            number = question.fields["inquiry"]
            for rank in question.to:
                if (answer := self.answer(rank, about[number])) is not None:
                    event = OpAnswered(rank, number, answer, tuple(self.calls.get(rank, ())))
                    for more in self.inquiries.answer(event, ALL, self.now):
                        about[more.fields["inquiry"]] = self.meant(more.fields)
                        asked.append(more)
        (inquiry,) = self.inquiries.ended(self.now + WHOLE_S)
        return inquiry.judge()

    def meant(self, fields: object) -> Call:
        """The call that a question is about."""
        every = [call for calls in self.calls.values() for call in calls]
        return next(c for c in every if self.same(c, fields))

    @staticmethod
    def same(call: Call, fields: object) -> bool:
        assert isinstance(fields, dict)
        asked = call.question(fields["inquiry"])[1]
        return asked == fields

    def answer(self, rank: int, about: Call) -> Answer | None:
        if rank in self.others:
            return self.others[rank]
        ours = self.calls.get(rank, [])
        if rank == about.rank or any(call.key == about.key for call in ours):
            return waits(rank)
        return blocked(rank, "wait") if ours else away(rank)


@pytest.mark.parametrize(
    ("calls", "others", "case", "culprits", "chain", "text"),
    [
        (
            {0: [recv(0, 1)], 1: [recv(1, 2, tag=3)]},
            {},
            "never entered",
            (2,),
            (0, 1),
            (
                "rank 1 waits itself in a recv from rank 2 with tag 3; rank 2 never made the "
                "matching send; the trainer of rank 2 (process 102) is in train.py:9 in load < "
                "train.py:30 in main"
            ),
        ),
        (
            {0: [recv(0, 1)], 1: [send(1, 2)], 2: [recv(2, 3)]},
            {3: away(3, "stopped")},
            "trainer stopped",
            (3,),
            (0, 1, 2),
            (
                "rank 1 waits itself in a send to rank 2 with tag 7, rank 2 waits itself in a recv "
                "from rank 3 with tag 7; the trainer of rank 3 (process 103) is stopped"
            ),
        ),
        (
            {0: [recv(0, 1)], 1: [barrier(1, (1, 2, 3))], 3: [barrier(3, (1, 2, 3))]},
            {},
            "never entered",
            (2,),
            (0, 1),
            "rank 1 waits itself in barrier (operation 4 of the world); rank 2 never entered it",
        ),
        (
            {0: [recv(0, 1)], 1: [barrier(1)], 2: [barrier(2)]},
            {},
            "never entered",
            (3,),
            (0, 1),
            "rank 3 never entered it",
        ),
        (
            {0: [recv(0, 1)], 1: [recv(1, 2)]},
            {2: None},
            "daemon does not answer",
            (2,),
            (0, 1),
            "the daemon of rank 2 does not answer",
        ),
        (
            {0: [recv(0, 1)], 1: [recv(1, 2)]},
            {2: away(2, "none")},
            "no trainer attached",
            (2,),
            (0, 1),
            "rank 2 has no trainer attached",
        ),
        (
            {0: [recv(0, 1)], 1: [recv(1, 2), recv(1, 3)]},
            {},
            "never entered",
            (2, 3),
            (0, 1),
            "rank 3 never made the matching send",
        ),
        ({0: [recv(0, 1)], 1: [recv(1, 0), recv(1, 2)]}, {}, "never entered", (2,), (0, 1), ""),
        ({0: [recv(0, 1, 2)], 1: [recv(1, 3)]}, {}, "never entered", (2, 3), (0, 1), ""),
        ({0: [recv(0, 1)], 1: [recv(1, 2, 3)]}, {}, "never entered", (2, 3), (0, 1), ""),
        ({0: [recv(0, 1)]}, {}, "never entered", (1,), (), "rank 1 never made the matching send"),
        (
            {0: [barrier(0, (0, 1))], 1: [recv(1, 2)]},
            {},
            "never entered",
            (2,),
            (0, 1),
            (
                "rank 1 waits itself in a recv from rank 2 with tag 7; rank 2 never made the "
                "matching send; the trainer of rank 2 (process 102) is in train.py:9 in load"
            ),
        ),
        (
            {0: [barrier(0, (0, 1, 3))], 1: [send(1, 2)], 3: [barrier(3, (0, 1, 3))]},
            {2: away(2, "stopped")},
            "trainer stopped",
            (2,),
            (0, 1),
            "rank 1 waits itself in a send to rank 2 with tag 7; the trainer of rank 2",
        ),
        (
            {0: [barrier(0)], 1: [recv(1, 2)], 3: [barrier(3)]},
            {2: None},
            "daemon does not answer",
            (2,),
            (),
            "the daemon of rank 2 does not answer",
        ),
        (
            {0: [barrier(0, (0, 1))], 1: [barrier(1, (1, 2))], 2: [recv(2, 3)]},
            {},
            "never entered",
            (3,),
            (0, 1, 2),
            (
                "rank 1 waits itself in barrier (operation 4 of the world), rank 2 waits itself in "
                "a recv from rank 3 with tag 7; rank 3 never made the matching send"
            ),
        ),
        (  # both hold it up
            {0: [barrier(0, (0, 1, 3))], 1: [recv(1, 2)]},
            {},
            "never entered",
            (2, 3),
            (0, 1),
            "rank 3 never entered it",
        ),
        (  # that one has only just come back from another call
            {0: [barrier(0, (0, 1, 3))], 1: [recv(1, 2)]},
            {3: replace(away(3), idle_s=0.1)},
            "never entered",
            (2,),
            (0, 1),
            "rank 2 never made the matching send",
        ),
        (  # nobody waits: as ever
            {0: [barrier(0)], 2: [barrier(2)], 3: [barrier(3)]},
            {},
            "never entered",
            (1,),
            (),
            "rank 1 never entered it; the trainer of rank 1 (process 101) has 4 more calls to make",
        ),
    ],
)
def test_a_chain_ends_at_who_holds_it_up(
    calls: dict[int, list[Call]],
    others: dict[int, Answer | None],
    case: str,
    culprits: tuple[int, ...],
    chain: tuple[int, ...],
    text: str,
) -> None:
    verdict = World(calls, others).ask(calls[0][0])
    assert (verdict.case, verdict.culprits, verdict.chain) == (case, culprits, chain)
    assert text in verdict.text
    if case == "never entered":
        assert verdict.stacks == dict.fromkeys(culprits, STACK)


@pytest.mark.parametrize(
    ("calls", "culprits", "chain", "text"),
    [
        (
            {0: [recv(0, 1, tag=3)], 1: [recv(1, 0, tag=5)]},
            (0, 1),
            (),
            (
                "ranks 0 and 1 wait for each other: rank 0 in a recv from rank 1 with tag 3, "
                "rank 1 in a recv from rank 0 with tag 5; the trainer of rank 0 (process 100) is "
                "in ringd_client.wait (waiting) < train.py:9 in load"
            ),
        ),
        ({0: [send(0, 1)], 1: [send(1, 0)]}, (0, 1), (), "rank 1 in a send to rank 0 with tag 7"),
        (
            {0: [recv(0, 1)], 1: [recv(1, 2)], 2: [recv(2, 0)]},
            (0, 1, 2),
            (),
            "ranks 0, 1 and 2 wait for each other",
        ),
        (
            {0: [recv(0, 1)], 1: [recv(1, 2)], 2: [recv(2, 1)]},
            (1, 2),
            (0,),
            "ranks 1 and 2 wait for each other",
        ),
        (
            {0: [recv(0, 1)], 1: [barrier(1)], 2: [barrier(2)], 3: [barrier(3)]},
            (0, 1),
            (),
            "rank 1 in barrier (operation 4 of the world)",
        ),
        (
            {0: [barrier(0)], 1: [recv(1, 0)], 2: [barrier(2)], 3: [barrier(3)]},
            (0, 1),
            (),
            (
                "ranks 0 and 1 wait for each other: rank 0 in barrier (operation 4 of the world), "
                "rank 1 in a recv from rank 0 with tag 7"
            ),
        ),
        (  # rank 0 is in the call that one of them waits in, and nobody waits for it
            {0: [barrier(0)], 1: [recv(1, 3)], 2: [barrier(2)], 3: [barrier(3)]},
            (1, 3),
            (0,),
            (
                "ranks 1 and 3 wait for each other: rank 3 in barrier (operation 4 of the world), "
                "rank 1 in a recv from rank 3 with tag 7"
            ),
        ),
        (
            {0: [barrier(0, (0, 1))], 1: [barrier(1, (1, 2))], 2: [recv(2, 0)]},
            (0, 1, 2),
            (),
            "ranks 0, 1 and 2 wait for each other",
        ),
    ],
)
def test_ranks_that_wait_for_each_other_are_a_deadlock_of_the_program(
    calls: dict[int, list[Call]], culprits: tuple[int, ...], chain: tuple[int, ...], text: str
) -> None:
    verdict = World(calls).ask(calls[0][0])
    assert (verdict.case, verdict.culprits, verdict.chain) == ("deadlock", culprits, chain)
    assert text in verdict.text
    assert "isend and irecv, or batch_p2p" in verdict.advice
    assert set(verdict.stacks) == set(culprits)


def test_a_link_at_the_end_of_a_chain_is_named() -> None:
    world = World({0: [recv(0, 1)], 1: [recv(1, 2)]}, {2: Answer(2, "done")})
    flows = {2: FlowView(100, 0, 0, 2.0)}
    world.answer = lambda rank, about: (  # type: ignore[method-assign]
        replace(waits(1), flows=flows, waiting_on=(2,))
        if (rank, about.rank) == (1, 1)
        else World.answer(world, rank, about)
    )
    verdict = world.ask(recv(0, 1))
    assert (verdict.case, verdict.link, verdict.chain) == ("link down", (2, 1), (0, 1))


def test_a_wait_that_is_over_when_it_is_asked_about_leads_nowhere() -> None:
    world = World({0: [recv(0, 1)], 1: [recv(1, 2)]})
    world.answer = lambda rank, about: (  # type: ignore[method-assign]
        Answer(1, "failed") if (rank, about.rank) == (1, 1) else World.answer(world, rank, about)
    )
    verdict = world.ask(recv(0, 1))
    assert (verdict.case, verdict.culprits) == ("never entered", (1,))


LATELY = judge_chain(recv(2, 3), {recv(2, 3).key: Hop(recv(2, 3), {2: waits(2), 3: away(3)})})


@pytest.mark.parametrize(
    ("ago_s", "waited_s", "culprits", "chain"),
    [
        (0.9, 1.1, (3,), (0, 1, 2)),
        (1.1, 2.0, (2,), (0, 1)),
        (0.1, 0.9, (2,), (0, 1)),  # it asks now and then
    ],
)
def test_who_waited_until_just_now_is_held_up_by_what_held_that_up(
    ago_s: float, waited_s: float, culprits: tuple[int, ...], chain: tuple[int, ...]
) -> None:
    hops = [
        Hop(recv(0, 1), {0: waits(0), 1: blocked(1)}, {1: (recv(1, 2),)}),
        Hop(recv(1, 2), {1: waits(1), 2: away(2)}),
    ]
    short = Over(recv(2, 1, tag=9), replace(LATELY, culprits=(1,)), 0.0, ago_s / 2)
    over = [Over(recv(2, 3), LATELY, ago_s, waited_s), short]
    verdict = judge_chain(recv(0, 1), {hop.about.key: hop for hop in hops}, over)
    assert (verdict.case, verdict.culprits, verdict.chain) == ("never entered", culprits, chain)
    told = "rank 2 waited itself in a recv from rank 3 with tag 7 until its deadline; rank 3 never"
    assert (told in verdict.text) == (culprits == (3,))


@pytest.mark.parametrize(
    ("ago_s", "waited_s", "culprits"), [(0.1, 2.0, (3,)), (1.1, 2.0, (1,)), (0.1, 0.9, (1,))]
)
def test_a_call_whose_rank_waited_until_just_now_is_held_up_by_what_held_that_up(
    ago_s: float, waited_s: float, culprits: tuple[int, ...]
) -> None:
    """Two seconds are what the one that entered first has waited, whoever reports it."""
    late = replace(waits(2), entered_s=0.2)
    hop = Hop(barrier(2), {2: late, 0: waits(0), 1: away(1), 3: waits(3)})
    over = [Over(recv(1, 3), replace(LATELY, culprits=(3,)), ago_s, waited_s)]
    assert judge_chain(barrier(2), {hop.about.key: hop}, over).culprits == culprits


def test_ranks_that_wait_for_each_other_after_one_has_given_up_are_no_deadlock() -> None:
    hops = [
        Hop(recv(0, 2), {0: waits(0), 2: blocked(2)}, {2: (recv(2, 0),)}),
        Hop(recv(2, 0), {2: waits(2), 0: blocked(0)}, {0: (recv(0, 2),)}),
    ]
    known = {hop.about.key: hop for hop in hops}
    over = [Over(recv(2, 3), LATELY, 0.1, 2.0)]
    assert judge_chain(recv(0, 2), known, over).culprits == (3,)
    assert judge_chain(recv(0, 2), known).case == "deadlock"


def test_a_call_that_has_just_begun_does_not_hide_the_one_in_which_its_rank_waited_before() -> None:
    just_now = {rank: Answer(rank, "waiting", entered_s=0.0) for rank in ALL}
    hops = [
        Hop(recv(0, 1), {0: waits(0), 1: blocked(1)}, {1: (barrier(1),)}),
        Hop(barrier(1), just_now),
    ]
    known = {hop.about.key: hop for hop in hops}
    over = [Over(recv(1, 3), LATELY, 0.0, 2.0)]
    assert judge_chain(recv(0, 1), known).case == "unknown"
    assert judge_chain(recv(0, 1), known, over).culprits == (3,)


def test_a_verdict_is_remembered_for_those_who_wait_for_its_ranks() -> None:
    inquiries = Inquiries()
    inquiries.begin(replace(barrier(1), members=(1, 2)), ALL, 0.0)
    inquiries.answer(OpAnswered(1, 1, waits(1)), ALL, 0.0)
    inquiries.answer(OpAnswered(2, 1, away(2)), ALL, 0.0)
    (first,) = inquiries.ended(0.0)
    assert inquiries.judge(first, 0.0).culprits == (2,)
    inquiries.begin(recv(0, 1), ALL, 0.1)
    inquiries.answer(OpAnswered(0, 2, waits(0)), ALL, 0.1)
    inquiries.answer(OpAnswered(1, 2, away(1)), ALL, 0.1)
    (second,) = inquiries.ended(0.1)
    verdict = inquiries.judge(second, 0.1)
    assert (verdict.culprits, verdict.chain) == ((2,), (0, 1))
    inquiries.clear()
    assert inquiries.judge(second, 0.1).culprits == (1,)


CALLS = (recv(1, 2, tag=1), barrier(1), recv(1, 3, tag=2))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (away(1), ()),
        (blocked(1, "wait"), CALLS),
        (blocked(1, "recv"), CALLS[2:]),
        (blocked(1, "barrier"), CALLS[1:2]),
        (blocked(1, "all_gather_object"), CALLS),
        (replace(away(1), stack=("ringd_client.recv (working)", *STACK)), ()),
        (replace(away(1), stack=("selectors.py:468 in select", *STACK)), CALLS),
        (replace(away(1), stack=()), CALLS),
        (replace(blocked(1), trainer="stopped"), ()),
        (waits(1), ()),
    ],
)
def test_where_its_program_is_says_which_calls_a_rank_waits_in(
    answer: Answer, expected: tuple[Call, ...]
) -> None:
    assert waited_in(answer, CALLS) == expected


def test_the_walk_has_a_time_of_its_own() -> None:
    inquiries = Inquiries()
    inquiries.begin(recv(0, 1), ALL, 10.0)
    late = 10.0 + WALK_S + 0.001
    assert inquiries.answer(OpAnswered(1, 1, blocked(1), (recv(1, 2),)), ALL, late) == []
    assert inquiries.next_deadline() == 10.0 + INQUIRY_S
    inquiries.begin(recv(0, 1), ALL, 20.0)
    soon = 20.0 + WALK_S * 0.99
    (asked,) = inquiries.answer(OpAnswered(1, 2, blocked(1), (recv(1, 2),)), ALL, soon)
    assert (asked.to, asked.fields["rank"]) == ((1, 2), 1)
    (cut,) = [inquiry.judge() for inquiry in inquiries.ended(10.0 + INQUIRY_S)]
    assert (cut.case, cut.culprits, cut.chain) == ("unknown", (), (0, 1))
    assert cut.text.startswith("rank 1 waits itself in a recv from rank 2 with tag 7; ")
    assert inquiries.next_deadline() == 20.0 + WHOLE_S


def test_who_says_too_late_that_it_waits_is_not_blamed_for_that() -> None:
    """The others are; a wait in a call that was asked about already needs no further question."""
    late = WALK_S + 0.001
    inquiries = Inquiries()
    inquiries.begin(barrier(0, (0, 1, 2)), ALL, 0.0)
    pair = replace(barrier(1, (0, 1)), group=1)
    for rank, answer, calls in (
        (0, waits(0), ()),
        (2, away(2), ()),
        (1, blocked(1, "barrier"), (pair,)),
    ):
        asked = inquiries.answer(OpAnswered(rank, 1, answer, calls), ALL, 0.0)
    assert [question.to for question in asked] == [(0, 1)]
    inquiries.answer(OpAnswered(1, 2, waits(1), ()), ALL, late)
    own = barrier(0, (0, 1, 2))
    inquiries.answer(OpAnswered(0, 2, blocked(0, "barrier"), (own,)), ALL, late)
    (inquiry,) = inquiries.ended(late)
    assert (inquiry.judge().case, inquiry.judge().culprits) == ("never entered", (2,))


def test_the_walk_is_bounded_and_each_call_is_asked_about_once() -> None:
    calls: dict[int, list[Call]] = {
        rank: [recv(rank, peer) for peer in ALL if peer != rank] for rank in ALL
    }
    world = World(calls)
    assert world.ask(recv(0, 1)).case == "deadlock"
    assert world.questions == 12
