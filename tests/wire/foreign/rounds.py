"""The moves of any rank of any group, written from docs/wire-protocol.md alone.

A move is (peer, chunk, wide) for a send and (peer, chunk, wide, adds) for a receive; a round is
its sends and its receives. Rounds in which a rank does nothing are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

SendMove = tuple[int, int, bool]
RecvMove = tuple[int, int, bool, bool]


@dataclass
class Round:
    sends: list[SendMove] = field(default_factory=list)
    recvs: list[RecvMove] = field(default_factory=list)
    after: int = -1
    """The chunk that must have come before this round's send."""


def rounds(collective: str, algorithm: str, r: int, n: int, root: int, wide: bool) -> list[Round]:
    """What rank ``r`` of ``n`` does; ``wide``: sums of 16-bit floats."""
    if n == 1:
        return []
    if algorithm in ("exchange", "direct", "pairwise"):
        found = _all_at_once(collective, algorithm, r, n, root)
    elif algorithm == "ring":
        found = _ring(collective, r, n, wide)
    elif algorithm == "tree":
        found = _tree(collective, r, n, root, wide)
    elif algorithm == "chain":
        found = _chain(collective, r, n, root, wide)
    else:
        found = _doubling(algorithm, r, n, wide)
    return [one for one in found if one.sends or one.recvs]


def _all_at_once(collective: str, algorithm: str, r: int, n: int, root: int) -> list[Round]:
    to = [(r + i) % n for i in range(1, n)]
    of = [(r - i) % n for i in range(1, n)]
    if algorithm == "exchange":
        return [Round([(p, 0, False) for p in to], [(p, 0, False, True) for p in of])]
    if algorithm == "pairwise":
        pairs = list(zip(to, of, strict=True))
        came = [-1, *(q * n + r for q in of)]
        return [
            Round([(p, r * n + p, False)], [(q, q * n + r, False, False)], came[k])
            for k, (p, q) in enumerate(pairs)
        ]
    first = Round([(p, p, False) for p in to], [(p, r, False, True) for p in of])
    second = Round([(p, r, False) for p in to], [(p, p, False, False) for p in of])
    exchanged = Round(
        [(p, r * n + p, False) for p in to], [(p, p * n + r, False, False) for p in of]
    )
    is_root = r == root
    return {
        "all_reduce": [first, second],
        "reduce_scatter": [first],
        "all_gather": [second],
        "all_to_all": [exchanged],
        "reduce": [
            Round([], [(p, 0, False, True) for p in of]) if is_root else Round([(root, 0, False)])
        ],
        "gather": [
            Round([], [(p, p, False, False) for p in of]) if is_root else Round([(root, r, False)])
        ],
        "scatter": [
            Round([(p, p, False) for p in to]) if is_root else Round([], [(root, r, False, False)])
        ],
    }[collective]


def _ring(collective: str, r: int, n: int, wide: bool) -> list[Round]:
    right, left = (r + 1) % n, (r - 1) % n

    def step(sent: int, got: int, *, adds: bool) -> Round:
        is_wide = wide and adds
        return Round([(right, sent % n, is_wide)], [(left, got % n, is_wide, adds)])

    steps = range(n - 1)
    if collective == "reduce_scatter":
        return [step(r - 1 - s, r - 2 - s, adds=True) for s in steps]
    if collective == "all_gather":
        return [step(r - s, r - 1 - s, adds=False) for s in steps]
    summed = [step(r - s, r - 1 - s, adds=True) for s in steps]
    return summed + [step(r + 1 - s, r - s, adds=False) for s in steps]


def _bits(below: int) -> list[int]:
    found, b = [], 1
    while b < below:
        found.append(b)
        b *= 2
    return found


def _tree(collective: str, r: int, n: int, root: int, wide: bool) -> list[Round]:
    if collective == "reduce":
        return _up(r, n, root, _whole, wide=wide, adds=True)
    if collective == "gather":
        return _up(r, n, root, _parts, wide=False, adds=False)
    if collective == "scatter":
        return _down(r, n, root, _parts)
    if collective == "broadcast":
        return _down(r, n, root, _whole)
    return _up(r, n, 0, _whole, wide=wide, adds=True) + _down(r, n, 0, _whole)


