"""Messages of ranks that die or leave, of epochs and groups that end: and of those to come."""

from __future__ import annotations

import asyncio

import pytest

from tests.engine.mail_scene import MailScene, error_of, message
from tests.engine.scene import DELAY_S, TICK_S

SIZES = {"segment_bytes": 4096, "eager_bytes": 1024}
SMALL, LARGE = 5, 10_001


@pytest.mark.parametrize("how", ["trainer", "reset", "silence"])
def test_a_lost_rank_ends_what_needs_it_in_mid_message_too(how: str) -> None:
    scene = MailScene(3, pipe_bytes=2048, **SIZES)
    count = 300_000

    async def main() -> None:
        pending = [
            scene.send(0, 2, message(count, sender=0), tag=1),
            scene.recv(2, 0, count, tag=1),
            scene.recv(0, 2, count, tag=2),
            scene.send(2, 0, message(count, sender=2), tag=2),
            scene.send(0, 2, message(LARGE, sender=0), tag=3),
            scene.recv(0, 2, SMALL, tag=4),
            scene.recv_any(1, SMALL, tag=5),
        ]
        await asyncio.sleep(0.2)
        if how == "trainer":
            scene.trainer(2).die()
        else:
            scene.network.crash(scene.host(2), how)  # type: ignore[arg-type]
        survivors = [pending[0], pending[2], *pending[4:]]
        for one in await scene.ended(survivors):
            assert one.code == "peer_lost"
            assert error_of(one).fields["rank"] == 2
            assert one.took_s < 5.0
        for rank in (0, 1):
            assert not scene.engine(rank).mail.live
            assert scene.uses_no_region(rank)
        assert (await scene.recv(0, 1, SMALL)).code == "peer_lost"

    scene.run(main)


def test_a_loss_ends_messages_between_survivors_too_as_the_epoch_is_over() -> None:
    scene = MailScene(4, **SIZES)

    async def main() -> None:
        waiting = [
            scene.recv(1, 2, SMALL, tag=1),
            scene.send(2, 1, message(LARGE, sender=2), tag=2),
        ]
        await scene.quiet()
        scene.trainer(3).die()
        for one in await scene.ended(waiting):
            assert one.code == "peer_lost"
            assert error_of(one).fields["rank"] == 3
        for rank in range(3):
            assert not scene.engine(rank).mail.live

    scene.run(main)


@pytest.mark.parametrize("n", [3, 5])
def test_a_goodbye_that_ends_a_collective_leaves_messages_among_the_others_alone(n: int) -> None:
    """Posted before or after it, and on ranks that have tried a collective since: all alike."""
    scene = MailScene(n, **SIZES)
    leaver = n - 1

    async def main() -> None:
        unfinished = [scene.call(rank) for rank in (0, 1)]
        before = scene.recv(0, 1, LARGE, tag=1)
        await scene.quiet()
        scene.trainer(leaver).goodbye()
        for ended in await scene.all(unfinished):
            assert ended.code == "peer_lost"
        assert (await scene.call(1)).code == "peer_lost"
        after = scene.recv(1, 0, SMALL, tag=2)
        scene.send(1, 0, message(LARGE, sender=1), tag=1)
        scene.send(0, 1, message(SMALL, sender=0), tag=2)
        assert ((await before).array == message(LARGE, sender=1)).all()
        assert ((await after).array == message(SMALL, sender=0)).all()

    scene.run(main)


def test_a_loss_after_a_goodbye_ends_the_messages_too() -> None:
    scene = MailScene(4)

    async def main() -> None:
        scene.trainer(3).goodbye()
        await scene.quiet()
        assert (await scene.call(0)).code == "peer_lost"
        waiting = scene.recv(0, 1, SMALL)
        scene.trainer(2).die()
        assert error_of(await waiting).fields["rank"] == 2
        late = await scene.recv(0, 1, SMALL)
        assert (late.code, late.took_s) == ("peer_lost", 0)
        assert error_of(late).fields["rank"] == 2

    scene.run(main)


