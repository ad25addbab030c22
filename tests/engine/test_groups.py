"""Groups: how they are agreed on, what they share, what a disagreement costs, how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ringd.engine.groups import MAX_GROUPS
from ringd.engine.link import Link
from ringd.engine.reunion import Reunion
from ringd.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    GroupFreedError,
    InvalidArgumentError,
    PeerLostError,
)
from ringd.vocabulary import OpSpec
from tests.engine.mail_scene import MailScene, message
from tests.engine.scene import ALL_REDUCE, BARRIER, DELAY_S, Ended, Scene

MISMATCH_WITHIN_S = 0.5


def new_group(*members: int, parent: int = 0) -> OpSpec:
    return OpSpec("new_group", "int64", "max", (1,), counts=members, group=parent)


async def found(scene: Scene, members: Sequence[int], ranks: Sequence[int] | None = None) -> int:
    """All ranks make a group; its number, which all members must have alike."""
    everyone = range(scene.n) if ranks is None else ranks
    spec = new_group(*members)
    futures = {r: scene.call(r, spec, np.zeros(1, "int64")) for r in everyone}
    numbers = set()
    for rank, future in futures.items():
        ended = await future
        assert ended.error is None, (rank, ended.error)
        if rank in members:
            numbers.add(int(ended.array[0]))
    (number,) = numbers or {-1}
    return number


async def sums(scene: Scene, number: int, members: Sequence[int]) -> None:
    """An all_reduce in the group gives the sum over its members."""
    spec = replace(ALL_REDUCE, group=number)
    ended = await scene.all(scene.call(rank, spec) for rank in members)
    for one in ended:
        assert one.error is None, one.error
        assert (one.array == sum(rank + 1 for rank in members)).all()


@pytest.mark.parametrize(
    "members", [(1, 3), (3, 1), (0, 2, 4), (4, 2, 1, 0), (2,), (0, 1, 2, 3, 4)]
)
def test_members_reduce_among_themselves_and_the_others_never_wait(
    members: tuple[int, ...],
) -> None:
    scene = Scene(5)

    async def main() -> None:
        number = await found(scene, members)
        for rank in range(5):
            group = scene.engine(rank).groups.numbered(number)
            assert (group is not None) == (rank in members)
            if group is not None:
                assert group.ranks == members
        await sums(scene, number, members)
        root = OpSpec("broadcast", "float32", "", (5,), root=len(members) - 1, group=number)
        for one in await scene.all(scene.call(rank, root) for rank in members):
            assert (one.array == members[-1] + 1).all()
        await scene.sum_works()

    scene.run(main)


def test_a_rank_that_is_no_member_is_done_at_once_though_no_member_has_come() -> None:
    scene = Scene(4)

    async def main() -> None:
        ended = await scene.call(0, new_group(1, 3), np.zeros(1, "int64"))
        assert ended.error is None
        assert ended.took_s == 0.0
        assert await found(scene, (1, 3), ranks=(1, 2, 3)) > 0
        await scene.sum_works()

    scene.run(main)


def test_members_that_differ_raise_on_all_of_them_within_a_second_and_say_both() -> None:
    for other in ((1, 2, 3), (3, 1)):
        scene = Scene(4)
        specs = [new_group(1, 3), new_group(1, 3), new_group(1, 3), new_group(*other)]

        async def main(scene: Scene = scene, specs: list[OpSpec] = specs) -> None:
            zeros = [np.zeros(1, "int64") for _ in specs]
            one, three = await scene.all(
                scene.call(r, specs[r], zeros[r], timeout_s=5.0) for r in (1, 3)
            )
            for r in (0, 2):
                scene.call(r, specs[r], zeros[r])
            assert isinstance(one.error, CollectiveMismatchError)
            assert one.took_s <= MISMATCH_WITHIN_S
            assert str(list(specs[1].counts)) in str(one.error)
            assert str(list(specs[3].counts)) in str(one.error)
            assert isinstance(three.error, CollectiveMismatchError)

        scene.run(main)


def test_groups_of_groups_and_disjoint_ones_may_be_made_in_any_mixture() -> None:
    scene = Scene(6)

    async def main() -> None:
        evens, odds = await asyncio.gather(
            found(scene, (0, 2, 4), ranks=(0, 2, 4)), found(scene, (1, 3, 5), ranks=(1, 3, 5))
        )
        inner = new_group(2, 0, parent=evens)  # ranks of the parent: 4 and 0 of the world
        futures = [scene.call(r, inner, np.zeros(1, "int64")) for r in (0, 2, 4)]
        ended = await scene.all(futures)
        number = int(ended[0].array[0])
        assert scene.engine(4).groups.numbered(number).ranks == (4, 0)  # type: ignore[union-attr]
        await asyncio.gather(
            sums(scene, number, (4, 0)), sums(scene, odds, (1, 3, 5)), sums(scene, evens, (0, 2, 4))
        )
        across = await found(scene, (0, 1, 5))
        assert across > max(number, odds)
        await sums(scene, across, (0, 1, 5))

    scene.run(main)


def test_a_group_at_work_is_not_held_up_by_one_that_waits_on_the_same_link() -> None:
    scene = Scene(2)
    large = OpSpec("all_reduce", "float32", "sum", (300_000,))

    async def main() -> None:
        first, second = await found(scene, (0, 1)), await found(scene, (1, 0))
        waiting = scene.call(0, replace(large, group=first))
        for _ in range(20):
            await sums(scene, second, (0, 1))
            big = replace(large, group=second)
            for one in await scene.all(scene.call(r, big) for r in (0, 1)):
                assert one.error is None
        assert not waiting.done()
        last = await scene.call(1, replace(large, group=first))
        assert last.error is None
        assert (await waiting).error is None

    scene.run(main)


def test_frames_that_come_before_the_group_is_there_are_kept_for_it() -> None:
    # Rank 0 knows the group a while before rank 1 does, and begins at once.
    scene = Scene(2)

    async def main() -> None:
        scene.network.delay(scene.host(0), scene.host(1), 0.3, both=False)
        zeros = [np.zeros(1, "int64") for _ in range(2)]
        futures = [scene.call(r, new_group(0, 1), zeros[r]) for r in range(2)]
        first = await futures[0]
        number = int(first.array[0])
        assert not futures[1].done()
        early = scene.call(0, replace(ALL_REDUCE, group=number))
        assert (await futures[1]).error is None
        late = await scene.call(1, replace(ALL_REDUCE, group=number))
        assert late.error is None
        assert ((await early).array == 3).all()

    scene.run(main)


def test_deadlines_and_mismatches_of_a_group_stay_in_it() -> None:
    scene = Scene(3)

    async def main() -> None:
        number = await found(scene, (0, 2))
        in_group = replace(ALL_REDUCE, group=number)
        late = scene.call(0, in_group, timeout_s=1.0)
        await scene.sum_works()
        ended = await late
        assert isinstance(ended.error, CollectiveTimeoutError)
        assert ended.error.fields["group"] == number
        assert ended.error.fields["waiting_on"] == [2]
        assert f"group {number}" in str(ended.error)
        await asyncio.sleep(0.5)  # the verdict is on its way
        assert (await scene.call(2, in_group)).code == "timeout"
        await sums(scene, number, (0, 2))
        specs = {0: in_group, 2: replace(in_group, reduce_op="max")}
        for one in await scene.all(scene.call(r, spec) for r, spec in specs.items()):
            assert isinstance(one.error, CollectiveMismatchError)
            assert f"of group {number}" in str(one.error)
        await sums(scene, number, (0, 2))
        await scene.sum_works()

    scene.run(main)


def test_the_loss_of_a_rank_ends_its_groups_and_no_others() -> None:
    scene = Scene(4)

    async def main() -> None:
        without, with_it = await found(scene, (0, 1)), await found(scene, (1, 3))
        waiting = scene.call(1, replace(ALL_REDUCE, group=with_it))
        scene.trainer(3).die()
        ended = await waiting
        assert isinstance(ended.error, PeerLostError)
        assert ended.error.fields["rank"] == 3
        await sums(scene, without, (0, 1))
        for number in (0, with_it):
            again = await scene.call(1, replace(ALL_REDUCE, group=number))
            assert isinstance(again.error, PeerLostError)

    scene.run(main)


def test_a_goodbye_counts_by_the_calls_of_each_group() -> None:
    scene = Scene(3)

    async def main() -> None:
        number = await found(scene, (0, 1))
        await sums(scene, number, (0, 1))
        pending = scene.call(0, replace(ALL_REDUCE, group=number))
        scene.trainer(1).goodbye()
        ended = await pending
        assert isinstance(ended.error, PeerLostError)
        assert f"before operation 1 of group {number}" in str(ended.error)

    scene.run(main)


def test_a_root_may_free_the_group_and_leave_while_others_still_take_its_data() -> None:
    scene = Scene(2)
    spec = OpSpec("broadcast", "float32", "", (5,), root=0)

    async def main() -> None:
        number = await found(scene, (0, 1))
        root = await scene.call(0, replace(spec, group=number))
        assert root.error is None
        scene.engine(0).groups.free(number)
        scene.trainer(0).goodbye()
        await asyncio.sleep(1.0)
        ended = await scene.call(1, replace(spec, group=number))
        assert ended.error is None
        assert (ended.array == 1).all()

    scene.run(main)


def test_a_freed_group_ends_what_is_in_flight_and_refuses_what_comes_after() -> None:
    scene = Scene(2)

    async def main() -> None:
        number = await found(scene, (0, 1))
        spec = OpSpec("all_reduce", "float32", "sum", (100_000,), group=number)
        flying = scene.call(0, spec)
        scene.engine(0).groups.free(number)
        for ended in (await flying, await scene.call(0, spec, np.zeros(0))):
            assert isinstance(ended.error, GroupFreedError)
            assert ended.error.fields["group"] == number
        other = await scene.call(1, spec, timeout_s=10.0)
        assert isinstance(other.error, GroupFreedError)
        assert other.error.fields["rank"] == 0
        assert other.took_s <= MISMATCH_WITHIN_S
        await scene.sum_works()

    scene.run(main)


def test_a_call_that_had_begun_when_a_member_freed_the_group_is_told() -> None:
    scene = Scene(3)

    async def main() -> None:
        number = await found(scene, (0, 1, 2))
        spec = OpSpec("all_reduce", "float32", "sum", (100_000,), group=number)
        begun = [scene.call(r, spec, timeout_s=10.0) for r in (1, 2)]
        await asyncio.sleep(0.1)
        scene.engine(0).groups.free(number)
        for ended in await scene.all(begun):
            assert isinstance(ended.error, GroupFreedError)
            assert ended.took_s <= 0.1 + MISMATCH_WITHIN_S
        await scene.sum_works()

    scene.run(main)


def links(scene: Scene) -> list[list[int]]:
    return [sorted(scene.engine(rank).links) for rank in range(scene.n)]


def test_freed_groups_give_back_their_links_in_agreement_and_two_hundred_rounds_leave_nothing() -> (
    None
):
    scene = Scene(5)
    members = (0, 2, 3)  # 0 and 2, 0 and 3 are no neighbours on the ring

    async def main() -> None:
        before = links(scene)
        for _ in range(200):
            number = await found(scene, members)
            await sums(scene, number, members)
            for rank in members:
                scene.engine(rank).groups.free(number)
        await asyncio.sleep(1.0)
        assert links(scene) == before
        for rank in range(5):
            engine = scene.engine(rank)
            assert len(engine.groups) == 1
            assert not engine.router.early.held_bytes
        await scene.sum_works()

    scene.run(main)


def test_a_link_that_one_side_still_needs_stays() -> None:
    scene = Scene(5)

    async def main() -> None:
        first, second = await found(scene, (0, 2)), await found(scene, (2, 0))
        await sums(scene, first, (0, 2))
        await sums(scene, second, (0, 2))
        for number in (first, second):
            scene.engine(0).groups.free(number)
        scene.engine(2).groups.free(first)
        await asyncio.sleep(1.0)
        assert 0 in scene.engine(2).links
        assert 2 in scene.engine(0).links
        scene.engine(2).groups.free(second)
        await asyncio.sleep(1.0)
        assert 0 not in scene.engine(2).links
        await sums(scene, await found(scene, (2, 0)), (2, 0))

    scene.run(main)


@pytest.mark.parametrize("wanting", [0, 2])
def test_a_link_that_is_wanted_while_it_is_given_up_comes_back(wanting: int) -> None:
    scene = Scene(5)

    async def main() -> None:
        number = await found(scene, (0, 2))
        again = await found(scene, (0, 2))
        await sums(scene, number, (0, 2))
        scene.engine(0).groups.free(number)
        scene.engine(2).groups.free(number)
        spec = replace(ALL_REDUCE, group=again)
        first = scene.call(wanting, spec)  # the same moment: IDLE is on its way in both directions
        await asyncio.sleep(3 * DELAY_S)
        second = await scene.call(2 - wanting, spec)
        for ended in (await first, second):
            assert ended.error is None
            assert (ended.array == 4).all()

    scene.run(main)


def test_a_link_that_is_given_up_as_soon_as_it_is_made_does_not_stay_with_its_dialler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer's IDLE comes in one read with the end of the handshake."""
    scene = Scene(5)
    begin = Reunion._begin
    given_up = []

    def begin_and_read_on(self: Reunion, link: Link) -> None:
        begin(self, link)
        if self._dials and not given_up:
            given_up.append(link)
            self._engine.leaving.on_idle(link)

    async def main() -> None:
        number, other = await found(scene, (0, 2)), await found(scene, (0, 2))
        for rank in (0, 2):
            scene.engine(rank).groups.free(other)
        await scene.quiet()
        assert 2 not in scene.engine(0).links
        monkeypatch.setattr(Reunion, "_begin", begin_and_read_on)
        scene.engine(0).want_link(2)
        await scene.quiet()
        (link,) = given_up
        assert link.engine.links.get(link.peer) is not link
        await sums(scene, number, (0, 2))

    scene.run(main)


