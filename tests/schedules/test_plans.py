"""Plans of whole groups, run on real memory in any order, give what the definitions say."""

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

from ringd.schedules.build import build
from ringd.schedules.model import Schedule
from ringd.vocabulary import (
    ALGORITHMS,
    DETERMINISTIC_ALGORITHMS,
    REDUCING,
    ROOTED,
    OpSpec,
    agree_spec,
)
from tests.schedules import plan_runner
from tests.schedules.plan_runner import Array, run

WORLD_SIZES = (1, 2, 3, 4, 5, 6, 7)
PAIRS = [
    *(
        (collective, algorithm)
        for collective, algorithms in ALGORITHMS.items()
        for algorithm in algorithms
        if algorithm != "auto"
    ),
    *((word, algorithm) for word in ("agree", "new_group") for algorithm in ("exchange", "tree")),
]
REDUCTIONS = [pair for pair in PAIRS if pair[0] in REDUCING]
IN_RANK_ORDER = [pair for pair in REDUCTIONS if pair[1] in DETERMINISTIC_ALGORITHMS]
NOTHING = np.zeros(0, np.int64)


@dataclass
class Call:
    """A collective, what each rank gives, and what each gets by the definition."""

    spec: OpSpec
    inputs: list[Array]
    expected: list[Array]
    splits: list[tuple[int, ...]]


def numbers(random: Random, count: int) -> Array:
    return np.array([random.randrange(-1000, 1000) * 1024 for _ in range(count)], np.int64)


def calls(collective: str, n: int, random: Random) -> list[Call]:
    """With every root; whole tensors of few and of many elements; parts that are uneven."""
    roots = range(n) if collective in ROOTED else [-1]
    match collective:
        case "barrier":
            return [Call(OpSpec(collective, "", "", ()), [NOTHING] * n, [NOTHING] * n, [])]
        case "all_to_all":
            return [all_to_all(n, random, most) for most in (4, 0)]
        case "agree":
            return [reduction(agree_spec(0), n, random, 1)]
        case "new_group":
            spec = OpSpec(collective, "int64", "max", (), counts=tuple(range(n)))
            return [reduction(spec, n, random, 1)]
        case "all_reduce" | "reduce" | "broadcast":
            return [
                whole(OpSpec(collective, "int64", "sum", (count,), root=root), n, random)
                for root in roots
                for count in (0, 2, 23)
            ]
    even, uneven = (), tuple(random.randrange(4) for _ in range(n))
    return [
        in_parts(OpSpec(collective, "int64", "sum", (2,), root=root, counts=counts), n, random)
        for root in roots
        for counts in (even, uneven)
    ]


def whole(spec: OpSpec, n: int, random: Random) -> Call:
    if spec.collective != "broadcast":
        return reduction(spec, n, random, spec.count)
    inputs = [numbers(random, spec.count) for _ in range(n)]
    return Call(spec, inputs, [inputs[spec.root]] * n, [])


def reduction(spec: OpSpec, n: int, random: Random, count: int) -> Call:
    inputs = [numbers(random, count) for _ in range(n)]
    total = np.sum(inputs, axis=0)
    gets = [spec.collective != "reduce" or rank == spec.root for rank in range(n)]
    return Call(spec, inputs, [total if got else NOTHING for got in gets], [])


def in_parts(spec: OpSpec, n: int, random: Random) -> Call:
    counts = [rows * 2 for rows in spec.counts] or [2] * n
    ends = [sum(counts[:rank]) for rank in range(n + 1)]
    cut = [slice(*ends) for ends in pairwise(ends)]
    if spec.collective in ("all_gather", "gather"):
        inputs = [numbers(random, count) for count in counts]
        joined = np.concatenate(inputs)
        all_get = spec.collective == "all_gather"
        expected = [joined if all_get or rank == spec.root else NOTHING for rank in range(n)]
    elif spec.collective == "scatter":
        given = numbers(random, sum(counts))
        inputs = [given if rank == spec.root else NOTHING for rank in range(n)]
        expected = [given[span] for span in cut]
    else:
        inputs = [numbers(random, sum(counts)) for _ in range(n)]
        total = np.sum(inputs, axis=0)
        expected = [total[span] for span in cut]
    return Call(spec, inputs, expected, [])


def all_to_all(n: int, random: Random, most_rows: int) -> Call:
    rows = [[random.randint(0, most_rows) for _ in range(n)] for _ in range(n)]
    sent = [[numbers(random, 3 * rows[a][b]) for b in range(n)] for a in range(n)]
    return Call(
        OpSpec("all_to_all", "int64", "", (3,)),
        inputs=[np.concatenate(row) for row in sent],
        expected=[np.concatenate([sent[a][b] for a in range(n)]) for b in range(n)],
        splits=[(*rows[r], *(rows[a][r] for a in range(n))) for r in range(n)],
    )


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_every_rank_gets_what_the_collective_is_defined_as(
    collective: str, algorithm: str, n: int
) -> None:
    random = Random(n)
    for call in calls(collective, n, random):
        for segment in (2, 1000):
            results = run(
                call.spec,
                algorithm,
                call.inputs,
                splits=call.splits,
                segment=segment,
                random=random,
            )
            for got, expected in zip(results, call.expected, strict=True):
                assert got.tolist() == expected.tolist()


