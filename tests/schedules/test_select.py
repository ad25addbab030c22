"""What "auto" means, and what is refused."""

from dataclasses import replace

import pytest

from ringd.errors import InvalidArgumentError
from ringd.schedules.build import build
from ringd.schedules.select import ONE_HOST, Thresholds, choose, is_widened
from ringd.vocabulary import ALGORITHMS, OpSpec

KIB = 1024


def all_reduce(size_bytes: int, *, dtype: str = "float32", deterministic: bool = False) -> OpSpec:
    itemsize = 2 if dtype in ("float16", "bfloat16") else 4
    return OpSpec(
        "all_reduce", dtype, "sum", (size_bytes // itemsize,), deterministic=deterministic
    )


@pytest.mark.parametrize(
    ("world_size", "size_bytes", "expected"),
    [
        (1, 4, "exchange"),
        (2, 32 * KIB, "exchange"),
        (2, 32 * KIB + 4, "direct"),
        # (N-1)T may be 64 KiB: 16 KiB for five ranks.
        (5, 16 * KIB, "exchange"),
        (5, 16 * KIB + 4, "direct"),
        (16, 64 * KIB * KIB, "direct"),
        (17, 4 * KIB, "exchange"),
        (17, 4 * KIB + 4, "tree"),
        (17, 256 * KIB, "tree"),
        (17, 256 * KIB + 4, "ring"),
    ],
)
def test_all_reduce_goes_by_size_and_world(world_size: int, size_bytes: int, expected: str) -> None:
    assert choose(all_reduce(size_bytes), world_size) == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_floats_stay_direct_for_longer(dtype: str) -> None:
    spec = all_reduce(64 * KIB * KIB, dtype=dtype)
    assert [choose(spec, n) for n in (16, 17, 32, 33)] == ["direct", "direct", "direct", "ring"]


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (4, "tree"),
        (256 * KIB, "tree"),
        (256 * KIB + 4, "direct"),
        (512 * KIB - 4, "direct"),
        (512 * KIB, "ring"),
    ],
)
def test_on_one_host_the_fewest_messages_come_first(size_bytes: int, expected: str) -> None:
    assert choose(all_reduce(size_bytes), 4, thresholds=ONE_HOST) == expected
    ordered = choose(all_reduce(size_bytes, deterministic=True), 4, thresholds=ONE_HOST)
    assert ordered in ("exchange", "direct")


def test_deterministic_auto_always_folds_in_rank_order() -> None:
    for world_size in (2, 16, 17, 64):
        for size_bytes in (4, 100 * KIB, 64 * KIB * KIB):
            spec = all_reduce(size_bytes, deterministic=True)
            assert choose(spec, world_size) in ("exchange", "direct")


def test_the_other_collectives_go_by_world_only() -> None:
    parts = OpSpec("all_gather", "float32", "", (1,))
    assert [choose(parts, n) for n in (16, 17)] == ["direct", "ring"]
    scattered = OpSpec("reduce_scatter", "float32", "sum", (1,))
    assert [choose(scattered, n) for n in (16, 17)] == ["direct", "ring"]
    assert choose(replace(scattered, deterministic=True), 17) == "direct"
    barrier = OpSpec("barrier", "", "", ())
    assert [choose(barrier, n) for n in (16, 17)] == ["exchange", "tree"]
    assert choose(OpSpec("broadcast", "int64", "", (9,), root=0), 17) == "tree"


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_auto_always_names_something_that_can_be_built(collective: str) -> None:
    for world_size in (1, 2, 16, 17, 33):
        for count in (0, 1, 100_000, 10_000_000):
            algorithm = choose(OpSpec(collective, "float32", "sum", (count,)), world_size)
            build(collective, algorithm, rank=0, world_size=world_size, root=0)


def test_thresholds_are_the_callers_to_set() -> None:
    spec = all_reduce(64)
    assert choose(spec, 4, thresholds=Thresholds(exchange_bytes=0)) == "direct"
    ring_only = Thresholds(exchange_bytes=0, direct_max_world=1, tree_bytes=0)
    assert choose(spec, 4, thresholds=ring_only) == "ring"


def test_what_is_asked_for_is_taken() -> None:
    for algorithm in ("ring", "tree", "direct", "exchange"):
        assert choose(replace(all_reduce(4), algorithm=algorithm), 4) == algorithm


def test_an_algorithm_the_collective_lacks_is_refused() -> None:
    spec = OpSpec("broadcast", "float32", "", (4,), root=0, algorithm="ring")
    with pytest.raises(InvalidArgumentError, match=r"'ring' for broadcast.*known are auto, tree$"):
        choose(spec, 4)


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown collective 'gossip'"):
        choose(OpSpec("gossip", "float32", "", (4,)), 4)


@pytest.mark.parametrize(
    ("collective", "algorithm", "usable"),
    [
        ("all_reduce", "ring", "auto, direct, exchange"),
        ("all_reduce", "tree", "auto, direct, exchange"),
        ("reduce_scatter", "ring", "auto, direct"),
    ],
)
def test_deterministic_refuses_what_does_not_fold_in_rank_order(
    collective: str, algorithm: str, usable: str
) -> None:
    spec = OpSpec(collective, "float32", "sum", (4,), algorithm=algorithm, deterministic=True)
    with pytest.raises(ValueError, match="does not fold in rank order") as caught:
        choose(spec, 4)
    assert isinstance(caught.value, InvalidArgumentError)
    listed = str(caught.value).split("use one of ")[1].removesuffix(", or deterministic=False")
    assert sorted(listed.split(", ")) == sorted(usable.split(", "))


def test_deterministic_asks_nothing_of_collectives_that_only_move() -> None:
    spec = OpSpec("all_gather", "float32", "", (4,), algorithm="ring", deterministic=True)
    assert choose(spec, 4) == "ring"


def test_only_reductions_of_sixteen_bit_floats_are_widened() -> None:
    assert is_widened(all_reduce(4, dtype="bfloat16"))
    assert not is_widened(all_reduce(4))
    assert not is_widened(OpSpec("all_gather", "bfloat16", "", (4,)))
    assert not is_widened(OpSpec("barrier", "", "", ()))