def test_one_group_is_made_after_the_other_and_the_number_of_groups_is_bounded() -> None:
    scene = Scene(2)

    async def main() -> None:
        zeros = [np.zeros(1, "int64") for _ in range(4)]
        first = scene.call(0, new_group(0, 1), zeros[0])
        second = await scene.call(0, new_group(1, 0), zeros[1])
        assert isinstance(second.error, InvalidArgumentError)
        theirs = [scene.call(1, new_group(*m), zeros[2 + i]) for i, m in enumerate([(0, 1)])]
        assert (await first).error is None
        assert (await theirs[0]).error is None
        refused = await scene.call(1, new_group(1, 0), zeros[3])
        assert isinstance(refused.error, CollectiveMismatchError)
        await scene.sum_works()
        for _ in range(MAX_GROUPS - 2):
            await found(scene, (0, 1))
        over = await scene.calls([new_group(0, 1)] * 2, array=np.zeros(1, "int64"))
        assert {one.code for one in over} <= {"invalid_argument", "mismatch"}
        await scene.sum_works()

    scene.run(main)


def test_barriers_name_every_late_rank() -> None:
    for algorithm in ("tree", "exchange"):
        scene = Scene(7)
        spec = replace(BARRIER, algorithm=algorithm)

        async def main(scene: Scene = scene, spec: OpSpec = spec) -> None:
            here = [0, 1, 3, 6]
            ended: list[Ended] = await scene.all(
                scene.call(rank, spec, timeout_s=2.0) for rank in here
            )
            for one in ended:
                assert isinstance(one.error, CollectiveTimeoutError)
                assert one.error.fields["late_ranks"] == [2, 4, 5]
                assert "ranks 2, 4 and 5" in str(one.error)
            for rank in (2, 4, 5):
                assert (await scene.call(rank, spec)).code == "timeout"
            await scene.sum_works()

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
                assert call.took_s <= MISMATCH_WITHIN_S
            for call in await scene.all(scene.call(r, one, local=good) for r in range(3)):
                assert call.error is None
            await scene.sum_works()

        scene.run(main)


