"""Sends and receives that can't complete: how each side ends, when, and what comes after."""

from __future__ import annotations

import asyncio

import pytest

from ringd.engine.endings import VERDICT_S
from ringd.vocabulary import ANY_SOURCE
from tests.engine.mail_scene import MailScene, Pending, error_of, message
from tests.engine.scene import DELAY_S, TICK_S

SIZES = {"segment_bytes": 4096, "eager_bytes": 1024}
SMALL, LARGE = 5, 10_001


# ---------------------------------------------------------------- mismatches


@pytest.mark.parametrize("receiver_first", [True, False])
@pytest.mark.parametrize(
    ("count", "wanted", "dtype"),
    [
        (SMALL, SMALL + 1, "float32"),
        (LARGE, LARGE - 1, "float32"),
        (SMALL, SMALL, "int32"),
        (LARGE, LARGE, "int32"),
        (SMALL, LARGE, "float32"),
        (LARGE, SMALL, "float32"),
    ],
)
def test_a_message_that_does_not_fit_is_dropped_and_says_both_sides(
    count: int, wanted: int, dtype: str, receiver_first: bool
) -> None:
    scene = MailScene(2, **SIZES)

    async def main() -> None:
        sends: list[Pending] = []
        if not receiver_first:
            sends.append(scene.send(0, 1, message(count, sender=0), tag=7))
            await scene.quiet()
        receive = scene.recv(1, 0, wanted, tag=7, dtype=dtype)
        if receiver_first:
            await scene.quiet()
            sends.append(scene.send(0, 1, message(count, sender=0), tag=7))
        got, (sent,) = await receive, await scene.ended(sends)
        assert got.code == "mismatch"
        assert (got.array == 99).all()
        for words in ("tag 7", f"rank 0 sent float32 of shape ({count},)"):
            assert words in got.text
        assert f"rank 1 receives {dtype} of shape ({wanted},)" in got.text
        assert error_of(got).fields["ranks"] == [1, 0]
        assert sent.code == ("ok" if count == SMALL else "mismatch")
        if count == LARGE:
            assert sent.text == got.text
        await scene.passes(0, 1, tag=7)
        await scene.passes(0, 1, tag=7, count=LARGE)

    scene.run(main)


def test_shapes_may_differ_if_the_number_of_elements_is_equal() -> None:
    scene = MailScene(2)

    async def main() -> None:
        data = message(12, sender=1).reshape(3, 4)
        scene.send(1, 0, data)
        got = await scene.recv(0, 1, (2, 6))
        assert (got.array.reshape(-1) == data.reshape(-1)).all()

    scene.run(main)


# ---------------------------------------------------------------- deadlines


@pytest.mark.parametrize("source", [0, ANY_SOURCE])
def test_a_receive_that_nothing_comes_for_says_which_tags_did_come(source: int) -> None:
    scene = MailScene(3)

    async def main() -> None:
        for tag in (9, 4, 4, 8, 2, 1, 6):
            scene.send(0, 1, message(SMALL, sender=0), tag=tag)
        one = await scene.recv(1, source, SMALL, tag=7, timeout_s=2.0)
        assert one.code == "timeout"
        assert 2.0 <= one.took_s <= 2.0 + TICK_S
        whom = "any rank" if source == ANY_SOURCE else "rank 0"
        assert f"no message with tag 7 came from {whom}" in one.text
        assert "Messages with tags 1, 2, 4, 6, 8, ... from it wait here" in one.text
        fields = error_of(one).fields
        assert (fields["op"], fields["group"], fields["epoch"]) == ("recv", 0, 1)
        assert (fields["rank"], fields["tag"], fields["setting"]) == (1, 7, "timeout_s")
        assert fields["peer"] == (None if source == ANY_SOURCE else 0)
        assert fields["waiting_on"] == ([0, 2] if source == ANY_SOURCE else [0])
        assert (fields["bytes_done"], fields["bytes_total"]) == (0, 4 * SMALL)
        await scene.passes_beside(0, 1, tag=7)

    scene.run(main)


def test_a_receive_that_timed_out_takes_no_message_with_it() -> None:
    scene = MailScene(2)

    async def main() -> None:
        assert (await scene.recv(1, 0, SMALL, timeout_s=0.5)).code == "timeout"
        assert (await scene.recv_any(1, SMALL, timeout_s=0.5)).code == "timeout"
        await scene.passes(0, 1, count=SMALL)

    scene.run(main)


@pytest.mark.parametrize("source", [0, ANY_SOURCE])
@pytest.mark.parametrize("count", [0, SMALL, LARGE])
def test_a_receive_takes_no_message_between_its_deadline_and_its_end(
    source: int, count: int
) -> None:
    """A daemon that is starved ends a receive late, when its trainer has given it up."""
    scene = MailScene(2, **SIZES)

    async def main() -> None:
        timeout_s = 40.5 * TICK_S
        late = scene.recv(1, source, count, timeout_s=timeout_s)
        await asyncio.sleep(timeout_s)
        data = message(count, sender=0)
        sent = scene.send(0, 1, data)
        await asyncio.sleep(2 * DELAY_S)
        assert not late.done()
        got = scene.recv(1, source, count)
        assert (await late).code == "timeout"
        assert (await late).took_s > timeout_s + 2 * DELAY_S
        assert ((await got).array == data).all()
        assert (await sent).code == "ok"
        assert ((await late).array == 99).all()
        scene.nothing_is_left(0, 1)

    scene.run(main)


