"""No mutant passes the proof: right schedules with one message spoilt, at random."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ringd.schedules.build import build_group
from ringd.schedules.model import Schedule
from ringd.schedules.proof import ScheduleError, prove
from ringd.vocabulary import ALGORITHMS, ROOTED

PAIRS = [
    (collective, algorithm)
    for collective, algorithms in ALGORITHMS.items()
    for algorithm in algorithms
    if algorithm != "auto"
]

Spoil = Callable[[tuple[Any, ...], int], tuple[Any, ...]]
"""Takes the sends (or receives) of a round and the place of one; gives what shall replace them."""


@dataclass(frozen=True)
class Where:
    """The place of a move: its rank, round and place in the round."""

    rank: int
    number: int
    place: int


@dataclass(frozen=True)
class Specimen:
    """A right group, and one message of it: where it is sent and where it is received."""

    group: tuple[Schedule, ...]
    root: int
    sent: Where
    received: Where

    def spoilt(self, *, send: Spoil | None = None, recv: Spoil | None = None) -> Self:
        """The same with the sender's round, the receiver's round, or both replaced."""
        group = list(self.group)
        for where, side, spoil in ((self.sent, "sends", send), (self.received, "recvs", recv)):
            if spoil is not None:
                rounds = list(group[where.rank].rounds)
                moves = getattr(rounds[where.number], side)
                spoilt = {side: spoil(moves, where.place)}
                rounds[where.number] = replace(rounds[where.number], **spoilt)
                group[where.rank] = replace(group[where.rank], rounds=tuple(rounds))
        return replace(self, group=tuple(group))

    def is_refused(self) -> bool:
        try:
            prove(self.group, root=self.root)
        except ScheduleError:
            return True
        return False


@st.composite
def specimens(draw: st.DrawFn) -> Specimen:
    collective, algorithm = draw(st.sampled_from(PAIRS))
    n = draw(st.integers(2, 6))
    root = draw(st.integers(0, n - 1)) if collective in ROOTED else -1
    group = build_group(collective, algorithm, world_size=n, root=root, widened=draw(st.booleans()))
    source, target = draw(st.sampled_from(links(group)))
    sent = [
        Where(source, number, place)
        for number, round_ in enumerate(group[source].rounds)
        for place, send in enumerate(round_.sends)
        if send.peer == target
    ]
    received = [
        Where(target, number, place)
        for number, round_ in enumerate(group[target].rounds)
        for place, recv in enumerate(round_.recvs)
        if recv.peer == source
    ]
    return Specimen(group, root, *draw(st.sampled_from(list(zip(sent, received, strict=True)))))


def links(group: tuple[Schedule, ...]) -> list[tuple[int, int]]:
    """The ordered pairs of ranks between which something passes."""
    moves = ((s.rank, send.peer) for s in group for round_ in s.rounds for send in round_.sends)
    return sorted(set(moves))


def lost(moves: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*moves[:place], *moves[place + 1 :])


def doubled(moves: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*moves[: place + 1], *moves[place:])


def with_other(**changes: Callable[[Any], Any]) -> Spoil:
    """One move, with some of its fields changed."""

    def spoil(moves: tuple[Any, ...], place: int) -> tuple[Any, ...]:
        move = moves[place]
        changed = {name: change(getattr(move, name)) for name, change in changes.items()}
        return (*moves[:place], replace(move, **changed), *moves[place + 1 :])

    return spoil


mutate = settings(deadline=None, max_examples=150)


@mutate
@given(specimens())
def test_what_is_not_spoilt_passes(specimen: Specimen) -> None:
    assert not specimen.is_refused()


@mutate
@given(specimens())
def test_a_lost_send_never_passes(specimen: Specimen) -> None:
    assert specimen.spoilt(send=lost).is_refused()


@mutate
@given(specimens())
def test_a_lost_receive_never_passes(specimen: Specimen) -> None:
    assert specimen.spoilt(recv=lost).is_refused()


@mutate
@given(specimens())
def test_a_lost_message_never_passes(specimen: Specimen) -> None:
    assert specimen.spoilt(send=lost, recv=lost).is_refused()


@mutate
@given(specimens())
def test_a_doubled_message_never_passes(specimen: Specimen) -> None:
    assert specimen.spoilt(send=doubled, recv=doubled).is_refused()


@mutate
@given(specimens(), st.data())
def test_a_message_about_another_chunk_never_passes(
    specimen: Specimen, data: st.DataObject
) -> None:
    n_chunks = specimen.group[0].n_chunks
    assume(n_chunks > 1)
    shift = data.draw(st.integers(1, n_chunks - 1))
    other = with_other(chunk=lambda chunk: (chunk + shift) % n_chunks)
    assert specimen.spoilt(send=other, recv=other).is_refused()


@mutate
@given(specimens())
def test_a_send_of_another_width_than_its_receive_never_passes(specimen: Specimen) -> None:
    assert specimen.spoilt(send=with_other(wide=lambda wide: not wide)).is_refused()


@mutate
@given(specimens())
def test_a_receive_with_the_other_action_never_passes(specimen: Specimen) -> None:
    other = with_other(action=lambda action: "copy" if action == "reduce" else "reduce")
    assert specimen.spoilt(recv=other).is_refused()