def test_a_group_that_is_made_on_some_members_only_is_void_on_them_too() -> None:
    scene = Scene(4)

    async def main() -> None:
        spec = new_group(0, 1, 2)
        futures = [scene.call(r, spec, np.zeros(1, "int64"), timeout_s=10.0) for r in range(3)]
        refusal = InvalidArgumentError("rank 99 is none")
        scene.engine(3).endings.refuse(OpSpec("new_group", "", "", ()), refusal)
        ended = await scene.all(futures)
        await asyncio.sleep(0.5)
        for rank, one in enumerate(ended):
            if one.error is None:  # it had its group before it could know
                number = int(one.array[0])
                call = await scene.call(rank, replace(ALL_REDUCE, group=number), np.zeros(5, "f4"))
                one = call
            assert isinstance(one.error, CollectiveMismatchError), (rank, one)
            assert one.took_s <= MISMATCH_WITHIN_S

    scene.run(main)


OVER = {
    "a rank of the parent dies": (PeerLostError, 0.1),
    "a rank of the parent leaves": (PeerLostError, 0.1),
    "the deadline passes": (CollectiveTimeoutError, 0.6),
}


@pytest.mark.parametrize("how", OVER)
def test_a_group_that_its_making_left_to_some_members_is_over_on_them(how: str) -> None:
    error, within_s = OVER[how]
    scene = Scene(4)

    async def main() -> None:
        old = await found(scene, (0, 1, 2))
        await sums(scene, old, (0, 1, 2))
        scene.network.delay(scene.host(0), scene.host(2), 60.0, both=False)
        spec, limit_s = new_group(0, 1, 2), 0.5 if error is CollectiveTimeoutError else 60.0
        zero, one, two = [
            scene.call(r, spec, np.zeros(1, "int64"), timeout_s=limit_s) for r in range(3)
        ]
        made = await scene.all((zero, one))
        assert [ended.error for ended in made] == [None, None]
        spec = replace(ALL_REDUCE, group=int(made[0].array[0]))
        waiting = scene.call(0, spec)
        if "dies" in how:
            scene.trainer(3).die()
        elif "leaves" in how:
            scene.trainer(3).goodbye()
        ended = [await two, await waiting, await scene.call(1, spec)]
        for call in ended:
            assert type(call.error) is error, call.error
            assert call.took_s <= within_s
        for call in ended[1:]:
            assert "failed on other ranks" in str(call.error)
        scene.network.delay(scene.host(0), scene.host(2), 0.0, both=False)
        await sums(scene, old, (0, 1, 2))  # what was made before goes on

    scene.run(main)