def reducing(collective: str, n: int) -> OpSpec:
    """The last rank is the root, if there is one; 17 elements, or 3 for each rank."""
    shape = (3,) if collective == "reduce_scatter" else (17,)
    root = n - 1 if collective == "reduce" else -1
    return OpSpec(collective, "float32", "sum", shape, root=root)


def floats(spec: OpSpec, n: int) -> list[Array]:
    """Of very different sizes, so that each order of adding them rounds in another way."""
    count = spec.count * (n if spec.collective == "reduce_scatter" else 1)
    generator = np.random.default_rng(n)
    exponents = generator.integers(-8, 9, (n, count))
    return list((generator.standard_normal((n, count)) * 10.0**exponents).astype(np.float32))


def parts_of(spec: OpSpec, n: int, total: Array) -> list[Array]:
    if spec.collective == "reduce_scatter":
        return list(total.reshape(n, -1))
    gets = [spec.collective == "all_reduce" or rank == spec.root for rank in range(n)]
    return [total if got else total[:0] for got in gets]


@pytest.mark.parametrize("widened", [False, True])
@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.parametrize(("collective", "algorithm"), IN_RANK_ORDER)
def test_deterministic_algorithms_give_the_bits_of_the_left_fold(
    collective: str, algorithm: str, n: int, widened: bool
) -> None:
    spec = reducing(collective, n)
    inputs = floats(spec, n)
    total = inputs[0].astype(np.float64 if widened else np.float32)
    for contribution in inputs[1:]:
        total = total + contribution
    expected = parts_of(spec, n, total.astype(np.float32))
    for segment in (2, 5, 1000):
        results = run(
            spec, algorithm, inputs, widened=widened, segment=segment, random=Random(segment)
        )
        assert [r.tobytes() for r in results] == [e.tobytes() for e in expected]


@pytest.mark.parametrize("n", WORLD_SIZES[1:])
@pytest.mark.parametrize(("collective", "algorithm"), REDUCTIONS)
def test_all_ranks_get_the_same_bits_and_so_they_do_again(
    collective: str, algorithm: str, n: int
) -> None:
    spec = reducing(collective, n)
    inputs = floats(spec, n)
    first, again = (run(spec, algorithm, inputs, segment=4, random=Random(seed)) for seed in (1, 2))
    assert [r.tobytes() for r in first] == [r.tobytes() for r in again]
    if collective == "all_reduce":
        assert len({r.tobytes() for r in first}) == 1


@pytest.mark.parametrize("widened", [False, True])
@pytest.mark.parametrize("n", WORLD_SIZES[1:])
@pytest.mark.parametrize(("collective", "algorithm"), REDUCTIONS)
def test_a_reduction_is_finalised_once_and_rounded_once(
    collective: str, algorithm: str, n: int, widened: bool
) -> None:
    """The mean. In float64 the sums are exact; in float32 they are not, so none may be rounded."""
    spec = reducing(collective, n)
    elements = np.arange(spec.count * (n if collective == "reduce_scatter" else 1))
    inputs = [(1.0 + 2.0**-20 * (elements * n + rank)) * n for rank in range(n)]
    inputs = [x.astype(np.float32 if widened else np.float64) for x in inputs]
    mean = (np.sum(np.array(inputs, np.float64), axis=0) / n).astype(inputs[0].dtype)
    results = run(
        spec,
        algorithm,
        inputs,
        widened=widened,
        segment=4,
        random=Random(n),
        finalise=lambda acc: acc / n,
    )
    assert [r.tolist() for r in results] == [e.tolist() for e in parts_of(spec, n, mean)]


@pytest.mark.parametrize("algorithm", ["exchange", "recursive_doubling"])
def test_without_its_guard_a_schedule_sends_what_was_changed(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unguarded(*args: Any, **asked: Any) -> Schedule:
        return replace(build(*args, **asked), guarded=False)

    monkeypatch.setattr(plan_runner, "build", unguarded)
    inputs = [np.array([1, 10, 100]) * 10**rank for rank in range(4)]
    spec = OpSpec("all_reduce", "int64", "sum", (3,))
    results = [
        result.tolist()
        for seed in range(20)
        for result in run(spec, algorithm, inputs, segment=2, random=Random(seed))
    ]
    assert any(result != np.sum(inputs, axis=0).tolist() for result in results)