Passing = Callable[[int, int, int], list[int]]
"""The places, counted from the root, whose chunks pass between a place and its parent."""


def _whole(_q: int, _b: int, _n: int) -> list[int]:
    return [-1]  # the only chunk, whatever the root is


def _parts(q: int, b: int, n: int) -> list[int]:
    return list(range(q, min(q + b, n)))


def _chunks(places: list[int], root: int, n: int) -> list[int]:
    return [0 if x < 0 else (root + x) % n for x in places]


def _up(r: int, n: int, root: int, passing: Passing, *, wide: bool, adds: bool) -> list[Round]:
    q, found = (r - root) % n, []
    for b in _bits(n):
        if q % b:
            continue
        if q & b:
            ours = _chunks(passing(q, b, n), root, n)
            found.append(Round([((r - b) % n, c, wide) for c in ours]))
        elif q + b < n:
            theirs = _chunks(passing(q + b, b, n), root, n)
            found.append(Round([], [((r + b) % n, c, wide, adds) for c in theirs]))
    return found


def _down(r: int, n: int, root: int, passing: Passing) -> list[Round]:
    q, found = (r - root) % n, []
    for b in reversed(_bits(n)):
        if q % b:
            continue
        if q & b:
            ours = _chunks(passing(q, b, n)[::-1], root, n)
            found.append(Round([], [((r - b) % n, c, False, False) for c in ours]))
        elif q + b < n:
            theirs = _chunks(passing(q + b, b, n)[::-1], root, n)
            found.append(Round([((r + b) % n, c, False) for c in theirs]))
    return found


def _chain(collective: str, r: int, n: int, root: int, wide: bool) -> list[Round]:
    def along(line: list[int], *, adds: bool) -> list[Round]:
        is_wide = wide and adds
        found = []
        for sender, receiver in pairwise(line):
            if r == sender:
                found.append(Round([(receiver, 0, is_wide)]))
            elif r == receiver:
                found.append(Round([], [(sender, 0, is_wide, adds)]))
        return found

    line = list(range(n))
    if collective == "broadcast":
        return along([(root + i) % n for i in range(n)], adds=False)
    back = line[::-1] if collective == "all_reduce" else [n - 1, root]
    if collective == "reduce" and root == n - 1:
        back = []
    return along(line, adds=True) + along(back, adds=False)


def _doubling(algorithm: str, r: int, n: int, wide: bool) -> list[Round]:
    size = 1
    while 2 * size <= n:
        size *= 2
    paired = 2 * (n - size)
    t = r // 2 if r < paired else r - paired // 2

    def rank_of(place: int) -> int:
        return 2 * place if 2 * place < paired else place + paired // 2

    def backwards(number: int) -> int:
        digits = f"{number:0{size.bit_length() - 1}b}" if size > 1 else "0"
        return int(digits[::-1], 2)

    def kept(place: int, mask: int) -> list[int]:
        agreeing = [c for c in range(size) if not (c ^ place) & mask]
        return sorted(agreeing, key=lambda c: backwards(c ^ place), reverse=True)

    given = [0] if algorithm == "recursive_doubling" else kept(t, 0)
    returned, found = [0], []
    if algorithm == "recursive_doubling":
        for b in _bits(size):
            peer = rank_of(t ^ b)
            found.append(Round([(peer, 0, wide)], [(peer, 0, wide, True)]))
    else:
        for b in _bits(size):
            peer, mask = rank_of(t ^ b), 2 * b - 1
            sends = [(peer, c, wide) for c in kept(t ^ b, mask)]
            found.append(Round(sends, [(peer, c, wide, True) for c in kept(t, mask)]))
        returned = [t]
        for b in reversed(_bits(size)):
            peer, came = rank_of(t ^ b), [c ^ b for c in returned]
            sends = [(peer, c, False) for c in returned]
            found.append(Round(sends, [(peer, c, False, False) for c in came]))
            returned = returned + came
    if r >= paired:
        return found
    if r % 2:
        before = Round([(r - 1, c, wide) for c in given])
        return [before, Round([], [(r - 1, c, False, False) for c in returned])]
    before = Round([], [(r + 1, c, wide, True) for c in given])
    return [before, *found, Round([(r + 1, c, False) for c in returned])]
