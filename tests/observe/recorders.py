"""Dumps for tests, written as a table: what each rank did, call by call.

A cell is one operation of a rank at the seq that is its place in the row: "sum" is a call that was
done, "sum!" failed, "sum?" is in flight, "sum?1,2" in flight and waiting on ranks 1 and 2, "..."
was recorded and is forgotten. Every call begins 1 s after the one before and lasts 0.5 s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ringd.observe.records import GroupView, Op, RankDump

START = 1_000_000.0
TAKEN = START + 1000.0
_CELL = re.compile(r"(\w+)([!?]?)([\d,]*)")
_STATES = {"": "done", "!": "failed", "?": "in flight"}


def operation(
    cell: str, seq: int | None, *, epoch: int = 1, group: int = 0, late_s: float = 0.0
) -> Op:
    match = _CELL.fullmatch(cell)
    assert match is not None, cell
    word, mark, waiting = match.groups()
    entered_at = START + (seq or 0) + late_s
    state = _STATES[mark]
    return Op(
        epoch=epoch,
        group=group,
        seq=seq,
        op="all_reduce",
        call=f"all_reduce op={word} dtype=float32 shape=(5,)",
        digest=word,
        state=state,
        entered_at=entered_at,
        ended_at=None if state == "in flight" else entered_at + 0.5,
        waiting_on=tuple(int(rank) for rank in waiting.split(",") if rank),
        bytes_done=20 if state == "done" else 4,
        bytes_total=20,
        error="timeout" if state == "failed" else None,
        message="it ended at its deadline of 0.5 s" if state == "failed" else "",
    )


def message(
    op: str,
    peer: int,
    *,
    tag: int = 0,
    state: str = "in flight",
    number: int = -1,
    count: int = 5,
    dtype: str = "float32",
) -> Op:
    """A send or a receive of the world's first epoch."""
    return replace(
        operation("sum" if state == "done" else "sum?", None),
        op=op,
        call=f"{op} peer={peer} dtype={dtype} shape=({count},)",
        state=state,
        peer=peer,
        tag=tag,
        number=number,
        waiting_on=() if peer < 0 else (peer,),
        bytes_total=4 * count,
    )


def dump(
    rank: int,
    world_size: int,
    *cells: str,
    epoch: int = 1,
    messages: Sequence[Op] = (),
    others: Sequence[Op] = (),
    left: Mapping[int, int] | None = None,
    taken_at: float = TAKEN,
    trainer_pid: int | None = None,
) -> RankDump:
    """One rank's dump; ``cells`` are its calls on the world, ``others`` operations of any group."""
    calls = [operation(cell, seq, epoch=epoch) for seq, cell in enumerate(cells) if cell != "..."]
    world = tuple(range(world_size))
    groups = {(epoch, 0): GroupView(world, len(cells), left or {})}
    for op in others:
        if op.group and (op.epoch, op.group) not in groups:
            groups[op.epoch, op.group] = GroupView(world, None, {})
    return RankDump(
        job_id="job",
        rank=rank,
        world_size=world_size,
        host=f"host{rank}",
        trainer_pid=100 + rank if trainer_pid is None else trainer_pid,
        epoch=epoch,
        taken_at=taken_at,
        groups=groups,
        operations=(*calls, *messages, *others),
        forgotten=cells.count("..."),
    )


def dumps(*rows: Sequence[str]) -> list[RankDump]:
    """A dump per row."""
    return [dump(rank, len(rows), *row) for rank, row in enumerate(rows)]
