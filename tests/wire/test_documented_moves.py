"""docs/wire-protocol.md is enough to know what every rank sends: its rules against ringd's own."""

from __future__ import annotations

import pytest

from ringd.schedules.build import build
from ringd.schedules.model import Schedule
from ringd.schedules.select import DEFAULT_THRESHOLDS, ONE_HOST, choose
from ringd.vocabulary import ALGORITHMS, REDUCING, ROOTED, OpSpec
from tests.wire.foreign.auto import KIB, Ask, resolve
from tests.wire.foreign.rounds import Round, rounds

TINY = ("barrier", "agree", "new_group")
PAIRS = [
    (collective, algorithm)
    for collective, algorithms in ALGORITHMS.items()
    for algorithm in (("exchange", "tree") if collective in TINY else algorithms)
    if algorithm != "auto"
]


def as_documented(schedule: Schedule) -> list[Round]:
    return [
        Round(
            [(s.peer, s.chunk, s.wide) for s in each.sends],
            [(r.peer, r.chunk, r.wide, r.action == "reduce") for r in each.recvs],
            each.sends[0].after if each.sends else -1,
        )
        for each in schedule.rounds
        if each.sends or each.recvs
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17])
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_the_moves_are_those_of_the_page(collective: str, algorithm: str, n: int) -> None:
    roots = sorted({0, 1 % n, n // 2, n - 1}) if collective in ROOTED else [-1]
    for root in roots:
        for wide in (False, True) if collective in REDUCING else (False,):
            for rank in range(n):
                ours = build(
                    collective, algorithm, rank=rank, world_size=n, root=root, widened=wide
                )
                assert as_documented(ours) == rounds(collective, algorithm, rank, n, root, wide)


SIZES = [0, 4, 8 * KIB, 21 * KIB, 32 * KIB, 33 * KIB, 64 * KIB, 256 * KIB, 257 * KIB]
SIZES += [512 * KIB, 1024 * KIB, 1025 * KIB, 3 * 1024 * KIB, 40 * 1024 * KIB]


@pytest.mark.parametrize("one_host", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("collective", [c for c in ALGORITHMS if c not in TINY])
def test_auto_is_what_the_page_says(collective: str, dtype: str, one_host: bool) -> None:
    in_parts = collective in ("all_gather", "reduce_scatter", "gather", "scatter")
    thresholds = ONE_HOST if one_host else DEFAULT_THRESHOLDS
    for n in (1, 2, 3, 4, 5, 9, 16, 17, 32, 33, 100):
        for size in SIZES:
            for deterministic in (False, True):
                shape = (size // (4 if dtype == "float32" else 2),)
                root = 0 if collective in ROOTED else -1
                op = "sum" if collective in REDUCING else ""
                spec = OpSpec(collective, dtype, op, shape, root=root, deterministic=deterministic)
                ask = Ask(
                    collective,
                    n,
                    total=size * n if in_parts else size,
                    largest=size,
                    deterministic=deterministic,
                    reduces_16_bit=bool(op) and dtype == "bfloat16",
                    one_host=one_host,
                )
                assert choose(spec, n, thresholds=thresholds) == resolve(ask), ask


@pytest.mark.parametrize("collective", TINY)
def test_auto_of_a_call_of_at_most_one_element_is_what_the_page_says(collective: str) -> None:
    spec = OpSpec(collective, "", "", ())
    for n in (1, 2, 3, 16, 17, 100):
        for one_host, thresholds in ((False, DEFAULT_THRESHOLDS), (True, ONE_HOST)):
            ask = Ask(collective, n, total=0, one_host=one_host)
            assert choose(spec, n, thresholds=thresholds) == resolve(ask)
