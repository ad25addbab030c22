"""A member that frees its group tells the others: who waits for a message of it ends at once."""

from __future__ import annotations

import asyncio

import pytest

from ringd.vocabulary import ANY_SOURCE
from tests.engine.mail_scene import MailScene, error_of, message
from tests.engine.scene import DELAY_S

SIZES = {"segment_bytes": 4096, "eager_bytes": 1024}
SMALL, LARGE = 5, 10_001
SOON_S = 0.2


def free(scene: MailScene, group: int, *ranks: int) -> None:
    for rank in ranks:
        scene.engine(rank).groups.free(group)


def unlink(scene: MailScene, one: int, other: int) -> None:
    """As if the group's first call had needed no link between the two."""
    for rank, peer in ((one, other), (other, one)):
        scene.engine(rank).links.pop(peer).connection.abort()


@pytest.mark.parametrize("source", ["one", "any"])
@pytest.mark.parametrize("linked", [True, False])
def test_a_receive_from_who_frees_the_group_ends_at_once(source: str, linked: bool) -> None:
    """In a ring of five, ranks 0 and 2 have no link before they need one."""
    scene = MailScene(5, **SIZES)

    async def main() -> None:
        group = await scene.make_group((0, 2))  # the place of rank 2 is 1
        if not linked:
            unlink(scene, 0, 2)
        got = scene.recv(0, ANY_SOURCE if source == "any" else 1, SMALL, group=group)
        await asyncio.sleep(0.5)
        assert not got.done()
        free(scene, group, 2)
        freed_at = scene.loop.time()
        one = await got
        assert one.code == "group_freed"
        assert one.at - freed_at <= SOON_S
        assert error_of(one).fields["rank"] == 2
        assert f"rank 2 has closed group {group}, and sends nothing with tag 0 any more" in one.text
        for again in (
            scene.recv(0, 1, SMALL, group=group),
            scene.recv_any(0, SMALL, group=group),
            scene.send(0, 1, message(SMALL, sender=0), group=group),
            scene.send(0, 1, message(LARGE, sender=0), group=group),
        ):
            late = await again
            assert (late.code, late.took_s) == ("group_freed", 0)
        await scene.passes(2, 0)
        free(scene, group, 0)
        await scene.passes(0, 2)

    scene.run(main)


def test_what_was_sent_before_is_still_received() -> None:
    scene = MailScene(3, **SIZES)

    async def main() -> None:
        group = await scene.make_group((0, 1))
        for tag in (1, 2):
            sent = scene.send(1, 0, message(SMALL, sender=1, salt=tag), tag=tag, group=group)
            assert (await sent).error is None
        free(scene, group, 1)
        await scene.quiet()
        for tag in (2, 1):
            got = await scene.recv(0, 1, SMALL, tag=tag, group=group)
            assert got.error is None, got.error
            assert (got.array == message(SMALL, sender=1, salt=tag)).all()
        assert (await scene.recv(0, 1, SMALL, tag=1, group=group)).code == "group_freed"
        free(scene, group, 0)
        scene.nothing_is_left(0, 1)

    scene.run(main)


def test_a_receive_from_any_waits_for_the_members_that_stay() -> None:
    scene = MailScene(4, **SIZES)

    async def main() -> None:
        group = await scene.make_group((0, 1, 3))
        got = scene.recv_any(0, SMALL, group=group)
        free(scene, group, 1)
        await scene.quiet()
        assert not got.done()
        data = message(SMALL, sender=3)
        await scene.send(3, 0, data, group=group)
        assert ((await got).array == data).all()
        last = scene.recv_any(0, SMALL, group=group)
        free(scene, group, 3)
        one = await last
        assert one.code == "group_freed"
        assert "ranks 1 and 3 have closed group" in one.text

    scene.run(main)


def test_one_that_left_the_job_and_one_that_freed_the_group_are_both_no_use() -> None:
    scene = MailScene(3, **SIZES)

    async def main() -> None:
        group = await scene.make_group((0, 1, 2))
        got = scene.recv_any(0, SMALL, group=group)
        free(scene, group, 1)
        await scene.quiet()
        scene.trainer(2).goodbye()
        one = await got
        assert one.code == "group_freed"
        assert error_of(one).fields["rank"] == 1
        assert (await scene.recv(0, 2, SMALL, group=group)).code == "peer_lost"

    scene.run(main)


def test_other_groups_of_the_same_members_do_not_care() -> None:
    scene = MailScene(2, **SIZES)

    async def main() -> None:
        first, second = await scene.make_group((0, 1)), await scene.make_group((0, 1))
        got = scene.recv(0, 1, SMALL, group=second)
        free(scene, first, 1)
        await scene.quiet()
        assert not got.done()
        await scene.send(1, 0, message(SMALL, sender=1), group=second)
        assert (await got).error is None
        free(scene, first, 0)
        free(scene, second, 0, 1)
        await scene.passes(0, 1)

    scene.run(main)


def test_a_group_that_is_freed_before_a_slow_member_knows_of_it() -> None:
    """Rank 1 is through with new_group later than rank 0, which frees it meanwhile."""
    scene = MailScene(3, **SIZES)
    group = 1

    async def main() -> None:
        scene.network.delay(scene.host(2), scene.host(1), 0.5, both=False)
        made = asyncio.ensure_future(scene.make_group((0, 1, 2)))
        await asyncio.sleep(0.1)
        await scene.send(0, 1, message(SMALL, sender=0), group=group)
        free(scene, group, 0)
        await asyncio.sleep(2 * DELAY_S)
        assert scene.engine(1).groups.numbered(group) is None
        await made
        got = await scene.recv(1, 0, SMALL, group=group)
        assert (got.array == message(SMALL, sender=0)).all()
        again = await scene.recv(1, 0, SMALL, group=group)
        assert (again.code, again.took_s) == ("group_freed", 0)

    scene.run(main)


def test_a_new_epoch_knows_nothing_of_groups_that_were_freed_in_the_old() -> None:
    scene = MailScene(5, **SIZES)

    async def main() -> None:
        group = await scene.make_group((0, 2))
        unlink(scene, 0, 2)
        free(scene, group, 0)
        await scene.next_epoch()
        again = await scene.make_group((0, 2))
        assert again == group
        got = scene.recv(2, 0, SMALL, group=again)
        await scene.send(0, 1, message(SMALL, sender=0), group=again)
        assert (await got).error is None

    scene.run(main)
