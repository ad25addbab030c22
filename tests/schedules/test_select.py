"""What "auto" means, and what is refused."""

from dataclasses import replace

import pytest

from ringd.errors import InvalidArgumentError
from ringd.schedules.build import build, build_group
from ringd.schedules.proof import prove
from ringd.schedules.select import DEFAULT_THRESHOLDS, ONE_HOST, Thresholds, choose, is_widened
from ringd.vocabulary import ALGORITHMS, REDUCING, OpSpec, agree_spec

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
        (2, 64 * KIB, "exchange"),
        (2, 64 * KIB + 4, "direct"),
        # (N-1)T may be 64 KiB: 16 KiB for five ranks.
        (5, 16 * KIB, "exchange"),
        (5, 16 * KIB + 4, "direct"),
        # Parts of 256 KiB: the ring, where it is one.
        (2, 64 * KIB * KIB, "direct"),
        (4, 1024 * KIB - 4, "direct"),
        (4, 1024 * KIB, "ring"),
        (16, 4 * KIB * KIB - 4, "direct"),
        (16, 4 * KIB * KIB, "ring"),
        (17, 4 * KIB, "exchange"),
        (17, 4 * KIB + 4, "recursive_doubling"),
        (17, 32 * KIB, "recursive_doubling"),
        (17, 32 * KIB + 4, "halving_doubling"),
        (17, 1024 * KIB, "halving_doubling"),
        (17, 1024 * KIB + 4, "ring"),
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


def test_many_ranks_on_one_host_take_no_doubling() -> None:
    chosen = [choose(all_reduce(size * KIB), 17, thresholds=ONE_HOST) for size in (256, 257, 1024)]
    assert chosen == ["tree", "ring", "ring"]


@pytest.mark.parametrize("thresholds", [DEFAULT_THRESHOLDS, ONE_HOST])
@pytest.mark.parametrize("collective", sorted(REDUCING))
def test_deterministic_auto_always_folds_in_rank_order(
    collective: str, thresholds: Thresholds
) -> None:
    for world_size in (1, 2, 3, 4, 16, 17, 64):
        for count in (0, 1, 25_000, 16_000_000):
            spec = OpSpec(collective, "float32", "sum", (count,), root=0, deterministic=True)
            algorithm = choose(spec, world_size, thresholds=thresholds)
            group = build_group(collective, algorithm, world_size=world_size, root=0)
            assert prove(group, root=0).in_rank_order


def test_a_deterministic_all_reduce_of_many_ranks_is_a_chain() -> None:
    spec = all_reduce(64 * KIB * KIB, deterministic=True)
    assert [choose(spec, n) for n in (2, 16, 17)] == ["direct", "direct", "chain"]
    assert choose(all_reduce(4, deterministic=True), 17) == "exchange"


