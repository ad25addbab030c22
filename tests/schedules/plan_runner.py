"""Runs the plans of a group in one process, on real memory, with messages in any order.

It does what ``ringd.schedules.plan`` says a plan means, and nothing of it is the executor's. It is
as unhelpful as it may be: a send that is not guarded reads its memory when it is delivered, not
when it leaves; which of all possible events comes next is drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from ringd.schedules.build import build
from ringd.schedules.layout import Region, layout_of, region_of
from ringd.schedules.plan import REGION, TRANSIT, WIDE, Plan, RecvItem, SendItem, compile_plan
from ringd.vocabulary import OpSpec

Array = np.ndarray[Any, np.dtype[Any]]
GARBAGE = 77
"""What lies where nothing was written: no input of a test has it."""


@dataclass
class Rank:
    """One rank's memory and cursors."""

    plan: Plan
    region: Region
    spaces: dict[int, Array]
    versions: list[int]
    readers: list[int]
    sent: dict[int, int]
    received: dict[int, int]
    parked: dict[tuple[int, int], dict[int, Array]] = field(default_factory=dict)


@dataclass
class Group:
    """All ranks, and what is under way: by (source, target) sends, with their copy if guarded."""

    ranks: list[Rank]
    links: dict[tuple[int, int], deque[tuple[SendItem, Array | None]]]
    accumulator: np.dtype[Any]
    finalise: Callable[[Array], Array]


def run(
    spec: OpSpec,
    algorithm: str,
    inputs: Sequence[Array],
    *,
    splits: Sequence[tuple[int, ...]] = (),
    widened: bool = False,
    segment: int,
    random: Random,
    finalise: Callable[[Array], Array] = lambda acc: acc,
) -> list[Array]:
    """What each rank has as its result, in rank order.

    Args:
        inputs: what each rank loads.
        splits: of all_to_all, each rank's.
        widened: partial sums are float64, whatever the inputs are.
        segment: elements.
        finalise: applied to a reduction when it ends.

    Raises:
        AssertionError: they wait for each other, or something is left over.
    """
    n = len(inputs)
    accumulator = np.dtype(np.float64) if widened else inputs[0].dtype
    group = Group([], {}, accumulator, finalise)
    for rank, loaded in enumerate(inputs):
        mine = splits[rank] if splits else ()
        group.ranks.append(_entered(spec, algorithm, rank, n, loaded, mine, widened, segment))
    for _ in range(1_000_000):
        events = _possible(group)
        if not events:
            break
        random.choice(events)()
    for rank, state in enumerate(group.ranks):
        for flow in state.plan.flows:
            assert state.sent[flow.peer] == len(flow.sends), f"{rank} still owes {flow.peer}"
            assert state.received[flow.peer] == len(flow.recvs), f"{rank} lacks {flow.peer}'s"
        assert not state.parked
        assert state.versions == [len(a) for a in state.plan.applications]
    assert not any(group.links.values())
    return [_result(state) for state in group.ranks]


def _entered(
    spec: OpSpec,
    algorithm: str,
    rank: int,
    n: int,
    loaded: Array,
    splits: tuple[int, ...],
    widened: bool,
    segment: int,
) -> Rank:
    schedule = build(
        spec.collective, algorithm, rank=rank, world_size=n, root=spec.root, widened=widened
    )
    layout = layout_of(spec, schedule, splits)
    region = region_of(spec, rank, n, splits)
    itemsize = loaded.itemsize
    plan = compile_plan(
        schedule,
        layout=layout,
        itemsize=itemsize,
        wide_itemsize=8 if widened else itemsize,
        segment_bytes=segment * itemsize,
        eager_bytes=0,
    )
    memory = np.full(region.count, GARBAGE, loaded.dtype)
    start, count = region.load
    assert count == len(loaded)
    memory[start : start + count] = loaded
    source, target, own = region.own
    memory[target : target + own] = memory[source : source + own]
    wide = memory.astype(np.float64) if plan.wide else memory
    transit = np.full(layout.transit_count, GARBAGE, loaded.dtype)
    assert plan.transit_bytes == transit.nbytes
    return Rank(
        plan=plan,
        region=region,
        spaces={REGION: memory, WIDE: wide, TRANSIT: transit},
        versions=[0] * plan.n_cells,
        readers=[counts[0] for counts in plan.readers],
        sent={flow.peer: 0 for flow in plan.flows},
        received={flow.peer: 0 for flow in plan.flows},
    )


