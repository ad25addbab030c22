"""Messages to and from a peer that was written from docs/wire-protocol.md alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.wire.foreign.frames import LEFT, MESSAGE, OFFER, Failed
from tests.wire.foreign.moves import SEGMENT_BYTES
from tests.wire.foreign.rank import EAGER_BYTES, ForeignRank
from tests.wire.foreign_job import a_group, both, in_thread, message, sum_is_right, two_inputs
from tests.wire.real_ranks import Real


@pytest.mark.parametrize("receiver_first", [False, True])
@pytest.mark.parametrize(
    ("count", "kind"),
    [
        pytest.param(0, MESSAGE, id="empty"),
        pytest.param(EAGER_BYTES // 4, MESSAGE, id="whole"),
        pytest.param(EAGER_BYTES // 4 + 1, OFFER, id="offered"),
        pytest.param(SEGMENT_BYTES // 2 + 3, OFFER, id="in three segments"),
    ],
)
async def test_messages_arrive_in_both_directions(
    count: int, kind: int, receiver_first: bool
) -> None:
    ours, theirs = two_inputs("float32", count)
    got = np.full(count, np.nan, np.float32)
    async with both() as (real, peer):
        mail, zero = peer.world.mail, real.zero
        if receiver_first:
            received = zero.call(message("recv", got, 1), got, 3)
            await in_thread(mail.send, 0, 3, "float32", theirs.tobytes())
        else:
            number = mail.post(0, 3, "float32", theirs.tobytes())
            received = zero.call(message("recv", got, -1), got, 3)
            if kind == OFFER:
                await in_thread(mail.deliver, 0, number, theirs.tobytes())
        ended = await received
        assert (ended.code, ended.source) == ("ok", 1)
        assert got.tobytes() == theirs.tobytes()
        sent = zero.call(message("send", ours, 1), ours, 4)
        assert await in_thread(mail.recv, 0, 4, "float32", count) == ours.tobytes()
        assert (await sent).code == "ok"
        assert mail.kinds == [kind]
        await sum_is_right(real, peer.world)


async def test_messages_match_by_tag_and_in_the_order_of_their_sends() -> None:
    async with both() as (real, peer):
        mail = peer.world.mail
        for value, tag in ((1, 5), (2, 6), (3, 5)):
            mail.post(0, tag, "float32", np.full(1, value, np.float32).tobytes())
        seen = []
        for tag in (6, 5, 5):
            got = np.zeros(1, np.float32)
            assert (await real.zero.call(message("recv", got, 1), got, tag)).code == "ok"
            seen.append(got[0])
        assert seen == [2, 1, 3]


@pytest.mark.parametrize("says_taken", [False, True])
async def test_beyond_what_may_wait_messages_are_offered(says_taken: bool) -> None:
    n_messages = 1030
    async with both() as (real, peer):
        mail = peer.world.mail
        mail.says_taken = says_taken
        values = np.arange(n_messages, dtype=np.float32)
        sends = []
        for one in values.reshape(-1, 1):
            sends.append(real.zero.call(message("send", one, 1), one, 0))
            got = await in_thread(mail.recv, 0, 0, "float32", 1)
            assert got == one.tobytes()
        assert {(await sent).code for sent in sends} == {"ok"}
        expected = [MESSAGE] * n_messages
        if not says_taken:
            expected[1024:] = [OFFER] * 6
        assert mail.kinds == expected


async def test_a_receiver_says_how_much_it_has_received() -> None:
    """After 1 MiB, a fourth of the bound: 16 messages of 64 KiB."""
    async with both() as (real, peer):
        mail = peer.world.mail
        data = np.arange(EAGER_BYTES // 4, dtype=np.float32)
        got = np.zeros_like(data)
        for _ in range(16):
            mail.post(0, 0, "float32", data.tobytes())
        lane = mail.lanes[0]
        for _ in range(16):
            assert lane.peer_used == (0, 0)
            assert (await real.zero.call(message("recv", got, 1), got, 0)).code == "ok"
        await in_thread(peer.until, lambda: lane.peer_used != (0, 0))
        assert lane.peer_used == (16, 16 * EAGER_BYTES)


@pytest.mark.parametrize("count", [5, 20_000])
async def test_a_message_that_does_not_fit_is_dropped(count: int) -> None:
    """Whole, its sender does not learn of it; offered, it does."""
    async with both() as (real, peer):
        mail, got = peer.world.mail, np.zeros(count + 1, np.float32)
        data = two_inputs("float32", count)[1].tobytes()
        number = mail.post(0, 0, "float32", data)
        error = (await real.zero.call(message("recv", got, 1), got, 0)).error
        assert error is not None
        assert (error.code, error.ranks) == ("mismatch", [0, 1])
        if len(data) > EAGER_BYTES:
            with pytest.raises(Failed) as failed:
                await in_thread(mail.deliver, 0, number, data)
            assert failed.value.code == "mismatch"
        await messages_still_pass(real, peer)


async def messages_still_pass(real: Real, peer: ForeignRank) -> None:
    """The next message after an error is an ordinary one."""
    _, theirs = two_inputs("float32", 20_001)
    got = np.zeros_like(theirs)
    received = real.zero.call(message("recv", got, 1), got, 0)
    await in_thread(peer.world.mail.send, 0, 0, "float32", theirs.tobytes())
    assert (await received).code == "ok"
    assert got.tobytes() == theirs.tobytes()


async def test_an_offer_that_its_sender_gives_up_is_as_if_it_had_not_been() -> None:
    async with both() as (real, peer):
        mail, got = peer.world.mail, np.zeros(20_000, np.float32)
        number = mail.post(0, 0, "float32", bytes(80_000))
        received = real.zero.call(message("recv", got, 1), got, 0)
        await in_thread(peer.until, lambda: number in mail.lanes[0].taken)
        mail.revoke(0, number, by_sender=True, code="timeout")
        _, theirs = two_inputs("float32", 20_000)
        await in_thread(mail.send, 0, 0, "float32", theirs.tobytes())
        assert (await received).code == "ok"
        assert got.tobytes() == theirs.tobytes()


async def test_a_sender_that_gives_up_in_mid_message_fails_the_receive() -> None:
    async with both() as (real, peer):
        mail, got = peer.world.mail, np.zeros(SEGMENT_BYTES, np.float32)
        number = mail.post(0, 0, "float32", got.tobytes())
        received = real.zero.call(message("recv", got, 1), got, 0)
        await in_thread(peer.until, lambda: number in mail.lanes[0].taken)
        mail.part(peer.links[0], number, 0, bytes(SEGMENT_BYTES))
        mail.revoke(0, number, by_sender=True, code="timeout")
        assert (await received).code == "timeout"
        await messages_still_pass(real, peer)


@pytest.mark.parametrize("code", ["mismatch", "timeout", "group_freed", "collective"])
async def test_a_receiver_that_gives_up_fails_the_send(code: str) -> None:
    async with both() as (real, peer):
        mail, data = peer.world.mail, np.ones(20_000, np.float32)
        sent = real.zero.call(message("send", data, 1), data, 0)
        letter = await in_thread(mail.next_letter, 0, 0)
        mail.revoke(0, letter.number, by_sender=False, code=code)
        assert (await sent).code == code
        await messages_still_pass(real, peer)


async def test_a_deadline_of_ours_revokes_what_the_foreign_rank_does_not_take() -> None:
    async with both() as (real, peer):
        mail, data = peer.world.mail, np.ones(20_000, np.float32)
        sent = real.zero.call(message("send", data, 1), data, 0, timeout_s=0.1)
        letter = await in_thread(mail.next_letter, 0, 0)
        await in_thread(peer.until, lambda: (letter.number, True) in mail.lanes[0].revoked)
        assert mail.lanes[0].revoked[letter.number, True]["code"] == "timeout"
        assert (await sent).code == "timeout"
        await messages_still_pass(real, peer)


async def test_offers_for_a_freed_group_are_sent_back() -> None:
    async with both() as (real, peer):
        group = await a_group(real, peer, 0, 1)
        first = group.mail.post(0, 0, "float32", bytes(80_000))
        await sum_is_right(real, peer.world)  # so the offer is there
        real.zero.engine.groups.free(1)
        second = group.mail.post(0, 0, "float32", bytes(80_000))
        for number in (first, second):
            with pytest.raises(Failed) as failed:
                await in_thread(group.mail.deliver, 0, number, bytes(80_000))
            assert failed.value.code == "group_freed"
        await messages_still_pass(real, peer)


async def test_who_frees_a_group_says_so_after_its_messages() -> None:
    async with both() as (real, peer):
        group = await a_group(real, peer, 0, 1)
        data = np.arange(4, dtype=np.float32)
        group.mail.post(0, 0, "float32", data.tobytes())
        peer.link_to(0).note(LEFT, [peer.epoch], stream=group.stream)
        first, second = np.zeros_like(data), np.zeros_like(data)
        ends = [
            real.zero.call(replace(message("recv", a, 1), group=1), a, 0) for a in (first, second)
        ]
        assert (await ends[0]).code == "ok"
        assert first.tobytes() == data.tobytes()
        error = (await ends[1]).error
        assert error is not None
        assert (error.code, error.rank, error.group) == ("group_freed", 1, 1)
        await messages_still_pass(real, peer)
        assert group.freed_by == set()
        other = await a_group(real, peer, 0, 1)
        real.zero.engine.groups.free(other.number)
        await in_thread(peer.until, lambda: other.freed_by == {0})
        await messages_still_pass(real, peer)


# Goodbyes


async def test_what_was_sent_before_a_goodbye_is_received_and_then_no_more() -> None:
    async with both() as (real, peer):
        data = np.arange(4, dtype=np.float32)
        peer.world.mail.post(0, 0, "float32", data.tobytes())
        await in_thread(peer.leave)
        first, second = np.zeros_like(data), np.zeros_like(data)
        ends = [real.zero.call(message("recv", a, 1), a, 0) for a in (first, second)]
        assert (await ends[0]).code == "ok"
        assert first.tobytes() == data.tobytes()
        error = (await ends[1]).error
        assert error is not None
        assert (error.code, error.rank, error.case) == ("peer_lost", 1, "it left the job")


async def test_a_trainer_that_says_goodbye_says_it_on_the_link_too() -> None:
    async with both() as (real, peer):
        data = np.ones(4, np.float32)
        assert (await real.zero.call(message("send", data, 1), data, 0)).code == "ok"
        real.zero.node.detach(real.zero, "goodbye", "")
        await in_thread(peer.until, lambda: LEFT in peer.links[0].said)
        assert [letter.count for letter in peer.world.mail.lanes[0].waiting] == [4]