@pytest.mark.parametrize("n", [2, 5])
def test_a_message_that_was_sent_before_a_goodbye_is_still_received(n: int) -> None:
    """In a ring of five, ranks 0 and 2 have no link before this."""
    scene = MailScene(n)
    leaver = {2: 1, 5: 2}[n]

    async def main() -> None:
        waiting = [scene.recv(0, leaver, 4, tag=t) for t in (1, 8)]
        for tag in (1, 2, 3):
            await scene.send(leaver, 0, message(4, sender=leaver, salt=tag), tag=tag)
        scene.trainer(leaver).goodbye()
        first, never = await scene.ended(waiting)
        assert (first.array == message(4, sender=leaver, salt=1)).all()
        assert never.code == "peer_lost"
        assert "all that came with tag 8 was received" in never.text
        await scene.quiet()
        for tag in (3, 2):
            got = await scene.recv(0, leaver, 4, tag=tag)
            assert got.error is None, got.error
            assert (got.array == message(4, sender=leaver, salt=tag)).all()
        again = await scene.recv(0, leaver, 4, tag=2)
        assert (again.code, again.took_s) == ("peer_lost", 0)
        late = await scene.send(0, leaver, message(4, sender=0))
        assert (late.code, late.took_s) == ("peer_lost", 0)

    scene.run(main)


def test_news_of_a_goodbye_may_overtake_the_last_message_on_a_new_link() -> None:
    scene = MailScene(5)
    scene.network.delay(scene.host(2), scene.host(0), 0.3, both=False)

    async def main() -> None:
        got = scene.recv(0, 2, 4)
        await scene.send(2, 0, message(4, sender=2))
        scene.trainer(2).goodbye()
        await asyncio.sleep(0.1)
        assert 2 in scene.engine(0).world.left
        assert 2 not in scene.engine(0).links
        assert ((await got).array == message(4, sender=2)).all()
        assert (await scene.recv(0, 2, 4)).code == "peer_lost"

    scene.run(main)


@pytest.mark.parametrize(("source", "target"), [(0, 2), (2, 0), (4, 1)])
def test_a_link_that_is_new_needs_no_rendezvous(source: int, target: int) -> None:
    """The higher rank, which can't have the lower one asked, knocks at its door."""
    scene = MailScene(5)

    async def main() -> None:
        scene.network.crash("rendezvous", "silence")
        assert target not in scene.engine(source).links
        got = scene.recv(target, source, 4)
        sent = await scene.send(source, target, message(4, sender=source))
        one = await got
        assert one.error is None, one.error
        assert (one.array == message(4, sender=source)).all()
        assert one.took_s < 1.0
        assert sent.error is None

    scene.run(main)


def test_what_waits_for_a_rank_without_a_link_ends_soon_after_its_goodbye() -> None:
    scene = MailScene(5)

    async def main() -> None:
        got = scene.recv(0, 2, 4)
        scene.trainer(2).goodbye()
        left_at = scene.loop.time()
        one = await got
        assert one.code == "peer_lost"
        assert error_of(one).fields["rank"] == 2
        assert one.at - left_at <= 1.0 + TICK_S + 4 * DELAY_S
        assert (await scene.send(0, 2, message(4, sender=0))).code == "peer_lost"

    scene.run(main)


def test_a_send_that_waits_for_a_link_ends_with_the_goodbye_of_its_receiver() -> None:
    scene = MailScene(5)
    scene.network.delay(scene.host(0), scene.host(2), 5.0, both=False)

    async def main() -> None:
        sent = scene.send(0, 2, message(4, sender=0))
        scene.trainer(2).goodbye()
        left_at = scene.loop.time()
        one = await sent
        assert one.code == "peer_lost"
        assert "nobody can receive it there" in one.text
        assert one.at - left_at <= 3 * DELAY_S

    scene.run(main)


def test_who_makes_a_link_to_a_rank_that_has_left_hears_of_it_there() -> None:
    scene = MailScene(5, **SIZES)

    async def main() -> None:
        scene.network.delay("rendezvous", scene.host(0), 5.0, both=False)
        scene.trainer(2).goodbye()
        await scene.quiet()
        one = await scene.send(0, 2, message(LARGE, sender=0))
        assert one.code == "peer_lost"
        assert one.took_s < 1.0

    scene.run(main)


def test_a_loss_leaves_groups_alone_that_the_lost_rank_is_no_member_of() -> None:
    scene = MailScene(4)

    async def main() -> None:
        group = await scene.make_group((0, 1))
        got = scene.recv_any(0, 4, group=group)
        scene.trainer(2).die()
        await scene.quiet()
        assert scene.engine(0).world.broken is not None
        scene.send(1, 0, message(4, sender=1), group=group)
        assert ((await got).array == message(4, sender=1)).all()

    scene.run(main)


def test_a_link_is_in_use_for_those_who_wait_for_its_other_end() -> None:
    scene = MailScene(3, **SIZES)

    async def main() -> None:
        engine = scene.engine(0)
        links, uses = engine.links, engine.mail.uses
        assert not uses(links[1])
        scene.recv_any(0, 4, tag=1)
        scene.recv(0, 1, 4, tag=2)
        assert uses(links[1])
        assert not uses(links[2])
        scene.send(0, 2, message(LARGE, sender=0))
        assert uses(links[2])

    scene.run(main)


