"""Chains: the whole region goes from rank to rank, and is pipelined by segment.

As many steps as ranks, but each rank sends all of T only once: for large T. A chain along
0, 1, ... N-1 folds in rank order, at any size.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringd.schedules.model import Action, Recv, Round, Schedule, Send


def all_reduce(rank: int, world_size: int, *, widened: bool) -> Schedule:
    """Fold along 0, 1, ... N-1, then hand the result back: 2(N-1) steps, 2T bytes per rank.

    Args:
        widened: partial sums travel as float32: 3T for 16-bit types.
    """
    line = range(world_size)
    fold = _pass(rank, line, "reduce", wide=widened)
    back = _pass(rank, line[::-1], "copy")
    return _schedule("all_reduce", rank, world_size, fold + back, last_owns=True)


def reduce(rank: int, world_size: int, *, root: int, widened: bool) -> Schedule:
    """Fold along 0, 1, ... N-1; the end sends the result to the root: N steps, T bytes per rank.

    One step less if the root is the end. A root before it takes part in the fold like the
    others: the result that overwrites its partial sum cannot come before that has been taken.

    Args:
        widened: partial sums travel as float32: 2T for 16-bit types.
    """
    end = world_size - 1
    rounds = _pass(rank, range(world_size), "reduce", wide=widened)
    if root != end:
        rounds += _pass(rank, (end, root), "copy")
    return _schedule("reduce", rank, world_size, rounds, last_owns=True)


def broadcast(rank: int, world_size: int, *, root: int) -> Schedule:
    """The root's data along root, root+1, ... (mod N): N-1 steps, T bytes per rank."""
    line = [(root + place) % world_size for place in range(world_size)]
    return _schedule("broadcast", rank, world_size, _pass(rank, line, "copy"), last_owns=False)


def _pass(
    rank: int, line: Sequence[int], action: Action, *, wide: bool = False
) -> tuple[Round, ...]:
    """One round for each step along ``line``; empty where it is not this rank's turn."""
    rounds = [Round()] * (len(line) - 1)
    if rank in line:
        at = line.index(rank)
        if at > 0:
            rounds[at - 1] = Round(recvs=(Recv(line[at - 1], 0, action, wide),))
        if at < len(rounds):
            rounds[at] = Round(sends=(Send(line[at + 1], 0, wide),))
    return tuple(rounds)


def _schedule(
    collective: str, rank: int, world_size: int, rounds: tuple[Round, ...], *, last_owns: bool
) -> Schedule:
    return Schedule(
        collective=collective,
        algorithm="chain",
        rank=rank,
        world_size=world_size,
        n_chunks=1,
        rounds=rounds,
        # What comes is the fold of all lower ranks, so it goes before our own.
        fold="sorted",
        owned=(0,) if last_owns and rank == world_size - 1 else (),
    )