def _possible(group: Group) -> list[Callable[[], None]]:
    """Whatever may happen next."""
    events: list[Callable[[], None]] = []
    for number, state in enumerate(group.ranks):
        for flow in state.plan.flows:
            at = state.sent[flow.peer]
            if at < len(flow.sends) and state.versions[flow.sends[at].cell] >= flow.sends[at].needs:
                item, peer = flow.sends[at], flow.peer
                events.append(lambda n=number, p=peer, i=item: _leave(group, n, p, i))  # type: ignore[misc]
    for (source, target), under_way in group.links.items():
        if under_way:
            events.append(lambda s=source, t=target: _deliver(group, s, t))  # type: ignore[misc]
    return events


def _read(state: Rank, item: SendItem) -> Array:
    memory = state.spaces[item.space]
    start = item.offset // memory.itemsize
    return memory[start : start + item.size_bytes // memory.itemsize].copy()


def _leave(group: Group, source: int, target: int, item: SendItem) -> None:
    state = group.ranks[source]
    state.sent[target] += 1
    guarded = state.plan.schedule.guarded
    group.links.setdefault((source, target), deque()).append(
        (item, _read(state, item) if guarded else None)
    )
    if guarded:
        state.readers[item.reads] -= 1
        _apply_all(group, state, item.reads)


def _deliver(group: Group, source: int, target: int) -> None:
    item, copy = group.links[source, target].popleft()
    data = _read(group.ranks[source], item) if copy is None else copy
    state = group.ranks[target]
    (flow,) = (f for f in state.plan.flows if f.peer == source)
    recv = flow.recvs[state.received[source]]
    state.received[source] += 1
    assert recv.size_bytes == item.size_bytes
    assert recv.application >= state.versions[recv.cell]
    place = recv.position if recv.reduce else 0
    state.parked.setdefault((recv.cell, recv.application), {})[place] = data
    _check_place(state, recv)
    _apply_all(group, state, recv.cell)


def _check_place(state: Rank, recv: RecvItem) -> None:
    """What a receive says of its place is what the cell says."""
    assert (recv.start, recv.length) == state.plan.cell_spans[recv.cell]
    assert (recv.space == TRANSIT) == state.plan.cell_in_transit[recv.cell]
    assert recv.offset == recv.start * state.spaces[recv.space].itemsize


def _apply_all(group: Group, state: Rank, cell: int) -> None:
    """Do the applications that are complete, in turn and not guarded."""
    while True:
        version = state.versions[cell]
        came = state.parked.get((cell, version), {})
        if version == len(state.plan.applications[cell]):
            return
        application = state.plan.applications[cell][version]
        guarded = state.plan.schedule.guarded and state.readers[cell]
        if len(came) < application.contributions or guarded:
            return
        state.parked.pop((cell, version))
        start, count = state.plan.cell_spans[cell]
        span = slice(start, start + count)
        if application.own < 0:
            space = TRANSIT if state.plan.cell_in_transit[cell] else REGION
            state.spaces[space][span] = came[0]
        else:
            wide = state.spaces[WIDE]
            came[application.own] = wide[span]
            assert sorted(came) == list(range(len(came)))
            total = came[0].astype(group.accumulator)
            for place in range(1, len(came)):
                total = total + came[place]
            wide[span] = total
            if application.finalise:
                state.spaces[REGION][span] = group.finalise(total)
        state.versions[cell] = version + 1
        if state.plan.schedule.guarded:
            state.readers[cell] = state.plan.readers[cell][version + 1]


def _result(state: Rank) -> Array:
    start, count = state.region.result
    return state.spaces[REGION][start : start + count]