def test_a_link_that_the_worlds_messages_use_outlives_a_group() -> None:
    scene = MailScene(5)

    async def main() -> None:
        got = scene.recv(0, 2, 4)
        await scene.send(2, 0, message(4, sender=2))
        await got
        group = await scene.make_group((0, 2))
        for rank, peer in ((0, 2), (2, 0)):
            scene.engine(rank).groups.free(group)
            assert peer in scene.engine(rank).links
        await scene.passes(2, 0)

    scene.run(main)


def test_an_offer_that_crosses_the_question_whether_its_link_is_needed_is_taken() -> None:
    scene = MailScene(5, **SIZES)

    async def main() -> None:
        group = await scene.make_group((0, 2))
        await scene.quiet()
        scene.engine(2).groups.free(group)
        assert 0 not in scene.engine(2).links, "it waits for the answer"
        got = scene.recv(2, 0, LARGE)
        sent = scene.send(0, 2, message(LARGE, sender=0))
        assert ((await got).array == message(LARGE, sender=0)).all()
        assert (await sent).error is None

    scene.run(main)


def test_an_any_source_receive_ends_when_the_last_that_could_send_has_left() -> None:
    scene = MailScene(3)

    async def main() -> None:
        got = scene.recv_any(0, 4)
        scene.trainer(1).goodbye()
        await scene.quiet()
        assert not got.done()
        scene.trainer(2).goodbye()
        one = await got
        assert one.code == "peer_lost"
        assert "ranks 1 and 2 have left" in one.text

    scene.run(main)


def test_a_goodbye_with_messages_in_flight_ends_them_on_both_sides() -> None:
    scene = MailScene(2, pipe_bytes=2048, **SIZES)
    count = 300_000

    async def main() -> None:
        sends = [
            scene.send(0, 1, message(count, sender=0), tag=1),
            scene.send(0, 1, message(count, sender=0), tag=2),
        ]
        receives = [scene.recv(1, 0, count, tag=1)]
        await asyncio.sleep(0.2)
        scene.trainer(0).goodbye()
        assert [one.code for one in await scene.ended(sends)] == ["closed", "closed"]
        assert scene.uses_no_region(0)
        (torn,) = await scene.ended(receives)
        assert torn.code == "collective"
        assert "closed" in torn.text
        assert (await scene.recv(1, 0, count, tag=2)).code == "peer_lost"

    scene.run(main)


