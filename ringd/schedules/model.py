"""A schedule is data: for one rank, rounds of moves over numbered chunks.

Meaning, which the executor and the symbolic proof share:

- An operation has ``n_chunks`` chunks. Which of them a rank holds at the start, and which are its
  result at the end, is the collective's business:

  ===================  ======================  =================================================
  collective           held at the start       result
  ===================  ======================  =================================================
  all_reduce, barrier  its contribution to all  all, reduced
  reduce               its contribution to all  all, reduced, at the root only
  reduce_scatter       its contribution to all  chunk r at rank r, reduced
  broadcast            all, at the root         all
  all_gather           chunk r at rank r        all
  gather               chunk r at rank r        all, at the root only
  scatter              all, at the root         chunk r at rank r
  all_to_all           chunks r*N + p           chunks p*N + r, for every p but r
  ===================  ======================  =================================================

- In a round all sends and receives run at once. A send reads its chunk as it stands after all
  receives on that chunk in *earlier* rounds. A send that has ``after`` waits, besides, for the
  receives on that chunk in earlier rounds; it reads nothing of it.
- Receives on one chunk form a sequence of *applications*: consecutive ``reduce`` receives with
  no send of that chunk between them are one application, folded together in one go (in the
  order that ``fold`` names); each ``copy`` is an application of its own.
- ``owned`` chunks are finished here: when their last reduce application is done they are
  finalised (avg divides, 16-bit floats are rounded once) before anything sends them.
- ``wide`` moves carry accumulator elements (float32 partial sums of a 16-bit operation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["copy", "reduce"]
Fold = Literal["rank", "sorted", "round"]


@dataclass(frozen=True, slots=True)
class Send:
    """Send chunk ``chunk`` to rank ``peer``; ``wide``: as partial sums of the accumulator type.

    ``after``: wait until this chunk has come in earlier rounds (pacing); -1: do not.
    """

    peer: int
    chunk: int
    wide: bool = False
    after: int = -1


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive chunk ``chunk`` from ``peer`` and copy it over, or reduce it into, our own."""

    peer: int
    chunk: int
    action: Action
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """Moves that run at once."""

    sends: tuple[Send, ...] = ()
    recvs: tuple[Recv, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one rank does in one collective.

    Attributes:
        fold: how the terms of one application are ordered, our own among them, so that repeats
            give the same bits. "rank": contributions as ranks gave them, folded from the left in
            rank order. "sorted": partial sums, folded from the left in the order of the ranks
            that they come from. "round": our own first, then in the order of rounds and, within
            a round, as listed.
        owned: chunks whose reduction ends at this rank.
        guarded: an application waits until the sends that read the chunk as it was have left,
            and each is copied as it leaves (needed where what is still being sent may be changed).
    """

    collective: str
    algorithm: str
    rank: int
    world_size: int
    n_chunks: int
    rounds: tuple[Round, ...]
    fold: Fold = "rank"
    owned: tuple[int, ...] = ()
    guarded: bool = False
