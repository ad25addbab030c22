"""Sends and receives that come to their deadline: the verdict says who is to blame, and why."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from ringd.daemon.trainer_state import State
from ringd.engine.endings import VERDICT_S
from ringd.vocabulary import OpSpec
from tests.engine.mail_scene import MailScene, Posted, error_of, message
from tests.engine.scene import TICK_S

LARGE = 200_000
STACK = ["train.py:1 in main"]


def judged(one: Posted, case: str, culprits: list[int]) -> str:
    """A timeout that ended in time, by this verdict; its text."""
    fields = error_of(one).fields
    assert one.code == "timeout"
    assert (fields["case"], fields["culprits"], fields["partial"]) == (case, culprits, False)
    if case != "deadlock":
        assert fields["waiting_on"] == (culprits or fields["waiting_on"])
    assert fields["verdict"]
    assert one.took_s <= 1.0 + 2 * TICK_S + VERDICT_S
    return one.text


@pytest.mark.parametrize("tag", [0, 7])
def test_who_never_sends_is_named_with_its_stack(tag: int) -> None:
    scene = MailScene(3)

    async def main() -> None:
        one = await scene.recv(0, 1, 5, tag=tag, timeout_s=1.0)
        text = judged(one, "never entered", [1])
        assert "Rank 1 never made the matching send; the trainer of rank 1 (process 1001)" in text
        assert "is in train.py:1 in main. Let rank 1 make the matching send." in text
        assert error_of(one).fields["stacks"] == {"1": STACK}
        await scene.passes(1, 0)

    scene.run(main)


def test_a_receive_that_was_given_up_long_ago_is_not_the_one_that_is_waited_for_now() -> None:
    scene = MailScene(2)

    async def main() -> None:
        assert (await scene.recv(1, 0, 5, tag=7, timeout_s=0.1)).code == "timeout"
        for _ in range(2):
            await scene.passes(0, 1, tag=7)
        one = await scene.send(0, 1, message(LARGE, sender=0), tag=7, timeout_s=1.0)
        assert "Rank 1 never made the matching receive" in judged(one, "never entered", [1])

    scene.run(main)


def test_a_send_that_was_given_up_long_ago_is_not_the_one_that_is_waited_for_now() -> None:
    scene = MailScene(2)

    async def main() -> None:
        large = message(LARGE, sender=1)
        assert (await scene.send(1, 0, large, tag=7, timeout_s=0.1)).code == "timeout"
        for _ in range(2):
            await scene.passes(1, 0, tag=7)
        one = await scene.recv(0, 1, 5, tag=7, timeout_s=1.0)
        assert "Rank 1 never made the matching send" in judged(one, "never entered", [1])

    scene.run(main)


def test_who_never_receives_is_named_with_its_stack() -> None:
    scene = MailScene(3)

    async def main() -> None:
        one = await scene.send(0, 1, message(LARGE, sender=0), timeout_s=1.0)
        text = judged(one, "never entered", [1])
        assert "Rank 1 never made the matching receive; the trainer of rank 1" in text
        assert error_of(one).fields["stacks"] == {"1": STACK}

    scene.run(main)


def test_of_a_receive_from_any_all_that_might_have_sent_are_named() -> None:
    scene = MailScene(3)

    async def main() -> None:
        one = await scene.recv_any(0, 5, timeout_s=1.0)
        judged(one, "never entered", [1, 2])
        assert error_of(one).fields["stacks"] == {"1": STACK, "2": STACK}

    scene.run(main)


def test_who_has_left_is_not_asked_and_not_named() -> None:
    scene = MailScene(4)

    async def main() -> None:
        await scene.cluster.nodes[3].stop()
        await scene.quiet()
        one = await scene.recv_any(0, 5, timeout_s=1.0)
        assert "The daemon" not in judged(one, "never entered", [1, 2])

    scene.run(main)


def test_who_has_left_is_not_named_at_the_end_of_a_chain_either() -> None:
    scene = MailScene(4)

    async def main() -> None:
        await scene.cluster.nodes[3].stop()
        await scene.quiet()
        scene.recv_any(1, 5, tag=3)
        one = await scene.recv(0, 1, 5, timeout_s=1.0)
        text = judged(one, "never entered", [2])
        assert "Rank 1 waits itself in a recv from any of ranks 0 and 2 with tag 3" in text

    scene.run(main)


def test_what_waits_for_one_that_left_while_its_link_is_down_says_so_at_the_deadline() -> None:
    scene = MailScene(2)

    async def main() -> None:
        await scene.passes(1, 0)
        scene.network.cut(scene.host(1), scene.host(0))
        scene.network.reset((scene.host(1), scene.host(0)))
        waiting = scene.recv(0, 1, 5, timeout_s=1.0), scene.recv_any(0, 5, tag=3, timeout_s=1.0)
        await scene.cluster.nodes[1].stop()
        for one in waiting:
            ended = await one
            assert ended.code == "peer_lost"
            assert error_of(ended).fields["case"] == "it left the job"
            assert 1 in error_of(ended).fields["culprits"]
        scene.network.heal(scene.host(1), scene.host(0))

    scene.run(main)


@pytest.mark.parametrize(
    ("state", "case", "text"),
    [
        ("stopped", "trainer stopped", "kill -CONT 1001"),
        ("gone", "no trainer attached", "rank 1 anew"),
    ],
)
def test_what_the_trainer_is_found_in_is_the_case(state: State, case: str, text: str) -> None:
    scene = MailScene(2)

    async def main() -> None:
        scene.cluster.trainers[1].state = state
        assert text in judged(await scene.recv(0, 1, 5, timeout_s=1.0), case, [1])

    scene.run(main)


def test_a_daemon_that_does_not_answer_is_the_case() -> None:
    scene = MailScene(3)

    async def main() -> None:
        scene.network.stall(scene.host(1))
        judged(await scene.recv(0, 1, 5, timeout_s=1.0), "daemon does not answer", [1])
        scene.network.resume(scene.host(1))

    scene.run(main)


@pytest.mark.parametrize("count", [5, LARGE])
def test_a_message_that_does_not_arrive_is_the_links_fault(count: int) -> None:
    scene = MailScene(2)

    async def main() -> None:
        await scene.passes(1, 0)
        scene.network.cut(scene.host(1), scene.host(0))
        sent = scene.send(1, 0, message(count, sender=1), timeout_s=1.0)
        one = await scene.recv(0, 1, count, timeout_s=1.0)
        text = judged(one, "link down", [1])
        assert "The link 1→0 does not carry anything" in text
        assert error_of(one).fields["link"] == [1, 0]
        assert (await sent).code == ("ok" if count == 5 else "timeout")
        scene.network.heal(scene.host(1), scene.host(0))

    scene.run(main)


def test_who_comes_when_the_other_side_has_given_up_is_late_itself() -> None:
    scene = MailScene(2)

    async def main() -> None:
        judged(await scene.recv(1, 0, LARGE, timeout_s=1.0), "never entered", [0])
        one = await scene.send(0, 1, message(LARGE, sender=0), timeout_s=1.0)
        text = judged(one, "entered late", [0])
        assert "Rank 1 had given up the matching receive, at its own deadline" in text

    scene.run(main)


def test_without_a_rendezvous_it_is_one_ranks_view() -> None:
    scene = MailScene(2)

    async def main() -> None:
        await scene.passes(1, 0)
        await scene.cluster.stop_rendezvous()
        await asyncio.sleep(0.1)
        one = await scene.recv(0, 1, 5, timeout_s=1.0)
        assert error_of(one).fields["partial"] is True
        assert "verdict" not in error_of(one).fields
        assert "See what it is doing (ringd status)." in one.text

    scene.run(main)


# ---------------------------------------------------------------- chains


@pytest.mark.parametrize("how", ["recv", "send", "barrier", "large"])
def test_a_chain_of_waiting_ranks_is_followed_to_its_end(how: str) -> None:
    scene = MailScene(4)

    async def main() -> None:
        if how == "recv":
            onward = scene.recv(1, 2, 5, tag=3)
        elif how in ("send", "large"):
            onward = scene.send(1, 2, message(LARGE, sender=1), tag=3)
        else:
            onward = scene.post(1, OpSpec("barrier", "", "", ()), np.zeros(0), None)
            scene.post(3, OpSpec("barrier", "", "", ()), np.zeros(0), None)
        await scene.quiet()
        if how == "large":
            one = await scene.send(0, 1, message(LARGE, sender=0), timeout_s=1.0)
        else:
            one = await scene.recv(0, 1, 5, timeout_s=1.0)
        text = judged(one, "never entered", [2])
        assert "Rank 1 waits itself in " in text
        assert "the trainer of rank 2 (process 1002) is in train.py:1 in main" in text
        fields = error_of(one).fields
        assert (fields["chain"], fields["stacks"]) == ([0, 1], {"2": STACK})
        assert not onward.done()

    scene.run(main)


@pytest.mark.parametrize("how", ["sleeps", "stopped", "stalled"])
def test_a_call_is_held_up_by_who_holds_up_those_that_it_waits_for(how: str) -> None:
    scene = MailScene(4)
    case = {"sleeps": "never entered", "stopped": "trainer stopped"}

    async def main() -> None:
        group = await scene.make_group((0, 1, 3))
        onward = scene.recv(1, 2, 5, tag=3)
        if how == "stopped":
            scene.cluster.trainers[2].state = "stopped"
        elif how == "stalled":
            scene.network.stall(scene.host(2))
        spec = OpSpec("barrier", "", "", (), group=group)
        calls = [scene.post(rank, spec, np.zeros(0), None, timeout_s=1.0) for rank in (0, 3)]
        for one in await scene.ended(calls):
            text = judged(one, case.get(how, "daemon does not answer"), [2])
            assert "rank 1 waits itself in a recv from rank 2 with tag 3; " in text
            assert error_of(one).fields["chain"] in ([0, 1], [3, 1])
            assert error_of(one).fields["late_ranks"] == [1]
        assert len({error_of(call.result()).fields["verdict"] for call in calls}) == 1
        assert not onward.done()
        scene.network.resume(scene.host(2))

    scene.run(main)


def test_a_call_that_waits_for_who_waits_for_one_of_its_ranks_is_a_deadlock() -> None:
    scene = MailScene(3)

    async def main() -> None:
        scene.recv(1, 0, 5, tag=3)
        spec = OpSpec("barrier", "", "", ())
        calls = [scene.post(rank, spec, np.zeros(0), None, timeout_s=1.0) for rank in (0, 2)]
        for one in await scene.ended(calls):
            text = judged(one, "deadlock", [0, 1])
            assert "ranks 0 and 1 wait for each other: rank 0 in barrier (operation 0 of" in text
            assert error_of(one).fields["late_ranks"] == [1]

    scene.run(main)


def test_all_in_a_chain_whose_time_is_up_at_once_name_its_end() -> None:
    scene = MailScene(4)

    async def main() -> None:
        scene.cluster.trainers[3].state = "stopped"
        posted = [scene.recv(rank, rank + 1, 5, timeout_s=1.0) for rank in range(3)]
        for rank, one in enumerate(await scene.ended(posted)):
            assert "kill -CONT 1003" in judged(one, "trainer stopped", [3])
            assert error_of(one).fields["chain"] == (list(range(rank, 3)) if rank < 2 else [])

    scene.run(main)


def test_a_stalled_daemon_at_the_end_of_a_chain_is_named_in_time() -> None:
    scene = MailScene(3)

    async def main() -> None:
        scene.recv(1, 2, 5)
        scene.network.stall(scene.host(2))
        judged(await scene.recv(0, 1, 5, timeout_s=1.0), "daemon does not answer", [2])
        scene.network.resume(scene.host(2))

    scene.run(main)


def test_who_is_in_its_own_code_with_a_receive_in_flight_is_to_blame_itself() -> None:
    scene = MailScene(3)

    async def main() -> None:
        scene.cluster.trainers[1].away = True
        scene.recv(1, 2, 5)
        one = await scene.recv(0, 1, 5, timeout_s=1.0)
        judged(one, "never entered", [1])
        assert error_of(one).fields["chain"] == []

    scene.run(main)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("sends", [True, False])
def test_ranks_that_wait_for_each_other_are_told_that_they_do(sends: bool, n: int) -> None:
    scene = MailScene(n)

    async def main() -> None:
        posted = [
            scene.send(rank, (rank + 1) % n, message(LARGE, sender=rank), timeout_s=1.0)
            if sends
            else scene.recv(rank, (rank + 1) % n, 5, timeout_s=1.0)
            for rank in range(n)
        ]
        for one in await scene.ended(posted):
            text = judged(one, "deadlock", list(range(n)))
            assert "wait for each other: rank " in text
            assert "isend and irecv, or batch_p2p" in text
            assert "If it is only slow" not in text
            assert sorted(error_of(one).fields["stacks"]) == [str(rank) for rank in range(n)]
        await scene.passes(1, 0)

    scene.run(main)


# ---------------------------------------------------------------- both sides of a message


@pytest.mark.parametrize("whose", ["sender", "receiver"])
def test_the_other_side_of_a_message_that_is_given_up_gets_the_verdict(whose: str) -> None:
    scene = MailScene(2, pipe_bytes=2048, segment_bytes=4096, eager_bytes=1024)
    limits = {"sender": (0.5, 60.0), "receiver": (60.0, 0.5)}[whose]
    count = 300_000

    async def main() -> None:
        sent = scene.send(0, 1, message(count, sender=0), timeout_s=limits[0])
        got = scene.recv(1, 0, count, timeout_s=limits[1])
        ended = await scene.ended([sent, got])
        ours, theirs = (error_of(one).fields for one in ended)
        assert ours["case"] == "slow link"
        for name in ("verdict", "case", "culprits", "link", "stacks", "chain", "partial"):
            assert ours[name] == theirs[name]
        assert ours["partial"] is False
        assert all("The link 0→1 is slow" in one.text for one in ended)
        assert "asked" not in ours.keys() | theirs.keys()

    scene.run(main)


def test_without_a_verdict_the_other_side_has_the_view_of_who_gave_up() -> None:
    scene = MailScene(2, pipe_bytes=2048, segment_bytes=4096, eager_bytes=1024)
    count = 300_000

    async def main() -> None:
        sent = scene.send(0, 1, message(count, sender=0))
        got = scene.recv(1, 0, count, timeout_s=0.5)
        await asyncio.sleep(0.2)
        scene.network.cut(scene.host(0), "rendezvous")
        ended = await scene.ended([sent, got])
        assert error_of(ended[0]).fields["partial"] is True
        assert ended[0].took_s <= 0.5 + 2 * TICK_S + VERDICT_S
        assert "asked" not in error_of(ended[0]).fields
        scene.network.heal(scene.host(0), "rendezvous")

    scene.run(main)


def test_a_sender_that_came_late_is_told_so_though_it_has_heard_that_it_is_over() -> None:
    scene = MailScene(2, pipe_bytes=2048, segment_bytes=4096, eager_bytes=1024)
    count = 300_000

    async def main() -> None:
        scene.network.delay(scene.host(0), "rendezvous", 0.01)  # the word on the link is quicker
        got = scene.recv(1, 0, count, timeout_s=1.0)
        await asyncio.sleep(0.8)
        sent = scene.send(0, 1, message(count, sender=0))
        for one in await scene.ended([got, sent]):
            text = one.text
            assert (error_of(one).fields["case"], error_of(one).fields["culprits"]) == (
                ("entered late", [0])
            )
            assert "Rank 0 made the matching send late" in text

    scene.run(main)


def test_a_message_with_another_tag_that_is_on_its_way_is_not_the_one() -> None:
    scene = MailScene(2)

    async def main() -> None:
        await scene.passes(1, 0)
        scene.network.delay(scene.host(1), scene.host(0), 1.0, both=False)
        got = scene.recv(0, 1, 5, tag=7, timeout_s=1.0)
        await asyncio.sleep(0.9)
        await scene.send(1, 0, message(5, sender=1), tag=8)
        judged(await got, "never entered", [1])
        scene.network.delay(scene.host(1), scene.host(0), 0.0, both=False)

    scene.run(main)


# ---------------------------------------------------------------- a side made at the last moment


def test_a_message_that_is_sent_just_before_the_deadline_came_late() -> None:
    scene = MailScene(2)

    async def main() -> None:
        await scene.passes(1, 0)
        got = scene.recv(0, 1, 5, timeout_s=1.0)
        await asyncio.sleep(0.99)
        scene.network.delay(scene.host(1), scene.host(0), 0.1, both=False)
        assert (await scene.send(1, 0, message(5, sender=1))).code == "ok"
        assert "Rank 1 made the matching send late" in judged(await got, "entered late", [1])
        scene.network.delay(scene.host(1), scene.host(0), 0.0, both=False)

    scene.run(main)


def test_a_receive_that_is_through_before_its_sender_hears_of_it_came_late() -> None:
    scene = MailScene(2, segment_bytes=4096, eager_bytes=1024)
    count = 1000  # one segment

    async def main() -> None:
        sent = scene.send(0, 1, message(count, sender=0), timeout_s=1.0)
        await asyncio.sleep(0.9)
        scene.network.delay(scene.host(0), scene.host(1), 0.05, both=False)
        got = scene.recv(1, 0, count)
        await asyncio.sleep(0.02)  # it is taken; no ack comes from here on
        scene.network.delay(scene.host(1), scene.host(0), 1.0, both=False)
        assert (await got).code == "ok"
        assert "Rank 1 made the matching receive late" in judged(await sent, "entered late", [1])
        for ends in ((0, 1), (1, 0)):
            scene.network.delay(*map(scene.host, ends), 0.0, both=False)

    scene.run(main)


def test_an_offer_that_is_given_up_as_its_receive_comes_is_not_the_links_fault() -> None:
    scene = MailScene(2)

    async def main() -> None:
        sent = scene.send(0, 1, message(LARGE, sender=0), timeout_s=1.0)
        await asyncio.sleep(0.95)
        scene.network.delay(scene.host(1), scene.host(0), 0.2, both=False)
        got = scene.recv(1, 0, LARGE, timeout_s=1.0)
        judged(await sent, "entered late", [1])
        text = judged(await got, "entered late", [1])
        assert "Rank 0 had given up the matching send, at its own deadline" in text
        scene.network.delay(scene.host(1), scene.host(0), 0.0, both=False)

    scene.run(main)
