"""Messages in rough weather, in an order and at times that a seed draws."""

from __future__ import annotations

import asyncio
import random

import pytest

from ringd.engine.endings import VERDICT_S
from ringd.sim.weather import Climate, SeededWeather
from tests.engine.mail_scene import MailScene, Pending, Posted, message
from tests.engine.scene import TICK_S

SEGMENT_BYTES = 4096
EAGER_BYTES = 1024


def rough_scene(n: int, rng: random.Random) -> MailScene:
    """Deliveries that differ in time, and come in pieces and crumbs."""
    climate = Climate(
        mean_delay_s=1e-3,
        path_spread=3.0,
        spike_chance=0.02,
        spike_factor=20.0,
        whole_weight=2.0,
        part_weight=1.0,
        crumb_weight=0.2,
        crumb_bytes=7,
    )
    return MailScene(
        n,
        weather=SeededWeather(random.Random(rng.random()), climate),
        pipe_bytes=rng.choice([2048, 65536]),
        segment_bytes=SEGMENT_BYTES,
        eager_bytes=EAGER_BYTES,
        inline_bytes=rng.choice([512, 65536]),
    )


Sent = tuple[int, int, int, int, int]
"""Sender, receiver, tag, elements, salt."""


def drawn_sends(rng: random.Random, n: int) -> list[Sent]:
    """A hundred and twenty messages between ``n`` ranks."""
    found = []
    for salt in range(120):
        a, b = rng.sample(range(n), 2)
        found.append((a, b, rng.randrange(3), rng.choice([0, 1, 50, 300, 3000]), salt))
    return found


def drawn_receives(rng: random.Random, sends: list[Sent]) -> list[Sent]:
    """What each receive gets, by the rule "first in, first out by source and tag", if receives that
    name sender and tag are posted in an order that is drawn."""
    queues: dict[tuple[int, int, int], list[Sent]] = {}
    for sent in sends:
        queues.setdefault(sent[:3], []).append(sent)
    keys = [sent[:3] for sent in sends]
    rng.shuffle(keys)
    return [queues[key].pop(0) for key in keys]


@pytest.mark.parametrize("seed", range(8))
def test_a_random_program_gets_every_message_where_the_rule_puts_it(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.choice([2, 3, 5])
    scene = rough_scene(n, rng)
    sends = drawn_sends(rng, n)
    receives = drawn_receives(rng, sends)

    async def paced(futures: list[Pending], future: Pending) -> None:
        futures.append(future)
        if rng.random() < 0.4:
            await asyncio.sleep(rng.random() * 0.02)

    async def send_all() -> None:
        futures: list[Pending] = []
        for a, b, tag, count, salt in sends:
            await paced(futures, scene.send(a, b, message(count, sender=a, salt=salt), tag=tag))
        assert {sent.code for sent in await scene.ended(futures)} == {"ok"}

    async def receive_all() -> None:
        futures: list[Pending] = []
        for a, b, tag, count, _ in receives:
            await paced(futures, scene.recv(b, a, count, tag=tag))
        for (a, _, _, count, salt), got in zip(receives, await scene.ended(futures), strict=True):
            assert got.error is None, got.error
            assert (got.array == message(count, sender=a, salt=salt)).all()

    async def main() -> None:
        await asyncio.gather(receive_all(), send_all())
        scene.nothing_is_left(*range(n))

    scene.run(main)


@pytest.mark.parametrize("seed", range(8))
def test_whoever_gives_up_when_no_message_is_torn_doubled_or_taken_for_another(seed: int) -> None:
    """Both sides have short deadlines. A large send that is done was received, whole and once."""
    rng = random.Random(1000 + seed)
    scene = rough_scene(2, rng)
    counts = (50, 3000, 20_000)  # of tags 0, 1 and 2
    limit_s = 0.2
    sends: dict[int, Pending] = {}
    receives: list[tuple[int, Pending]] = []

    async def post(sending: bool) -> None:
        for salt in range(100):
            tag = rng.randrange(3)
            timeout_s = rng.uniform(0.001, limit_s)
            if sending:
                data = message(counts[tag], sender=0, salt=salt)
                sends[salt] = scene.send(0, 1, data, tag=tag, timeout_s=timeout_s)
            else:
                future = scene.recv(1, 0, counts[tag], tag=tag, timeout_s=timeout_s)
                receives.append((tag, future))
            await asyncio.sleep(rng.random() * 0.02)

    def salt_of(tag: int, one: Posted) -> int:
        (salt,) = [
            salt for salt in sends if (one.array == message(counts[tag], sender=0, salt=salt)).all()
        ]
        return salt

    async def main() -> None:
        await asyncio.gather(post(True), post(False))
        sent = dict(zip(sends, await scene.ended(sends.values()), strict=True))
        got = [(tag, await future) for tag, future in receives]
        for one in [*sent.values(), *(one for _, one in got)]:
            assert one.code in ("ok", "timeout")
            assert one.took_s <= limit_s + TICK_S + VERDICT_S + 0.001
        received = [salt_of(tag, one) for tag, one in got if one.error is None]
        assert len(set(received)) == len(received)
        done = {s for s, one in sent.items() if one.error is None}
        large = {s for s in done if sent[s].array.nbytes > EAGER_BYTES}
        assert large <= set(received)
        assert 0 < len(received) < len(receives)  # some were given up, and some were not
        await scene.quiet()
        waiting = done - set(received)
        assert scene.engine(1).mail.parked_bytes == sum(sent[s].array.nbytes for s in waiting)
        assert scene.uses_no_region(0)
        assert scene.uses_no_region(1)
        for tag, count in enumerate(counts[1:], 1):
            await scene.passes_beside(0, 1, tag=tag, count=count)

    scene.run(main)
