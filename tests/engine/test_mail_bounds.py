"""What a fast sender, a slow receiver and a hostile peer can make a daemon hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ringd.engine.mail_frames import MAX_KEPT_FRAMES
from ringd.engine.mail_lane import MAX_UNTAKEN_MESSAGES, OFFERS_FACTOR
from ringd.engine.run_ahead import RUN_AHEAD_BYTES
from ringd.errors import CollectiveMismatchError, CommunicatorClosedError
from ringd.vocabulary import MAX_TAG, SEND, OpSpec
from ringd.wire.frame import FrameError, Kind
from tests.engine.mail_scene import MailScene, message
from tests.engine.scene import DELAY_S

COUNT = 10_000
WORLD = 1
"""The stream of the world's group."""


@pytest.mark.parametrize(
    ("elements", "fits"),
    [(0, MAX_UNTAKEN_MESSAGES), (1, MAX_UNTAKEN_MESSAGES), (4096, RUN_AHEAD_BYTES // (4 * 4096))],
)
def test_a_sender_that_runs_ahead_waits_and_nobody_holds_more_than_the_allowance(
    elements: int, fits: int
) -> None:
    scene = MailScene(2)
    done = 0

    async def sender() -> None:
        nonlocal done
        for salt in range(COUNT):
            one = await scene.send(0, 1, message(elements, sender=0, salt=salt), timeout_s=900.0)
            assert one.error is None, one.error
            done += 1

    async def main() -> None:
        task = asyncio.create_task(sender())
        mail = scene.engine(1).mail
        await asyncio.sleep(5.0)
        assert done == fits
        assert mail.parked_bytes == fits * elements * 4
        for salt in range(COUNT):
            got = await scene.recv(1, 0, elements)
            assert (got.array == message(elements, sender=0, salt=salt)).all()
            assert mail.parked_bytes <= RUN_AHEAD_BYTES
        await task
        scene.nothing_is_left(0, 1)

    scene.run(main)


def test_while_its_receivers_daemon_stands_still_a_senders_memory_is_bounded_too() -> None:
    scene = MailScene(2, pipe_bytes=4096)
    elements = 4096

    async def main() -> None:
        scene.network.stall(scene.host(1))
        sends = [
            scene.send(0, 1, message(elements, sender=0, salt=s), timeout_s=900.0)
            for s in range(1000)
        ]
        channel = scene.engine(0).links[1].connection.channel
        assert channel.backlog_bytes <= RUN_AHEAD_BYTES + 1000 * 256
        assert sum(f.done() for f in sends) == RUN_AHEAD_BYTES // (elements * 4)
        scene.network.resume(scene.host(1))
        for salt in range(1000):
            got = await scene.recv(1, 0, elements)
            assert (got.array == message(elements, sender=0, salt=salt)).all()
        assert {one.code for one in await scene.ended(sends)} == {"ok"}

    scene.run(main)


def test_a_receiver_that_keeps_up_never_makes_its_sender_wait() -> None:
    scene = MailScene(2)
    rounds = 3 * MAX_UNTAKEN_MESSAGES

    async def main() -> None:
        for salt in range(rounds):
            sent = await scene.send(0, 1, message(2, sender=0, salt=salt))
            assert sent.took_s == 0
            got = await scene.recv(1, 0, 2)
            assert (got.array == message(2, sender=0, salt=salt)).all()

    scene.run(main)


def test_sends_and_receives_in_flight_are_bounded_with_a_typed_error() -> None:
    scene = MailScene(2, max_in_flight=8)

    async def main() -> None:
        waiting = [scene.recv(1, 0, 2, tag=t) for t in range(8)]
        one = await scene.recv(1, 0, 2, tag=9)
        assert (one.code, one.took_s) == ("too_many_operations", 0)
        for tag in range(8):
            scene.send(0, 1, message(2, sender=0, salt=tag), tag=tag)
        for tag, got in enumerate(await scene.ended(waiting)):
            assert (got.array == message(2, sender=0, salt=tag)).all()

    scene.run(main)


def untaken(scene: MailScene, **options: Any) -> None:
    """Rank 0 sends rank 1 as many small messages as may wait there."""
    for salt in range(MAX_UNTAKEN_MESSAGES):
        assert scene.send(0, 1, message(1, sender=0, salt=salt), tag=1, **options).done()


def test_messages_of_a_freed_group_do_not_weigh_on_the_others() -> None:
    scene = MailScene(3)

    async def main() -> None:
        group = await scene.make_group((0, 1))
        untaken(scene, group=group)
        offered = scene.send(0, 1, message(1, sender=0))
        assert not offered.done()
        scene.engine(0).groups.free(group)
        assert scene.send(0, 1, message(1, sender=0, salt=1)).done()
        for salt in (0, 1):
            got = await scene.recv(1, 0, 1)
            assert (got.array == message(1, sender=0, salt=salt)).all()
        assert (await offered).error is None

    scene.run(main)


def test_messages_of_an_earlier_epoch_do_not_weigh_on_the_next() -> None:
    scene = MailScene(2)

    async def main() -> None:
        for _ in range(2):
            untaken(scene)
            await scene.quiet()
            await scene.next_epoch()
            assert scene.engine(1).mail.parked_bytes == 0
        await scene.passes(0, 1)

    scene.run(main)


# ---------------------------------------------------------------- hostile frames


def packed(shape: tuple[int, ...] = (2,), **changes: Any) -> bytes:
    fields: dict[str, Any] = {"root": 0, **changes}
    return OpSpec(fields.pop("collective", SEND), "float32", "", shape, **fields).packed


def refused(
    kind: Kind, header: Any, payload: bytes | None = None, *, stream: int = WORLD, n: int = 2
) -> str:
    """What rank 0 says of a frame that rank 1 sends; then the connection would end."""
    scene = MailScene(n)
    texts: list[str] = []

    async def main() -> None:
        engine = scene.engine(0)
        inline = None if payload is None else memoryview(payload)
        with pytest.raises(FrameError) as caught:
            engine.mail.on_frame(
                engine.links[1], int(kind), stream, header, len(payload or b""), inline
            )
        texts.append(str(caught.value))
        assert engine.mail.parked_bytes == 0

    scene.run(main)
    return texts[0]


@pytest.mark.parametrize("kind", [k for k in Kind if Kind.MESSAGE <= k <= Kind.LEFT])
@pytest.mark.parametrize(
    "header", [None, [], {}, "text", [1], [1] * 7, ["1", 0, 0, b"", 1], [True] * 3, [-1, 0, 0]]
)
def test_a_header_of_a_wrong_form_is_refused(kind: Kind, header: Any) -> None:
    if kind == Kind.LEFT and header == [1]:
        header = [-1]
    assert kind.name in refused(kind, header)


@pytest.mark.parametrize(
    ("header", "payload", "words"),
    [
        ([1, 0, 0, b"\xc1", 9], b"", "can't be read"),
        ([1, 0, 0, b"\xc1" * 20_000, 9], b"", "can't be read"),
        ([1, 0, 0, packed(collective="recv"), 9], b"\0" * 8, "sent by recv"),
        ([1, 0, 0, packed(collective="all_reduce"), 9], b"\0" * 8, "sent by all_reduce"),
        ([1, 0, 0, packed(root=1), 9], b"\0" * 8, "not meant for rank 0"),
        ([1, 0, 0, packed(group=3), 9], b"\0" * 8, "not meant for rank 0"),
        ([1, 0, MAX_TAG + 1, packed(), 9], b"\0" * 8, "over the limit"),
        ([1, 0, 0, packed(), 9], b"\0" * 7, "a payload of 7 bytes"),
        ([1, 0, 0, packed((2**62, 2**62)), 9], b"\0" * 8, "a payload of 8 bytes"),
        ([1, 0, 0, packed((16385,)), 9], b"\0" * 65540, "at most 65536"),
        ([1, 1, 0, packed(), 9], b"\0" * 8, "message 1 follows message -1"),
    ],
)
def test_a_message_that_can_not_be_is_refused(header: Any, payload: bytes, words: str) -> None:
    assert words in refused(Kind.MESSAGE, header, payload)


@pytest.mark.parametrize(
    ("kind", "header", "words"),
    [
        (Kind.OFFER, [1, 3, 0, packed(), 9], "message 3 follows"),
        (Kind.TAKE, [1, 0], "the next one is 0"),
        (Kind.PART, [1, 0, 0], "the next one is 0"),
        (Kind.REVOKE, [1, 0, True, {}], "the next one is 0"),
        (Kind.REVOKE, [1, 0, False, {}], "the next one is 0"),
        (Kind.TAKEN, [1, 1, 0], "can't have been received"),
        (Kind.TAKEN, [1, 0, 1], "can't have been received"),
        (Kind.TAKE, [2, 0], "nothing was sent"),
        (Kind.TAKEN, [2, 0, 0], "nothing was sent"),
        (Kind.REVOKE, [2, 0, False, {}], "nothing was sent"),
        (Kind.PART, [2, 0, 0], "before it was asked for"),
    ],
)
def test_a_frame_for_a_message_that_never_was_is_refused(
    kind: Kind, header: Any, words: str
) -> None:
    assert words in refused(kind, header)


def test_a_frame_of_a_rank_that_is_no_member_is_dropped() -> None:
    scene = MailScene(3)

    async def main() -> None:
        group = await scene.make_group((0, 2))
        engine = scene.engine(0)
        dropped = engine.router.dropped_frames
        engine.mail.on_frame(engine.links[1], int(Kind.TAKEN), 1 + group, [1, 0, 0], 0, None)
        assert engine.router.dropped_frames == dropped + 1

    scene.run(main)


Frame = tuple[Kind, list[Any], bytes]


def flood(scene: MailScene, make: Callable[[int], Frame], *, stream: int = WORLD) -> int:
    """How many frames of rank 1 rank 0 takes before it ends the connection."""
    engine = scene.engine(0)
    for number in range(10**6):
        kind, header, payload = make(number)
        inline = memoryview(payload) if payload else None
        try:
            engine.mail.on_frame(engine.links[1], int(kind), stream, header, len(payload), inline)
        except FrameError:
            return number
    raise AssertionError("there is no bound")


@pytest.mark.parametrize(
    ("make", "bound"),
    [
        (lambda i: (Kind.MESSAGE, [1, i, 0, packed(), 9], b"\0" * 8), MAX_UNTAKEN_MESSAGES),
        (lambda i: (Kind.MESSAGE, [1, i, 0, packed((0,)), 9], b""), MAX_UNTAKEN_MESSAGES),
        (lambda i: (Kind.MESSAGE, [1, i, i, packed((8192,)), 9], b"\0" * 32768), 128),
        (lambda i: (Kind.OFFER, [1, i, i, packed(), 9], b""), OFFERS_FACTOR * 1024),
        (lambda i: (Kind.OFFER, [2, i, i, packed(), 9], b""), MAX_KEPT_FRAMES),
        (lambda i: (Kind.MESSAGE, [2 + i, 0, 0, packed((8192,)), 9], b"\0" * 32768), 512),
    ],
    ids=["messages", "empty", "bytes", "offers", "frames of a later epoch", "bytes of later ones"],
)
def test_a_peer_that_ignores_the_bounds_loses_its_connection(
    make: Callable[[int], Frame], bound: int
) -> None:
    scene = MailScene(2)

    async def main() -> None:
        assert flood(scene, make) == bound
        assert scene.engine(0).mail.parked_bytes <= 4 * RUN_AHEAD_BYTES

    scene.run(main)


def test_segments_that_do_not_follow_each_other_are_refused() -> None:
    scene = MailScene(2, segment_bytes=4096, eager_bytes=1024)

    async def main() -> None:
        engine = scene.engine(0)
        link, mail = engine.links[1], engine.mail

        def part(number: int, index: int, size: int) -> None:
            mail.on_frame(
                link, int(Kind.PART), WORLD, [1, number, index], size, memoryview(bytes(size))
            )

        mail.on_frame(link, int(Kind.OFFER), WORLD, [1, 0, 0, packed((2048,)), 9], 0, None)
        with pytest.raises(FrameError, match="which was not taken"):
            part(0, 0, 4096)
        scene.recv(0, 1, 2048)
        for index, size in ((1, 4096), (0, 4095), (0, 0), (0, 8192)):
            with pytest.raises(FrameError, match=r"where segment 0 of 4096 was due"):
                part(0, index, size)
        part(0, 0, 4096)
        for index, size in ((0, 4096), (2, 4096)):
            with pytest.raises(FrameError, match=r"where segment 1 of 4096 was due"):
                part(0, index, size)
        part(0, 1, 4096)
        assert not mail.live
        part(0, 2, 4096)  # of a message that is over: dropped, for it may have been given up
        assert engine.router.dropped_frames == 1
        scene.cluster.violations.clear()

    scene.run(main)


def test_an_offer_can_not_be_taken_twice() -> None:
    scene = MailScene(2, eager_bytes=64, pipe_bytes=64)

    async def main() -> None:
        sent = scene.send(0, 1, message(1000, sender=0))
        engine = scene.engine(0)
        take = (engine.links[1], int(Kind.TAKE), WORLD, [1, 0], 0, None)
        engine.mail.on_frame(*take)
        with pytest.raises(FrameError, match="taken twice"):
            engine.mail.on_frame(*take)
        assert not sent.done()

    scene.run(main)


def test_a_frame_of_an_earlier_epoch_is_dropped_and_counted() -> None:
    scene = MailScene(2)

    async def main() -> None:
        engine = scene.engine(0)
        link, mail = engine.links[1], engine.mail
        frames: list[Frame] = [
            (Kind.MESSAGE, [0, 9, 0, packed(), 9], b"\0" * 8),
            (Kind.OFFER, [0, 9, 0, packed(), 9], b""),
            (Kind.PART, [0, 9, 9], b"\0" * 8),
            (Kind.TAKE, [0, 9], b""),
            (Kind.TAKEN, [0, 9, 9], b""),
            (Kind.REVOKE, [0, 9, True, {}], b""),
        ]
        for dropped, (kind, header, payload) in enumerate(frames):
            assert engine.router.dropped_frames == dropped
            inline = memoryview(payload) if payload else None
            assert mail.on_frame(link, int(kind), WORLD, header, len(payload), inline) is None
        assert engine.router.dropped_frames == len(frames)
        mail.on_frame(link, int(Kind.LEFT), 0, [0], 0, None)
        await scene.passes(1, 0)

    scene.run(main)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({}, "collective"),
        ({"code": "closed", "message": "x", "fields": {"rank": 0}}, "collective"),
        ({"code": "peer_lost", "message": "x", "fields": 5}, "collective"),
        (CommunicatorClosedError("x").to_wire(), "collective"),
        (CollectiveMismatchError("x").to_wire(), "mismatch"),
    ],
)
def test_a_peers_word_on_a_message_has_no_power_beyond_that_message(
    error: dict[str, Any], code: str
) -> None:
    scene = MailScene(2, eager_bytes=64)

    async def main() -> None:
        sent = scene.send(0, 1, message(100, sender=0))
        await asyncio.sleep(2 * DELAY_S)
        engine = scene.engine(0)
        engine.mail.on_frame(
            engine.links[1], int(Kind.REVOKE), WORLD, [1, 0, False, error], 0, None
        )
        one = await sent
        assert one.code == code
        assert one.error is not None
        assert one.error.retry == "same_epoch"
        assert engine.world.broken is None

    scene.run(main)


def test_a_peer_that_breaks_the_rules_costs_itself_the_link_and_nobody_the_daemon() -> None:
    scene = MailScene(3)

    async def main() -> None:
        waiting = scene.recv(0, 1, 4)
        scene.engine(1).links[0].send_note(Kind.TAKE, WORLD, [1, 5])
        one = await waiting
        assert one.code == "peer_lost"
        assert scene.cluster.violations
        scene.cluster.violations.clear()
        assert scene.trainer(0).node.state()["trainer"] is not None

    scene.run(main)
