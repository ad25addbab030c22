"""What an algorithm costs: steps, and payload bytes that a rank sends.

Written from the definitions, not from the builders: the proof compares the two.
T is in bytes: the tensor; where ranks have parts, all N parts together; in all_to_all, all that one
rank has for the N ranks. t[c] is chunk c. K = ceil(log2 N); P is the largest power of two up to N.
Headers are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from ringd.vocabulary import IN_PARTS


def partition(count: int, n_chunks: int) -> tuple[tuple[int, int], ...]:
    """Cut ``count`` elements into chunks as even as can be: (start, length) of each.

    The first ``count % n_chunks`` chunks get one element more, as in ``numpy.array_split``; with
    fewer elements than chunks the last ones are empty.

    Raises:
        ValueError: a negative count, or no chunks.
    """
    if count < 0 or n_chunks < 1:
        raise ValueError(f"can't cut {count} elements into {n_chunks} chunks")
    length, longer = divmod(count, n_chunks)
    return tuple(
        (chunk * length + min(chunk, longer), length + (chunk < longer))
        for chunk in range(n_chunks)
    )


def chunk_sizes(count: int, n_chunks: int, itemsize: int) -> tuple[int, ...]:
    """The sizes of the chunks of :func:`partition` in bytes."""
    return tuple(length * itemsize for _, length in partition(count, n_chunks))


def chunk_count(collective: str, algorithm: str, world_size: int) -> int:
    """How many chunks an operation has.

    Raises:
        ValueError: there is no such pair.
    """
    _cost(collective, algorithm)
    if collective == "all_to_all":
        return world_size * world_size
    if collective in IN_PARTS or (collective == "all_reduce" and algorithm in ("ring", "direct")):
        return world_size
    return _core(world_size) if algorithm == "halving_doubling" else 1


def steps(collective: str, algorithm: str, world_size: int, *, root: int = -1) -> int:
    """Rounds that follow each other.

    Args:
        root: where there is one; only a reduce by chain is shorter for one of them.

    Raises:
        ValueError: there is no such pair.
    """
    return _cost(collective, algorithm).steps(world_size, root)


def payload_bytes_per_rank(
    collective: str, algorithm: str, *, world_size: int, total_bytes: int, widened: bool = False
) -> float:
    """What the busiest rank sends when all chunks are equal: the formula of the documentation.

    Args:
        total_bytes: T.
        widened: partial sums travel at twice the size (16-bit floats, where partial sums travel).

    Raises:
        ValueError: there is no such pair.
    """
    busiest = _cost(collective, algorithm).busiest
    share = busiest(world_size, 2 if widened else 1) if world_size > 1 else 0
    return float(share * total_bytes)


def sent_bytes(
    collective: str,
    algorithm: str,
    *,
    rank: int,
    world_size: int,
    chunk_bytes: tuple[int, ...],
    root: int = -1,
    widening: int = 1,
) -> int:
    """Exactly what one rank sends, chunks being as uneven as they are.

    Args:
        chunk_bytes: t; as many as :func:`chunk_count` says. Of all_to_all: what rank a has for
            rank b is at a*N + b.
        root: of a broadcast, reduce, gather or scatter.
        widening: how many times larger partial sums are: 2 for 16-bit floats.

    Raises:
        ValueError: there is no such pair.
    """
    cost = _cost(collective, algorithm)
    return cost.sent(_Sender(rank, world_size, chunk_bytes, root, widening))


@dataclass(frozen=True, slots=True)
class _Sender:
    """A rank whose bytes are asked for: N, t, and the widening beside it."""

    rank: int
    n: int
    t: tuple[int, ...]
    root: int
    wide: int

    @property
    def total(self) -> int:
        return sum(self.t)

    @property
    def others(self) -> int:
        """All chunks but one's own."""
        return self.total - self.t[self.rank]

    def after(self, distance: int) -> int:
        """The chunk of the rank that is so far to the right."""
        return self.t[(self.rank + distance) % self.n]

    @property
    def place(self) -> int:
        """Counted from the root."""
        return (self.rank - self.root) % self.n

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    @property
    def is_last(self) -> bool:
        return self.rank == self.n - 1

    def subtree(self) -> int:
        """The parts of a rank and all below it in a binomial tree counted from the root."""
        size = self.place & -self.place or self.n
        below = range(self.place, min(self.place + size, self.n))
        return sum(self.t[(self.root + place) % self.n] for place in below)

    @property
    def is_extra(self) -> bool:
        """One of the N-P odd ranks that give all they have to the even one before them."""
        return self.rank < 2 * (self.n - _core(self.n)) and self.rank % 2 == 1

    def with_pair(self, among_p: Callable[[int], int]) -> int:
        """What a rank sends among the P, by its place there, and within its pair."""
        paired = 2 * (self.n - _core(self.n))
        if self.is_extra:
            return self.wide * self.total
        if self.rank < paired:
            return among_p(self.rank // 2) + self.total
        return among_p(self.rank - paired // 2)


@dataclass(frozen=True, slots=True)
class _Cost:
    """The formulas of one algorithm.

    Attributes:
        steps: of N and root.
        busiest: what the busiest of at least two ranks sends, as a share of T; of N and of the
            widening of partial sums.
        sent: what one rank sends.
    """

    steps: Callable[[int, int], int]
    busiest: Callable[[int, int], Fraction | int]
    sent: Callable[[_Sender], int]


def _levels(n: int) -> int:
    """K."""
    return (n - 1).bit_length()


def _core(n: int) -> int:
    """P."""
    return 1 << (n.bit_length() - 1)


def _is_uneven(n: int) -> bool:
    """Whether N is no power of two, so that some ranks pair up."""
    return n != _core(n)


def _most(n: int) -> Fraction:
    """N-1 parts of N."""
    return Fraction(n - 1, n)


def _once(n: int, _root: int = -1) -> int:
    return min(n - 1, 1)


def _children(place: int, world_size: int) -> int:
    """Children in a binomial tree: each ``place + 2**j`` below N, ``2**j`` below its lowest bit."""
    room = (world_size - 1 - place).bit_length()
    if place == 0:
        return room
    lowest_bit = (place & -place).bit_length() - 1
    return min(lowest_bit, room)


def _busiest_in_tree(n: int, wide: int) -> int:
    """K at the root, or once up and then to the children."""
    most_children_below_root = ((n - 1) // 3).bit_length()
    return max(_levels(n), wide + most_children_below_root)


def _largest_subtree(n: int) -> Fraction:
    """Of the root's farthest child, which may be cut short by N, or of the one before it."""
    half = 1 << (_levels(n) - 1)
    return Fraction(max(n - half, half // 2), n)


def _halved_and_doubled(s: _Sender, place: int) -> int:
    """Each chunk but one's own once as a partial sum.

    Then chunk c in each round of the second half after it has come: as often as c and one's own
    number have equal bits at their low ends; one's own in all of them.
    """
    p = len(s.t)
    equal_bits = [((c ^ place) | p) & -((c ^ place) | p) for c in range(p)]
    finished = sum(t * (bit.bit_length() - 1) for t, bit in zip(s.t, equal_bits, strict=True))
    return s.wide * (s.total - s.t[place]) + finished


def _to_all_others(s: _Sender) -> int:
    """A row of the N x N parts, without what is one's own."""
    first = s.rank * s.n
    return sum(s.t[first : first + s.n]) - s.t[first + s.rank]


_EXCHANGE = _Cost(_once, lambda n, _: n - 1, lambda s: (s.n - 1) * s.total)
_TREE = _Cost(
    lambda n, _: 2 * _levels(n),
    _busiest_in_tree,
    lambda s: s.total * (_children(s.rank, s.n) + (s.wide if s.rank else 0)),
)
_COSTS: dict[tuple[str, str], _Cost] = {
    ("all_reduce", "ring"): _Cost(
        lambda n, _: 2 * (n - 1),
        lambda n, wide: (wide + 1) * _most(n),
        lambda s: s.wide * (s.total - s.after(1)) + s.total - s.after(2),
    ),
    ("all_reduce", "tree"): _TREE,
    ("all_reduce", "direct"): _Cost(
        lambda n, _: 2 * _once(n),
        lambda n, _: 2 * _most(n),
        lambda s: s.others + (s.n - 1) * s.t[s.rank],
    ),
    ("all_reduce", "exchange"): _EXCHANGE,
    ("all_reduce", "recursive_doubling"): _Cost(
        lambda n, _: _levels(_core(n)) + 2 * _is_uneven(n),
        lambda n, wide: wide * _levels(_core(n)) + _is_uneven(n),
        lambda s: s.with_pair(lambda _: s.wide * s.total * _levels(_core(s.n))),
    ),
    ("all_reduce", "halving_doubling"): _Cost(
        lambda n, _: 2 * _levels(_core(n)) + 2 * _is_uneven(n),
        lambda n, wide: (wide + 1) * _most(_core(n)) + _is_uneven(n),
        lambda s: s.with_pair(lambda place: _halved_and_doubled(s, place)),
    ),
    ("all_reduce", "chain"): _Cost(
        lambda n, _: 2 * (n - 1),
        lambda n, wide: wide + (n > 2),
        lambda s: s.total * ((0 if s.is_last else s.wide) + (s.rank > 0)),
    ),
    ("reduce", "tree"): _Cost(
        lambda n, _: _levels(n),
        lambda _, wide: wide,
        lambda s: 0 if s.is_root else s.wide * s.total,
    ),
    ("reduce", "chain"): _Cost(
        lambda n, root: n - 1 if root == n - 1 or n == 1 else n,
        lambda _, wide: wide,
        lambda s: s.total * ((not s.is_root) if s.is_last else s.wide),
    ),
    ("reduce", "direct"): _Cost(_once, lambda _, __: 1, lambda s: 0 if s.is_root else s.total),
    ("reduce_scatter", "ring"): _Cost(
        lambda n, _: n - 1, lambda n, wide: wide * _most(n), lambda s: s.wide * s.others
    ),
    ("reduce_scatter", "direct"): _Cost(_once, lambda n, _: _most(n), lambda s: s.others),
    ("all_gather", "ring"): _Cost(
        lambda n, _: n - 1, lambda n, _: _most(n), lambda s: s.total - s.after(1)
    ),
    ("all_gather", "direct"): _Cost(
        _once, lambda n, _: _most(n), lambda s: (s.n - 1) * s.t[s.rank]
    ),
    ("gather", "tree"): _Cost(
        lambda n, _: _levels(n),
        lambda n, _: _largest_subtree(n),
        lambda s: 0 if s.is_root else s.subtree(),
    ),
    ("gather", "direct"): _Cost(
        _once, lambda n, _: Fraction(1, n), lambda s: 0 if s.is_root else s.t[s.rank]
    ),
    ("scatter", "tree"): _Cost(
        lambda n, _: _levels(n), lambda n, _: _most(n), lambda s: s.subtree() - s.t[s.rank]
    ),
    ("scatter", "direct"): _Cost(
        _once, lambda n, _: _most(n), lambda s: s.others if s.is_root else 0
    ),
    ("all_to_all", "pairwise"): _Cost(lambda n, _: n - 1, lambda n, _: _most(n), _to_all_others),
    ("all_to_all", "direct"): _Cost(_once, lambda n, _: _most(n), _to_all_others),
    ("broadcast", "tree"): _Cost(
        lambda n, _: _levels(n),
        lambda n, _: _levels(n),
        lambda s: s.total * _children(s.place, s.n),
    ),
    ("broadcast", "chain"): _Cost(
        lambda n, _: n - 1, lambda _, __: 1, lambda s: 0 if s.place == s.n - 1 else s.total
    ),
    ("barrier", "exchange"): _EXCHANGE,
    ("barrier", "tree"): _TREE,
    ("agree", "exchange"): _EXCHANGE,
    ("agree", "tree"): _TREE,
    ("new_group", "exchange"): _EXCHANGE,
    ("new_group", "tree"): _TREE,
}


def _cost(collective: str, algorithm: str) -> _Cost:
    found = _COSTS.get((collective, algorithm))
    if found is None:
        raise ValueError(f"there is no formula for {collective} by {algorithm!r}")
    return found