@pytest.mark.parametrize("early", [True, False])
def test_what_comes_for_a_group_that_failed_here_does_not_meet_another_of_its_number(
    early: bool,
) -> None:
    scene = MailScene(4)

    async def main() -> None:
        await scene.passes(0, 2)  # over a link that is no ring neighbour's
        scene.network.delay(scene.host(0), scene.host(2), 5.0, both=False)
        spec = new_group(0, 1, 2)
        calls = [scene.call(r, spec, np.zeros(1, "int64"), timeout_s=0.5) for r in range(4)]
        made = await calls[0]
        assert made.error is None
        number = int(made.array[0])
        # What rank 0 sends to the group is under way when that turns out to have failed on rank 2.
        scene.call(0, replace(ALL_REDUCE, algorithm="exchange", group=number), timeout_s=0.1)
        large = scene.send(0, 2, message(100_000, sender=0), group=number)
        assert isinstance((await calls[2]).error, CollectiveTimeoutError)
        scene.network.delay(scene.host(0), scene.host(2), 0.0, both=False)
        assert isinstance((await large).error, CollectiveTimeoutError)
        if early:
            await asyncio.sleep(10.0)
        assert await found(scene, (2, 3)) == number
        receive = scene.recv_any(3, 5, group=number)
        await asyncio.sleep(10.0)
        barrier = scene.call(2, replace(BARRIER, group=number))
        await asyncio.sleep(1.0)
        for ended in await scene.all((barrier, scene.call(3, replace(BARRIER, group=number)))):
            assert ended.error is None, ended.error
        assert (await scene.send(2, 1, message(5, sender=2), group=number)).error is None
        assert (await receive).error is None
        assert scene.engine(2).router.early.held_bytes == 0
        assert scene.engine(2).mail.parked_bytes == 0
        await sums(scene, await found(scene, (0, 2, 3)), (0, 2, 3))

    scene.run(main)