def test_a_receive_that_is_read_after_its_deadline_takes_no_message_that_waits() -> None:
    scene = MailScene(2)

    async def main() -> None:
        data = message(SMALL, sender=0)
        await scene.send(0, 1, data)
        await scene.quiet()
        read_late = scene.recv(1, 0, SMALL, timeout_s=1.0, began_ago_s=1.0)
        got = scene.recv(1, 0, SMALL)
        assert (await read_late).code == "timeout"
        assert ((await got).array == data).all()

    scene.run(main)


def test_a_send_that_nobody_receives_says_so() -> None:
    scene = MailScene(2, **SIZES)

    async def main() -> None:
        one = await scene.send(0, 1, message(LARGE, sender=0), tag=7, timeout_s=2.0)
        assert one.code == "timeout"
        assert 2.0 <= one.took_s <= 2.0 + TICK_S
        assert "rank 1 has not posted a matching receive (tag 7)" in one.text
        assert "isend" not in one.text
        fields = error_of(one).fields
        assert (fields["op"], fields["rank"], fields["peer"]) == ("send", 0, 1)
        assert fields["waiting_on"] == [1]
        assert (fields["bytes_done"], fields["bytes_total"]) == (0, 4 * LARGE)
        await scene.passes(0, 1, tag=7, count=LARGE)

    scene.run(main)


def test_a_receive_posted_while_the_sender_gives_up_gets_the_next_message() -> None:
    """Whether the word of it or the receive is first may not matter."""
    scene = MailScene(2, **SIZES)

    async def main() -> None:
        gave_up = scene.send(0, 1, message(LARGE, sender=0), timeout_s=1.0)
        assert (await gave_up).code == "timeout"
        receives = [scene.recv(1, 0, LARGE) for _ in range(3)]  # the first takes what was offered
        await scene.quiet()
        sends = [scene.send(0, 1, message(LARGE, sender=0, salt=salt)) for salt in range(3)]
        for salt, got in enumerate(await scene.ended(receives)):
            assert got.error is None, got.error
            assert (got.array == message(LARGE, sender=0, salt=salt)).all()
        assert {sent.code for sent in await scene.ended(sends)} == {"ok"}
        scene.nothing_is_left(0, 1)

    scene.run(main)


@pytest.mark.parametrize("whose", ["sender", "receiver"])
def test_the_first_deadline_in_mid_message_ends_both_sides(whose: str) -> None:
    scene = MailScene(2, pipe_bytes=2048, **SIZES)
    count = 300_000
    limits = {"sender": (0.5, 60.0), "receiver": (60.0, 0.5)}[whose]

    async def main() -> None:
        data = message(count, sender=0)
        sent = scene.send(0, 1, data, tag=7, timeout_s=limits[0])
        got = scene.recv(1, 0, count, tag=7, timeout_s=limits[1])
        first, second = await scene.ended([sent, got])
        for one in (first, second):
            assert one.code == "timeout"
            assert one.took_s <= 0.5 + TICK_S + 4 * DELAY_S
            fields = error_of(one).fields
            assert 0 < fields["bytes_done"] < fields["bytes_total"] == 4 * count
            if whose == "sender":
                assert f"rank 1 took it, and {fields['bytes_done']} of {4 * count}" in one.text
            else:
                assert f"{fields['bytes_done']} of {4 * count} bytes came from rank 0" in one.text
        for rank, one in enumerate((first, second)):
            assert scene.uses_no_region(rank)
            one.array[:] = -1  # it is the caller's again
        await scene.passes(0, 1, tag=7)
        await scene.passes(0, 1, tag=7, count=LARGE)
        assert (second.array == -1).all()

    scene.run(main)


def test_a_sender_that_falls_silent_in_mid_message_is_the_receive_deadline() -> None:
    scene = MailScene(2, pipe_bytes=2048, **SIZES)
    count = 300_000

    async def main() -> None:
        sent = scene.send(0, 1, message(count, sender=0))
        got = scene.recv(1, 0, count, recv_timeout_s=0.3)
        await asyncio.sleep(0.2)
        scene.network.stall(scene.host(0))
        stalled_at = scene.loop.time()
        one = await got
        assert one.code == "timeout"
        assert error_of(one).fields["setting"] == "recv_timeout_ms"
        assert "300 ms without a byte" in one.text
        assert 0.3 <= one.at - stalled_at <= 0.3 + 3 * TICK_S + VERDICT_S
        assert (error_of(one).fields["case"], error_of(one).fields["culprits"]) == (
            ("daemon does not answer", [0])
        )
        scene.network.resume(scene.host(0))
        assert "300 ms without a byte" in (await sent).text
        await scene.passes(0, 1)

    scene.run(main)


def test_the_receive_deadline_does_not_bound_the_wait_for_a_message() -> None:
    scene = MailScene(2)

    async def main() -> None:
        got = scene.recv(1, 0, SMALL, recv_timeout_s=0.1)
        await asyncio.sleep(3.0)
        scene.send(0, 1, message(SMALL, sender=0))
        assert (await got).error is None

    scene.run(main)
