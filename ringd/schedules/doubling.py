"""Recursive doubling and halving: log2 N rounds of exchanges between pairs of ranks.

Both want P ranks, a power of two. With more, the first 2(N-P) ranks pair up: the odd one of a
pair gives its contribution to the even one before, and gets the result from it after. So blocks
stay contiguous in rank order.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH" (2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringd.schedules.model import Recv, Round, Schedule, Send


def recursive_doubling(rank: int, world_size: int, *, widened: bool) -> Schedule:
    """All exchange all they have with the rank at distance 1, 2, 4, ...: floor(log2 N) steps.

    T bytes in each step; where N is no power of two there are 2 more steps, and T more bytes.
    Both ranks of an exchange fold alike, the lower block first, so all get the same bits.

    Args:
        widened: partial sums travel as float32 (2T in each step for 16-bit types).
    """
    core = _Core(world_size)
    place = core.place_of(rank)
    rounds = tuple(
        Round(
            sends=(Send(core.rank_at(place ^ bit), 0, widened),),
            recvs=(Recv(core.rank_at(place ^ bit), 0, "reduce", widened),),
        )
        for bit in core.bits
    )
    return Schedule(
        collective="all_reduce",
        algorithm="recursive_doubling",
        rank=rank,
        world_size=world_size,
        n_chunks=1,
        rounds=core.with_pairs(rank, rounds, given=[0], returned=[0], wide=widened),
        fold="sorted",
        owned=(0,) if core.has(rank) else (),
        # A round changes what a slow peer may not have taken yet.
        guarded=True,
    )


def halving_doubling(rank: int, world_size: int, *, widened: bool) -> Schedule:
    """Reduce-scatter by recursive halving, all-gather by recursive doubling (Rabenseifner).

    2 floor(log2 N) steps, 2T(P-1)/P bytes per rank over P chunks; where N is no power of two
    there are 2 more steps, and T more bytes.

    Args:
        widened: partial sums travel as float32: 3T(P-1)/P for 16-bit types.
    """
    core = _Core(world_size)
    place = core.place_of(rank)
    gathering, held = _gather(core, place)
    rounds = core.with_pairs(
        rank,
        _halve(core, place, widened) + gathering,
        given=_kept(core, place, 0),
        returned=held,
        wide=widened,
    )
    return Schedule(
        collective="all_reduce",
        algorithm="halving_doubling",
        rank=rank,
        world_size=world_size,
        n_chunks=core.size,
        rounds=rounds,
        # Contributions come in the order of rounds: none has to wait for its place in the fold.
        fold="round",
        owned=(place,) if core.has(rank) else (),
    )


@dataclass(frozen=True, slots=True)
class _Core:
    """The P places of a group: the even rank of each pair, then all ranks that have none."""

    world_size: int

    @property
    def size(self) -> int:
        """P: the largest power of two that is not above N."""
        return 1 << (self.world_size.bit_length() - 1)

    @property
    def bits(self) -> list[int]:
        """1, 2, 4, ... below P."""
        return [1 << level for level in range(self.size.bit_length() - 1)]

    @property
    def _paired(self) -> int:
        """So many ranks, the first ones, are in pairs."""
        return 2 * (self.world_size - self.size)

    def has(self, rank: int) -> bool:
        """Whether the rank has a place of its own."""
        return rank >= self._paired or rank % 2 == 0

    def place_of(self, rank: int) -> int:
        """The rank's place, or that of the other one of its pair."""
        return rank // 2 if rank < self._paired else rank - self._paired // 2

    def rank_at(self, place: int) -> int:
        return 2 * place if 2 * place < self._paired else place + self._paired // 2

    def with_pairs(
        self,
        rank: int,
        rounds: tuple[Round, ...],
        *,
        given: Sequence[int],
        returned: Sequence[int],
        wide: bool,
    ) -> tuple[Round, ...]:
        """The rounds of a place, between the two in which pairs give and return these chunks."""
        if not self._paired:
            return rounds
        if rank >= self._paired:
            return (Round(), *rounds, Round())
        other = rank ^ 1
        if self.has(rank):
            before = Round(recvs=tuple(Recv(other, chunk, "reduce", wide) for chunk in given))
            after = Round(sends=tuple(Send(other, chunk) for chunk in returned))
            return (before, *rounds, after)
        before = Round(sends=tuple(Send(other, chunk, wide) for chunk in given))
        after = Round(recvs=tuple(Recv(other, chunk, "copy") for chunk in returned))
        return (before, *[Round()] * len(rounds), after)


def _halve(core: _Core, place: int, wide: bool) -> tuple[Round, ...]:
    """The nearest place first: each round gives away half of the chunks that are still kept."""
    rounds = []
    for level, bit in enumerate(core.bits):
        peer = core.rank_at(place ^ bit)
        given, kept = _kept(core, place ^ bit, level + 1), _kept(core, place, level + 1)
        rounds.append(
            Round(
                sends=tuple(Send(peer, chunk, wide) for chunk in given),
                recvs=tuple(Recv(peer, chunk, "reduce", wide) for chunk in kept),
            )
        )
    return tuple(rounds)


def _gather(core: _Core, place: int) -> tuple[tuple[Round, ...], list[int]]:
    """The halving backwards: each round passes on all that is finished, as it came.

    Returns:
        The rounds, and all chunks in the order in which they came.
    """
    rounds, mine = [], [place]
    for bit in reversed(core.bits):
        peer = core.rank_at(place ^ bit)
        theirs = [chunk ^ bit for chunk in mine]
        rounds.append(
            Round(
                sends=tuple(Send(peer, chunk) for chunk in mine),
                recvs=tuple(Recv(peer, chunk, "copy") for chunk in theirs),
            )
        )
        mine = mine + theirs
    return tuple(rounds), mine


def _kept(core: _Core, place: int, level: int) -> list[int]:
    """The chunks that a place has after ``level`` halvings: those with its lowest bits.

    What it gives away first comes first, and so on at whoever gets it. In any other order a
    chunk could wait behind one that waits for more contributions.
    """
    steps = range(0, core.size, 1 << level)
    return sorted((place ^ step for step in steps), key=lambda c: -_reversed(c ^ place, core.size))


def _reversed(number: int, size: int) -> int:
    """A number below ``size``, a power of two, with its bits in the opposite order."""
    n_bits = size.bit_length() - 1
    return sum(1 << (n_bits - 1 - at) for at in range(n_bits) if number >> at & 1)