def opened(scene: Scene, number: int, members: Sequence[int], ranks: Sequence[int]) -> None:
    """These ranks' daemons are told of a group that was agreed on elsewhere."""
    for rank in ranks:
        assert scene.engine(rank).groups.open(number, list(members)) is None


def test_a_group_that_was_agreed_on_elsewhere_is_like_any_other() -> None:
    scene = Scene(4)

    async def main() -> None:
        opened(scene, 3, (3, 1), (1, 3))
        await sums(scene, 3, (3, 1))
        # Numbers that are agreed on here go on above it, on its members and with others.
        assert await found(scene, (0, 1, 2)) == 4
        assert await found(scene, (0, 2)) == 5
        opened(scene, 6, (0, 1, 2, 3), range(4))
        await sums(scene, 6, (0, 1, 2, 3))
        for rank in (1, 3):
            scene.engine(rank).groups.free(3)
        await scene.sum_works()

    scene.run(main)


def test_frames_for_a_group_that_is_not_open_yet_are_kept() -> None:
    scene = Scene(3)

    async def main() -> None:
        opened(scene, 1, (0, 1, 2), (0, 1))
        early = [scene.call(rank, replace(ALL_REDUCE, group=1)) for rank in (0, 1)]
        await asyncio.sleep(10 * DELAY_S)
        opened(scene, 1, (0, 1, 2), (2,))
        for one in await scene.all([*early, scene.call(2, replace(ALL_REDUCE, group=1))]):
            assert one.error is None
            assert (one.array == 6).all()

    scene.run(main)


