"""Different calls at the same place in the order: every pairing, every rank, and the next call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import combinations

import pytest

from ringd.engine import failures
from ringd.errors import CollectiveMismatchError, InvalidArgumentError
from ringd.vocabulary import OpSpec, shapes_digest
from tests.engine.scene import ALL_REDUCE, BARRIER, DELAY_S, Ended, Scene

LARGE = OpSpec("all_reduce", "float32", "sum", (60_000,))
DIFFERENT = {
    "all_reduce": ALL_REDUCE,
    "another reduce op": replace(ALL_REDUCE, reduce_op="max"),
    "another dtype": replace(ALL_REDUCE, dtype="int32"),
    "another count": replace(ALL_REDUCE, shape=(6,)),
    "another shape": replace(ALL_REDUCE, shape=(5, 1)),
    "nothing": replace(ALL_REDUCE, shape=(0,)),
    "ring": replace(ALL_REDUCE, algorithm="ring"),
    "tree": replace(ALL_REDUCE, algorithm="tree"),
    "direct": replace(ALL_REDUCE, algorithm="direct"),
    "deterministic": replace(ALL_REDUCE, deterministic=True),
    "large": LARGE,
    "large ring": replace(LARGE, algorithm="ring"),
    "reduce_scatter": OpSpec("reduce_scatter", "float32", "sum", (5,)),
    "all_gather": OpSpec("all_gather", "float32", "", (5,)),
    "barrier": BARRIER,
}
ROOTED = {
    "root 0": OpSpec("broadcast", "float32", "", (5,), root=0),
    "root 1": OpSpec("broadcast", "float32", "", (5,), root=1),
    "root 2, large": OpSpec("broadcast", "float32", "", (60_000,), root=2),
}
PROBED_WITHIN_S = 0.5
"""A call without payload for a peer is told to it after 0.2 s without progress."""


def all_raise(ended: list[Ended], one: OpSpec, other: OpSpec) -> None:
    for rank, call in enumerate(ended):
        assert isinstance(call.error, CollectiveMismatchError), (rank, call.error)
        assert call.took_s <= PROBED_WITHIN_S
        assert call.error.fields["seq"] == 0
        assert str(one) in str(call.error)
        assert str(other) in str(call.error)


@pytest.mark.parametrize(("usual", "odd"), list(combinations(DIFFERENT, 2)))
def test_every_rank_raises_whoever_called_something_else_and_the_next_call_works(
    usual: str, odd: str
) -> None:
    for n in (2, 3, 4):
        for who in range(n):
            specs = [DIFFERENT[odd if rank == who else usual] for rank in range(n)]
            scene = Scene(n)

            async def main(scene: Scene = scene, specs: list[OpSpec] = specs) -> None:
                all_raise(await scene.calls(specs), DIFFERENT[usual], DIFFERENT[odd])
                await scene.sum_works()

            scene.run(main)


def test_where_dtypes_differ_the_error_says_how_to_convert() -> None:
    scene = Scene(2)

    async def main() -> None:
        for call in await scene.calls([ALL_REDUCE, DIFFERENT["another dtype"]]):
            assert "Convert to one dtype first: tensor.to(dtype), array.astype(dtype)" in str(
                call.error
            )
        for call in await scene.calls([ALL_REDUCE, DIFFERENT["another count"]]):
            assert "Convert" not in str(call.error)

    scene.run(main)


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_it_is_the_same_whoever_calls_first(lead: int) -> None:
    scene = Scene(3)
    specs = [ALL_REDUCE, ALL_REDUCE, DIFFERENT["another shape"]]

    async def main() -> None:
        futures = []
        for rank in [(lead + i) % 3 for i in range(3)]:
            futures.append((rank, scene.call(rank, specs[rank])))
            await asyncio.sleep(0.05)
        ended = [await future for _, future in sorted(futures, key=lambda pair: pair[0])]
        all_raise(ended, specs[0], specs[2])
        await scene.sum_works()

    scene.run(main)


@pytest.mark.parametrize(
    ("usual", "odd"),
    [(usual, odd) for usual in ROOTED for odd in (*DIFFERENT, *ROOTED) if odd != usual],
)
def test_after_a_rooted_call_each_rank_raises_then_or_later_and_all_fall_in_step(
    usual: str, odd: str
) -> None:
    everything = {**DIFFERENT, **ROOTED}
    for who in range(3):
        specs = [everything[odd if rank == who else usual] for rank in range(3)]
        scene = Scene(3)

        async def main(scene: Scene = scene, specs: list[OpSpec] = specs) -> None:
            first = await scene.calls(specs, timeout_s=5.0)
            await scene.quiet()
            second = await scene.calls([ALL_REDUCE] * 3)
            third = await scene.calls([ALL_REDUCE] * 3)
            for rank, trio in enumerate(zip(first, second, third, strict=True)):
                codes = [call.code for call in trio]
                assert "mismatch" in codes, (rank, codes)
                assert set(codes) <= {"mismatch", "ok"}, (rank, codes)
                assert codes[2] == "ok", (rank, codes)
            await scene.sum_works()

        scene.run(main)


def test_a_root_that_had_returned_raises_at_its_next_call_and_quotes_the_first_cause() -> None:
    scene = Scene(3)

    async def main() -> None:
        root = await scene.call(0, ROOTED["root 0"])
        assert root.error is None
        ended = await scene.all([scene.call(1, ROOTED["root 0"]), scene.call(2, ROOTED["root 1"])])
        assert ended[1].code == "mismatch"
        await scene.quiet()
        late = await scene.call(0)
        assert isinstance(late.error, CollectiveMismatchError)
        assert "before it could be known, was void" in str(late.error)
        assert "root=1" in str(late.error)
        assert late.took_s == 0
        assert [one.code for one in await scene.all(scene.call(r) for r in (1, 2))] == (
            ["mismatch"] * 2
        )
        await scene.sum_works()

    scene.run(main)


def test_a_missing_call_is_a_mismatch_of_the_one_that_follows() -> None:
    scene = Scene(3)

    async def main() -> None:
        four = [scene.call(r, BARRIER) for r in (0, 1)]
        five = [scene.call(r) for r in (0, 1)]
        skipped = scene.call(2)
        ended = await scene.all([*four, skipped])
        assert [one.code for one in ended] == ["mismatch"] * 3
        assert all("barrier" in str(one.error) for one in ended)
        assert all("all_reduce" in str(one.error) for one in ended)
        last = scene.call(2)
        assert [one.code for one in await scene.all([*five, last])] == ["ok"] * 3
        await scene.sum_works()

    scene.run(main)


@pytest.mark.parametrize("others_first", [True, False])
@pytest.mark.parametrize("spec", [ALL_REDUCE, LARGE, BARRIER, DIFFERENT["all_gather"]])
def test_a_call_refused_on_one_rank_is_void_on_all_and_keeps_its_place(
    others_first: bool, spec: OpSpec
) -> None:
    scene = Scene(3)

    async def main() -> None:
        cause = InvalidArgumentError("no such thing")
        futures = [scene.call(r, spec) for r in (0, 2)] if others_first else []
        scene.engine(1).endings.refuse(OpSpec(spec.collective, "", "", ()), cause)
        if not others_first:
            await scene.quiet()
            futures = [scene.call(r, spec) for r in (0, 2)]
        for one in await scene.all(futures):
            assert isinstance(one.error, CollectiveMismatchError)
            assert one.error.fields["ranks"] == [1]
            assert "InvalidArgumentError: no such thing" in str(one.error)
            assert one.took_s <= 2 * DELAY_S
        await scene.sum_works()

    scene.run(main)


def test_all_ranks_that_refuse_their_call_fall_in_step() -> None:
    scene = Scene(3)

    async def main() -> None:
        for rank in range(3):
            scene.engine(rank).endings.refuse(ALL_REDUCE, InvalidArgumentError("all alike"))
        await scene.quiet()
        await scene.sum_works()

    scene.run(main)


PART = OpSpec("gather", "float32", "", (2,), root=0)
SCATTER = replace(PART, collective="scatter")
ALL_GATHER = replace(PART, collective="all_gather", root=-1)


@pytest.mark.parametrize(
    ("ours", "theirs", "hint"),
    [
        (PART, replace(PART, shape=(3,)), "pass counts"),
        (PART, replace(PART, shape=(), counts=(2, 3)), "pass counts"),
        (SCATTER, replace(SCATTER, shape=(), counts=(2, 3)), "pass counts"),
        (ALL_GATHER, replace(ALL_GATHER, shape=(5,)), "pass counts"),
        (replace(PART, shape=(), counts=(3, 2)), replace(PART, shape=(), counts=(2, 3)), ""),
        (PART, replace(PART, root=1), ""),
        (PART, replace(PART, collective="scatter", shape=(9,)), ""),
        (ALL_REDUCE, replace(ALL_REDUCE, shape=(9,)), ""),
    ],
)  # fmt: skip
def test_parts_that_differ_in_size_come_with_a_hint_at_counts(
    ours: OpSpec, theirs: OpSpec, hint: str
) -> None:
    error = failures.mismatch(seq=4, epoch=1, rank=0, ours=ours, peer=1, theirs=theirs.packed)
    assert (f"{hint} (the rows of each rank's part) on every rank. " in str(error)) == bool(hint)
    assert "Make the same calls" in str(error)


@pytest.mark.parametrize(
    ("ours", "theirs", "may_have_returned"),
    [
        (ALL_REDUCE, replace(ALL_REDUCE, shape=(9,)), False),
        (ALL_REDUCE, BARRIER, False),
        (ROOTED["root 0"], ROOTED["root 1"], True),
        (ALL_REDUCE, ROOTED["root 0"], True),
        (PART, ALL_REDUCE, True),
    ],
)
def test_the_text_says_whether_the_next_call_may_be_void_as_well(
    ours: OpSpec, theirs: OpSpec, may_have_returned: bool
) -> None:
    text = str(failures.mismatch(seq=4, epoch=1, rank=0, ours=ours, peer=1, theirs=theirs.packed))
    assert ("the next call is an ordinary one." in text) == (not may_have_returned)
    assert ("its next call, which then is void on all ranks" in text) == may_have_returned


@pytest.mark.parametrize(("collective", "may_have_returned"), [("all_reduce", 0), ("scatter", 1)])
def test_so_does_that_of_a_call_that_was_refused(collective: str, may_have_returned: int) -> None:
    spec, cause = OpSpec(collective, "", "", ()), InvalidArgumentError("no such thing")
    error = failures.refused_locally(seq=4, epoch=1, rank=0, spec=spec, cause=cause)
    assert ("the next call is an ordinary one." in str(error)) == (not may_have_returned)


def test_coalesced_calls_of_other_shapes_differ_and_that_is_said() -> None:
    scene = Scene(3)
    specs = [
        replace(ALL_REDUCE, shape=(17,), fused=(5, 12), fused_shapes=shapes_digest([(5,), last]))
        for last in ((3, 4), (4, 3), (3, 4))
    ]

    async def main() -> None:
        for one in await scene.calls(specs):
            assert one.code == "mismatch"
            assert "Some of the coalesced tensors have other shapes there" in str(one.error)
            for spec in specs:
                assert spec.fused_shapes.hex() in str(one.error)
        await scene.sum_works()
        assert {one.code for one in await scene.calls([specs[0]] * 3)} == {"ok"}

    scene.run(main)


def test_splits_that_differ_raise_on_every_rank_and_name_both_and_their_numbers() -> None:
    spec = OpSpec("all_to_all", "float32", "", (3,))
    good = (2, 2, 2, 2, 2, 2)
    asks_more = (2, 2, 2, 5, 2, 2)  # rank 2 expects five rows from rank 0
    for algorithm in ("direct", "pairwise"):
        scene = Scene(3)
        one = replace(spec, algorithm=algorithm)

        async def main(scene: Scene = scene, one: OpSpec = one) -> None:
            futures = [scene.call(r, one, local=good if r < 2 else asks_more) for r in range(3)]
            ended = await scene.all(futures)
            if ended[1].error is None:  # it had its rows before it could know: at its next call
                await asyncio.sleep(0.5)
                ended[1] = (await scene.calls([ALL_REDUCE] * 3))[1]
            for call in ended:
                assert isinstance(call.error, CollectiveMismatchError)
                assert "rank 0 sends 2 rows to rank 2, which expects 5" in str(call.error)
                assert "next call, which then is void on all ranks" in str(call.error)
                assert call.took_s <= PROBED_WITHIN_S
            for call in await scene.all(scene.call(r, one, local=good) for r in range(3)):
                assert call.error is None
            await scene.sum_works()

        scene.run(main)