@pytest.mark.parametrize(
    ("world_size", "size_kib", "expected"),
    [
        # Pieces of 512 KiB: N-2+S against S log2 N.
        (2, 1024 * KIB, "tree"),
        (3, 1023, "tree"),
        (3, 1024, "chain"),
        (8, 2047, "tree"),  # 6+3 = 3*3
        (8, 2048, "chain"),  # 6+4 < 4*3
        (64, 6 * KIB, "tree"),  # 62+12 > 12*6
        (64, 7 * KIB, "chain"),  # 62+14 < 14*6
    ],
)
def test_a_chain_is_taken_where_its_pieces_outweigh_its_ranks(
    world_size: int, size_kib: int, expected: str
) -> None:
    shape = (size_kib * KIB // 4,)
    broadcast = OpSpec("broadcast", "float32", "", shape, root=0)
    assert choose(broadcast, world_size) == expected
    reduce = OpSpec("reduce", "float32", "sum", shape, root=0)
    # Two ranks have one message to pass, which need not be a partial sum.
    assert choose(reduce, world_size) == ("direct" if world_size == 2 else expected)


def test_a_deterministic_reduce_is_direct_while_it_is_small() -> None:
    small = OpSpec("reduce", "float32", "sum", (64,), root=1, deterministic=True)
    assert [choose(small, n) for n in (2, 3, 16, 17)] == ["direct", "direct", "direct", "chain"]
    assert choose(replace(small, dtype="bfloat16"), 32) == "direct"
    assert choose(replace(small, shape=(KIB * KIB,)), 3) == "chain"


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_small_parts_of_more_than_four_ranks_go_through_a_tree(collective: str) -> None:
    part = OpSpec(collective, "float32", "", (8 * KIB,), root=0)
    assert [choose(part, n) for n in (2, 4, 5, 64)] == ["direct", "direct", "tree", "tree"]
    assert choose(replace(part, shape=(8 * KIB + 1,)), 64) == "direct"
    # One large part among small ones is passed on like the others, so it decides.
    uneven = replace(part, shape=(1,), counts=(0, 0, 0, 0, 8 * KIB + 1))
    assert choose(uneven, 5) == "direct"
    assert choose(replace(uneven, counts=(0, 0, 0, 0, 8 * KIB)), 5) == "tree"


def test_an_all_to_all_goes_by_its_row_and_world() -> None:
    row = OpSpec("all_to_all", "float32", "", (8 * KIB,))
    assert [choose(row, n) for n in (2, 4, 5, 16, 17)] == [*["direct"] * 4, "pairwise"]
    wide_row = replace(row, shape=(8 * KIB + 1,))
    assert [choose(wide_row, n) for n in (4, 5)] == ["direct", "pairwise"]


def test_large_parts_go_round_on_one_host() -> None:
    parts = OpSpec("all_gather", "float32", "", (32 * KIB,))
    assert [choose(parts, n, thresholds=ONE_HOST) for n in (2, 3, 4)] == [
        "direct",
        "direct",
        "ring",
    ]
    uneven = replace(parts, counts=(0, 1, 3), shape=(32 * KIB,))
    assert choose(uneven, 3, thresholds=ONE_HOST) == "ring"


def test_large_parts_go_round_between_hosts() -> None:
    parts = OpSpec("all_gather", "float32", "", (64 * KIB,))
    scattered = OpSpec("reduce_scatter", "float32", "sum", (64 * KIB,))
    for spec in (parts, scattered):
        assert [choose(spec, n) for n in (2, 3, 16)] == ["direct", "ring", "ring"]
        assert choose(replace(spec, shape=(64 * KIB - 1,)), 16) == "direct"
    assert choose(replace(scattered, deterministic=True), 3) == "direct"
    assert choose(replace(scattered, dtype="float16", shape=(128 * KIB,)), 3) == "direct"


@pytest.mark.parametrize(
    ("chunk_kib", "most_kib", "expected_kib"),
    [
        (0, 1024, 64),
        (1024, 1024, 64),
        (1025, 1024, 128),
        (4 * 1024, 1024, 256),
        (16 * 1024, 1024, 1024),
        (64 * 1024, 1024, 1024),
        (4 * 1024, 100, 100),
        (4, 16, 16),
    ],
)
def test_between_hosts_a_chunk_has_up_to_sixteen_segments(
    chunk_kib: int, most_kib: int, expected_kib: int
) -> None:
    most = most_kib * KIB
    assert DEFAULT_THRESHOLDS.segment_bytes(chunk_kib * KIB, most) == expected_kib * KIB
    assert ONE_HOST.segment_bytes(chunk_kib * KIB, most) == most


def test_members_of_a_new_group_exchange_their_numbers() -> None:
    spec = OpSpec("new_group", "int64", "max", (), counts=(0, 1))
    assert [choose(spec, n) for n in (1, 2, 16, 17)] == [*["exchange"] * 3, "tree"]


def test_small_operations_go_by_world_only() -> None:
    parts = OpSpec("all_gather", "float32", "", (1,))
    assert [choose(parts, n) for n in (16, 17)] == ["direct", "ring"]
    scattered = OpSpec("reduce_scatter", "float32", "sum", (1,))
    assert [choose(scattered, n) for n in (16, 17)] == ["direct", "ring"]
    assert choose(replace(scattered, deterministic=True), 17) == "direct"
    for spec in (OpSpec("barrier", "", "", ()), agree_spec(0)):
        assert [choose(spec, n) for n in (16, 17)] == ["exchange", "tree"]
    assert choose(OpSpec("broadcast", "int64", "", (9,), root=0), 17) == "tree"


@pytest.mark.parametrize("thresholds", [DEFAULT_THRESHOLDS, ONE_HOST])
@pytest.mark.parametrize("collective", ALGORITHMS)
def test_auto_always_names_something_that_can_be_built(
    collective: str, thresholds: Thresholds
) -> None:
    for world_size in (1, 2, 4, 5, 16, 17, 33):
        for count in (0, 1, 100_000, 10_000_000):
            spec = OpSpec(collective, "float32", "sum", (count,))
            algorithm = choose(spec, world_size, thresholds=thresholds)
            build(collective, algorithm, rank=0, world_size=world_size, root=0)


def test_thresholds_are_the_callers_to_set() -> None:
    spec = all_reduce(64)
    assert choose(spec, 4, thresholds=Thresholds(exchange_bytes=0)) == "direct"
    ring_only = Thresholds(
        exchange_bytes=0,
        direct_max_world=1,
        recursive_doubling_bytes=0,
        halving_doubling_bytes=0,
    )
    assert choose(spec, 4, thresholds=ring_only) == "ring"


def test_what_is_asked_for_is_taken() -> None:
    for algorithm in ALGORITHMS["all_reduce"][1:]:
        assert choose(replace(all_reduce(4), algorithm=algorithm), 4) == algorithm


def test_an_algorithm_the_collective_lacks_is_refused() -> None:
    spec = OpSpec("broadcast", "float32", "", (4,), root=0, algorithm="ring")
    with pytest.raises(
        InvalidArgumentError, match=r"'ring' for broadcast.*known are auto, tree, chain$"
    ):
        choose(spec, 4)


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown collective 'gossip'"):
        choose(OpSpec("gossip", "float32", "", (4,)), 4)


@pytest.mark.parametrize(
    ("collective", "algorithm", "usable"),
    [
        ("all_reduce", "ring", "auto, direct, exchange, chain"),
        ("all_reduce", "halving_doubling", "auto, direct, exchange, chain"),
        ("reduce", "tree", "auto, direct, chain"),
        ("reduce_scatter", "ring", "auto, direct"),
    ],
)
def test_deterministic_refuses_what_does_not_fold_in_rank_order(
    collective: str, algorithm: str, usable: str
) -> None:
    spec = OpSpec(
        collective, "float32", "sum", (4,), root=0, algorithm=algorithm, deterministic=True
    )
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
    assert is_widened(OpSpec("reduce", "float16", "sum", (4,), root=0))
    assert not is_widened(all_reduce(4))
    assert not is_widened(OpSpec("all_gather", "bfloat16", "", (4,)))
    assert not is_widened(OpSpec("barrier", "", "", ()))