def test_a_new_epoch_knows_nothing_of_the_messages_of_the_old() -> None:
    scene = MailScene(2, pipe_bytes=2048, **SIZES)
    count = 300_000

    async def main() -> None:
        for salt in range(4):
            await scene.send(0, 1, message(4, sender=0, salt=salt))
        torn = [scene.send(0, 1, message(count, sender=0), tag=1)]
        torn.append(scene.recv(1, 0, count, tag=1))
        await asyncio.sleep(0.2)
        await scene.next_epoch()
        for one in await scene.ended(torn):
            assert one.code in ("closed", "collective")
        for tag in (0, 1):
            await scene.passes(0, 1, tag=tag, count=count // 100)
            await scene.passes(1, 0, tag=tag)

    scene.run(main)


async def only_rank_0_hears_that_the_epoch_begins(scene: MailScene) -> asyncio.Task[None]:
    """Rank 1 will hear it half a second later: the task ends then."""
    for trainer in scene.cluster.trainers:
        trainer.goodbye()
    await scene.quiet()
    scene.network.delay("rendezvous", scene.host(1), 0.5, both=False)
    first, second = scene.attach()
    await first
    assert scene.engine(1).world.epoch == 1
    return second


def test_a_message_of_an_epoch_that_begins_later_here_waits_for_it() -> None:
    scene = MailScene(2, **SIZES)

    async def main() -> None:
        attached = await only_rank_0_hears_that_the_epoch_begins(scene)
        sends = [scene.send(0, 1, message(n, sender=0, salt=n)) for n in (4, LARGE, 3)]
        given_up = await scene.send(0, 1, message(LARGE, sender=0), timeout_s=0.1)
        assert given_up.code == "timeout"
        assert scene.engine(1).world.epoch == 1
        assert scene.engine(1).mail.parked_bytes == 4 * 7
        await attached
        for n in (4, LARGE, 3):
            got = await scene.recv(1, 0, n)
            assert got.error is None, got.error
            assert (got.array == message(n, sender=0, salt=n)).all()
        assert {one.code for one in await scene.ended(sends)} == {"ok"}
        await scene.passes(0, 1)

    scene.run(main)


def test_a_goodbye_of_an_epoch_that_begins_later_here_counts_for_it() -> None:
    scene = MailScene(2)

    async def main() -> None:
        attached = await only_rank_0_hears_that_the_epoch_begins(scene)
        await scene.send(0, 1, message(4, sender=0))
        scene.trainer(0).goodbye()
        await attached
        assert ((await scene.recv(1, 0, 4)).array == message(4, sender=0)).all()
        one = await scene.recv(1, 0, 4)
        assert (one.code, one.took_s) == ("peer_lost", 0)

    scene.run(main)


# ---------------------------------------------------------------- groups


def test_ranks_of_a_group_are_its_own_and_its_messages_are_apart() -> None:
    scene = MailScene(4, **SIZES)

    async def main() -> None:
        group = await scene.make_group((3, 0, 2))  # 3 is its rank 0, 0 its rank 1, 2 its rank 2
        in_world = scene.recv(2, 3, 4, tag=1)
        in_group = scene.recv_any(2, 4, tag=1, group=group)
        await scene.quiet()
        scene.send(3, 2, message(4, sender=3, salt=1), tag=1, group=group)
        got = await in_group
        assert got.source == 0
        assert (got.array == message(4, sender=3, salt=1)).all()
        assert not in_world.done()
        scene.send(3, 2, message(4, sender=3, salt=2), tag=1)
        assert ((await in_world).array == message(4, sender=3, salt=2)).all()
        one = await scene.recv(2, 1, 4, tag=7, group=group, timeout_s=0.5)
        assert f"in group {group}" in one.text
        assert "came from rank 0" in one.text  # ranks in errors are ranks of the world
        assert (await scene.send(3, 3, message(4, sender=3), group=group)).code == (
            "invalid_argument"
        )

    scene.run(main)


def test_a_freed_group_ends_its_messages_and_sends_back_what_was_offered() -> None:
    scene = MailScene(3, pipe_bytes=2048, **SIZES)
    count = 300_000

    async def main() -> None:
        group = await scene.make_group((0, 1))
        sends = [
            scene.send(0, 1, message(count, sender=0), tag=1, group=group),
            scene.send(0, 1, message(LARGE, sender=0), tag=2, group=group),
        ]
        await scene.send(0, 1, message(4, sender=0), tag=3, group=group)
        receives = [scene.recv(1, 0, count, tag=1, group=group)]
        receives.append(scene.recv_any(1, 4, tag=9, group=group))
        await asyncio.sleep(0.2)
        scene.engine(1).groups.free(group)
        assert scene.uses_no_region(1)
        sends.append(scene.send(0, 1, message(LARGE, sender=0), tag=5, group=group))
        for one in await scene.ended([*receives, *sends]):
            assert one.code == "group_freed"
            assert one.took_s < 0.5
        assert (await scene.recv(1, 0, 4, group=group)).code == "group_freed"
        scene.nothing_is_left(0, 1)
        await scene.passes(0, 1, tag=1)

    scene.run(main)


@pytest.mark.parametrize("freed", [False, True])
def test_messages_for_a_group_that_is_not_known_here_yet_wait_for_it(freed: bool) -> None:
    """Rank 0 is through with new_group, and rank 1 is not: it has not heard of rank 2."""
    scene = MailScene(3, **SIZES)
    group = 1

    async def main() -> None:
        scene.network.delay(scene.host(2), scene.host(1), 0.5, both=False)
        made = asyncio.ensure_future(scene.make_group((0, 1, 2)))
        await asyncio.sleep(0.1)
        assert scene.engine(0).groups.numbered(group) is not None
        assert scene.engine(1).groups.numbered(group) is None
        small = scene.send(0, 1, message(SMALL, sender=0), group=group)
        large = scene.send(0, 1, message(LARGE, sender=0), group=group)
        await asyncio.sleep(0.1)
        assert small.done()
        assert scene.engine(1).mail.parked_bytes == 4 * SMALL
        assert await made == group
        if freed:
            scene.engine(1).groups.free(group)
            one = await large
            assert one.code == "group_freed"
            assert "rank 1 has freed group 1" in one.text
        else:
            for count in (SMALL, LARGE):
                got = await scene.recv(1, 0, count, group=group)
                assert (got.array == message(count, sender=0)).all()
            assert (await large).error is None
        scene.nothing_is_left(0, 1)
        await scene.passes(0, 1)

    scene.run(main)
