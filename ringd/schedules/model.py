"""A schedule is data: for one rank, rounds of moves over numbered chunks.

Meaning, which the executor and the symbolic proof share:

- The working region of an operation is cut into ``n_chunks`` chunks. Rank r starts with its
  own contribution in every chunk; for all_gather in chunk r only, for broadcast at the root only.
  At the end every chunk holds the result; for reduce_scatter chunk r does at rank r.
- In a round all sends and receives run at once. A send reads its chunk as it stands after all
  receives on that chunk in *earlier* rounds.
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


@dataclass(frozen=True, slots=True)
class Send:
    """Send chunk ``chunk`` to rank ``peer``; ``wide``: as partial sums of the accumulator type."""

    peer: int
    chunk: int
    wide: bool = False


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
        fold: "rank": contributions of one application, our own included, are folded from the
            left in rank order; "round": our own first, then in the order of rounds and, within
            a round, as listed. Either way the order is fixed, so that repeats give the same bits.
        owned: chunks whose reduction ends at this rank.
        snapshot: sends read the region as it was at the start (needed where a fold may
            overwrite a chunk that is still being sent).
    """

    collective: str
    algorithm: str
    rank: int
    world_size: int
    n_chunks: int
    rounds: tuple[Round, ...]
    fold: Literal["rank", "round"] = "rank"
    owned: tuple[int, ...] = ()
    snapshot: bool = False
