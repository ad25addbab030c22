"""Sends and receives: which goes where, whatever their order and size."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from ringd.vocabulary import MAX_TAG, RECV, SEND, OpSpec
from tests.engine.mail_scene import MailScene, Pending, message
from tests.engine.scene import DELAY_S, TICK_S

SEGMENT_BYTES = 4096
EAGER_BYTES = 1024
SIZES = {"segment_bytes": SEGMENT_BYTES, "eager_bytes": EAGER_BYTES}
LARGE = 10_001
"""Elements of float32: ten segments, the last of them uneven."""


def both_orders(count: int) -> list[tuple[int, bool]]:
    return [(count, True), (count, False)]


@pytest.mark.parametrize(("count", "receiver_first"), both_orders(5) + both_orders(LARGE))
@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_every_rank_can_send_to_every_other(n: int, count: int, receiver_first: bool) -> None:
    scene = MailScene(n, **SIZES)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]

    async def main() -> None:
        def send() -> list[Pending]:
            return [scene.send(a, b, message(count + b, sender=a, salt=b), tag=a) for a, b in pairs]

        def recv() -> list[Pending]:
            return [scene.recv(b, a, count + b, tag=a) for a, b in pairs]

        if receiver_first:
            receives, sends = recv(), send()
        else:
            sends, receives = send(), recv()
        for (a, b), got in zip(pairs, await scene.ended(receives), strict=True):
            assert got.error is None, got.error
            assert got.source == a
            assert (got.array == message(count + b, sender=a, salt=b)).all()
        for sent in await scene.ended(sends):
            assert sent.error is None
            assert sent.source is None
        scene.nothing_is_left(*range(n))

    scene.run(main)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "complex128", "float16"])
@pytest.mark.parametrize("count", [3, LARGE])
def test_messages_of_every_kind_of_dtype(dtype: str, count: int) -> None:
    scene = MailScene(2, **SIZES)

    async def main() -> None:
        data = message(count, sender=1, dtype=dtype)
        scene.send(1, 0, data)
        got = await scene.recv(0, 1, count, dtype=dtype)
        assert got.array.dtype == data.dtype
        assert (got.array == data).all()

    scene.run(main)


def test_p1_receives_in_another_order_than_the_sends() -> None:
    scene = MailScene(2)

    async def main() -> None:
        ones, zeros = np.ones(4, "float32"), np.zeros(4, "float32")
        for sent in await scene.ended(
            [scene.send(0, 1, ones, tag=1), scene.send(0, 1, zeros, tag=2)]
        ):
            assert sent.error is None
        second = await scene.recv(1, 0, 4, tag=2)
        first = await scene.recv(1, 0, 4, tag=1)
        assert (second.array == 0).all()
        assert (first.array == 1).all()

    scene.run(main)


@pytest.mark.parametrize("count", [2, LARGE])
@pytest.mark.parametrize("receiver_first", [True, False])
def test_p1_a_hundred_tags_in_reverse_order(count: int, receiver_first: bool) -> None:
    scene = MailScene(2, **SIZES)
    tags = list(range(100))

    async def main() -> None:
        def send() -> list[Pending]:
            return [scene.send(0, 1, message(count, sender=0, salt=t), tag=t) for t in tags]

        def recv() -> dict[int, Pending]:
            return {t: scene.recv(1, 0, count, tag=t) for t in reversed(tags)}

        if receiver_first:
            receives, sends = recv(), send()
        else:
            sends, receives = send(), recv()
        for tag, future in receives.items():
            assert ((await future).array == message(count, sender=0, salt=tag)).all()
        await scene.ended(sends)
        scene.nothing_is_left(0, 1)

    scene.run(main)


@pytest.mark.parametrize("receiver_first", [True, False])
def test_p1_messages_with_the_same_tag_are_first_in_first_out_whatever_their_size(
    receiver_first: bool,
) -> None:
    """Small ones may not overtake large ones that were sent before them."""
    scene = MailScene(2, **SIZES)
    counts = [LARGE, 2, 2, LARGE, 0, 2, LARGE]

    async def main() -> None:
        def send() -> None:
            for salt, count in enumerate(counts):
                scene.send(0, 1, message(count, sender=0, salt=salt), tag=3)

        if not receiver_first:
            send()
            await scene.quiet()
        receives = [scene.recv(1, 0, count, tag=3) for count in counts]
        if receiver_first:
            send()
        for salt, got in enumerate(await scene.ended(receives)):
            assert got.error is None, got.error
            assert (got.array == message(counts[salt], sender=0, salt=salt)).all()

    scene.run(main)


def test_any_source_takes_messages_in_the_order_in_which_they_came() -> None:
    scene = MailScene(4)

    async def main() -> None:
        order = [2, 0, 3, 0, 2]
        for salt, rank in enumerate(order):
            await scene.send(rank, 1, message(2, sender=rank, salt=salt), tag=5)
            await asyncio.sleep(2 * DELAY_S)
        for salt, rank in enumerate(order):
            got = await scene.recv_any(1, 2, tag=5)
            assert got.source == rank
            assert (got.array == message(2, sender=rank, salt=salt)).all()

    scene.run(main)


@pytest.mark.parametrize("count", [2, LARGE])
def test_a_message_goes_to_the_first_receive_that_fits_named_or_not(count: int) -> None:
    scene = MailScene(3, **SIZES)

    async def main() -> None:
        receives = [
            scene.recv_any(1, count, tag=5),
            scene.recv(1, 0, count, tag=5),
            scene.recv_any(1, count, tag=6),
            scene.recv(1, 2, count, tag=5),
            scene.recv_any(1, count, tag=5),
        ]
        for rank, tag, salt in [(0, 5, 0), (0, 5, 1), (2, 5, 2), (2, 5, 3), (0, 6, 4)]:
            scene.send(rank, 1, message(count, sender=rank, salt=salt), tag=tag)
            await asyncio.sleep(40 * DELAY_S)
        expected = [(0, 0), (0, 1), (0, 4), (2, 2), (2, 3)]
        for (rank, salt), got in zip(expected, await scene.ended(receives), strict=True):
            assert got.source == rank
            assert (got.array == message(count, sender=rank, salt=salt)).all()

    scene.run(main)


@pytest.mark.parametrize("collective", [SEND, RECV])
def test_a_rank_that_sends_to_itself_is_refused_at_once(collective: str) -> None:
    scene = MailScene(2)

    async def main() -> None:
        spec = OpSpec(collective, "float32", "", (2,), root=1)
        one = await scene.post(1, spec, np.zeros(2, "float32"), 0)
        assert one.code == "invalid_argument"
        assert isinstance(one.error, ValueError)
        assert "itself" in one.text
        assert one.took_s == 0
        await scene.passes(0, 1)

    scene.run(main)


@pytest.mark.parametrize(
    ("spec", "tag", "code", "words"),
    [
        (OpSpec(SEND, "float32", "", (2,), root=3), 0, "invalid_argument", "0 to 2"),
        (OpSpec(SEND, "float32", "", (2,), root=-1), 0, "invalid_argument", "0 to 2"),
        (OpSpec(RECV, "float32", "", (2,), root=-2), 0, "invalid_argument", "0 to 2"),
        (OpSpec(SEND, "float32", "", (2,), root=1), -1, "invalid_argument", "tag -1"),
        (OpSpec(RECV, "float32", "", (2,), root=1), MAX_TAG + 1, "invalid_argument", "tag"),
        (OpSpec(SEND, "float12", "", (2,), root=1), 0, "unsupported_type", "float12"),
        (OpSpec(SEND, "", "", (2,), root=1), 0, "unsupported_type", "none"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_is_sent(
    spec: OpSpec, tag: int, code: str, words: str
) -> None:
    scene = MailScene(3)

    async def main() -> None:
        before = scene.engine(0).links[1].sent_bytes
        one = await scene.post(0, spec, np.zeros(2, "float32"), tag)
        assert one.code == code
        assert words in one.text
        assert scene.engine(0).links[1].sent_bytes == before
        await scene.passes(0, 1, tag=MAX_TAG)

    scene.run(main)


@pytest.mark.parametrize("n", [2, 3])
def test_p3_all_send_large_messages_around_the_ring_then_receive(n: int) -> None:
    scene = MailScene(n, pipe_bytes=8192, **SIZES)
    count = 200_000

    async def main() -> None:
        sends = [
            scene.send(r, (r + 1) % n, message(count, sender=r), timeout_s=600.0) for r in range(n)
        ]
        receives = [scene.recv(r, (r - 1) % n, count, timeout_s=600.0) for r in range(n)]
        for rank, got in enumerate(await scene.ended(receives)):
            assert got.error is None, got.error
            assert (got.array == message(count, sender=(rank - 1) % n)).all()
        for sent in await scene.ended(sends):
            assert sent.error is None
        scene.nothing_is_left(*range(n))

    scene.run(main)


def test_p3_two_sends_at_each_other_that_nobody_receives_end_and_say_what_to_do() -> None:
    scene = MailScene(2, **SIZES)

    async def main() -> None:
        sends = [
            scene.send(r, 1 - r, message(LARGE, sender=r), tag=r + 3, timeout_s=2.0) for r in (0, 1)
        ]
        for rank, one in enumerate(await scene.ended(sends)):
            assert one.code == "timeout"
            assert 2.0 <= one.took_s <= 2.0 + TICK_S
            assert f"rank {1 - rank} has not posted a matching receive (tag {rank + 3})" in one.text
            assert "isend" in one.text
            assert one.error is not None
            assert one.error.fields["waiting_on"] == [1 - rank]
        await scene.passes(0, 1, tag=3, count=LARGE)
        await scene.passes(1, 0, tag=4)

    scene.run(main)


@pytest.mark.parametrize("over", [0, 1])
def test_up_to_the_eager_limit_a_send_does_not_wait_for_its_receiver(over: int) -> None:
    scene = MailScene(2, **SIZES)
    count = EAGER_BYTES + over

    async def main() -> None:
        data = message(count, sender=0, dtype="uint8")
        sent = scene.send(0, 1, data)
        await scene.quiet()
        assert sent.done() is not bool(over)
        if not over:
            data_then = data.copy()
            data[:] = 0  # it is the caller's again
        else:
            data_then = data
        got = await scene.recv(1, 0, count, dtype="uint8")
        assert (got.array == data_then).all()
        assert (await sent).error is None

    scene.run(main)


@pytest.mark.parametrize("count", [EAGER_BYTES * 4, 70_000])
def test_a_whole_message_that_does_not_come_inline(count: int) -> None:
    scene = MailScene(2, eager_bytes=128 * 1024, inline_bytes=2048)

    async def main() -> None:
        early, late = (message(count, sender=1, salt=s, dtype="uint8") for s in (1, 2))
        assert (await scene.send(1, 0, early)).error is None
        await scene.quiet()
        assert scene.engine(0).mail.parked_bytes == count
        first = await scene.recv(0, 1, count, dtype="uint8")
        second = scene.recv(0, 1, count, dtype="uint8")
        scene.send(1, 0, late)
        assert (first.array == early).all()
        assert ((await second).array == late).all()
        scene.nothing_is_left(0, 1)

    scene.run(main)


@pytest.mark.parametrize("receiver_first", [True, False])
def test_a_message_of_no_bytes(receiver_first: bool) -> None:
    scene = MailScene(2)

    async def main() -> None:
        empty = np.zeros((3, 0), "int32")
        if receiver_first:
            got = scene.recv(1, 0, (3, 0), dtype="int32")
            sent = scene.send(0, 1, empty)
        else:
            sent = scene.send(0, 1, empty)
            await scene.quiet()
            got = scene.recv(1, 0, (3, 0), dtype="int32")
        assert (await got).error is None
        assert (await got).source == 0
        assert (await sent).error is None

    scene.run(main)


def test_messages_of_groups_collectives_and_other_messages_share_a_link() -> None:
    """A large message in mid-way holds up neither a small one nor a collective."""
    scene = MailScene(2, pipe_bytes=4096, **SIZES)
    count = 500_000

    async def main() -> None:
        large = [scene.send(0, 1, message(count, sender=0)), scene.recv(1, 0, count)]
        await asyncio.sleep(40 * DELAY_S)
        await scene.passes_beside(0, 1, tag=1)
        await scene.sum_works()
        assert not any(f.done() for f in large)
        sent, got = await scene.ended(large)
        assert sent.error is None
        assert (got.array == message(count, sender=0)).all()

    scene.run(main)
