"""Sends and receives that come to their deadline: the verdict says who is to blame, and why."""

from __future__ import annotations

import asyncio

import pytest

from ringd.daemon.trainer_state import State
from ringd.engine.endings import VERDICT_S
from tests.engine.mail_scene import MailScene, Posted, error_of, message
from tests.engine.scene import TICK_S

LARGE = 200_000
STACK = ["train.py:1 in main"]


def judged(one: Posted, case: str, culprits: list[int]) -> str:
    """A timeout that ended in time, by this verdict; its text."""
    fields = error_of(one).fields
    assert one.code == "timeout"
    assert (fields["case"], fields["culprits"], fields["partial"]) == (case, culprits, False)
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