@pytest.mark.parametrize(
    ("number", "ranks", "words"),
    [
        (2, [0, 0, 1], "different ranks"),
        (2, [1, 2], "ours among them"),
        (2, [0, 9], "different ranks"),
        ("2", [0, 1], "a number"),
        (2, "01", "ranks"),
        (2, [0, True], "ranks"),
        (0, [0, 1], "proposed 0"),
        (1, [0, 1], "proposed 1"),
        (2**31, [0, 1], "proposed"),
    ],
)
def test_what_is_no_group_is_refused(number: object, ranks: object, words: str) -> None:
    scene = Scene(3)

    async def main() -> None:
        opened(scene, 1, (0, 1, 2), range(3))
        error = scene.engine(0).groups.open(number, ranks)
        assert error is not None
        assert words in error.message
        await sums(scene, 1, (0, 1, 2))

    scene.run(main)


def test_a_group_that_is_opened_after_a_member_was_lost_is_over() -> None:
    scene = Scene(4)

    async def main() -> None:
        opened(scene, 1, (0, 1), (0, 1))
        scene.trainer(3).die()
        await asyncio.sleep(1.0)
        opened(scene, 2, (0, 2, 3), (0, 2))
        opened(scene, 3, (0, 1, 2), (0, 1, 2))
        ended = await scene.call(0, replace(ALL_REDUCE, group=2))
        assert isinstance(ended.error, PeerLostError)
        assert ended.error.rank == 3
        await sums(scene, 3, (0, 1, 2))

    scene.run(main)
