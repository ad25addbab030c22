"""Signs of life: when they go out, and when silence is taken for death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ringd.rendezvous.heart import Heart
from ringd.sim.clock import VirtualLoop, run


class Patient:
    """A heart, and when it did what."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.beats: list[float] = []
        self.silences: list[float] = []
        self.heart = Heart(
            lambda: self.beats.append(self.at()),
            lambda: self.silences.append(self.at()),
            every_s=1.0,
            limit_s=3.0,
        )

    def at(self) -> float:
        return round(self.loop.time() - self.began, 6)


def in_virtual_time(act: Callable[[Patient], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await act(Patient())

    run(main(), loop=VirtualLoop(start_s=0.0))


def test_it_beats_every_interval_and_is_silent_once_at_the_limit() -> None:
    async def act(patient: Patient) -> None:
        patient.heart.begin()
        await asyncio.sleep(10)
        assert patient.beats == [1.0, 2.0]
        assert patient.silences == [3.0]

    in_virtual_time(act)


def test_whatever_comes_puts_the_limit_off() -> None:
    async def act(patient: Patient) -> None:
        patient.heart.begin()
        await asyncio.sleep(1.7)
        patient.heart.heard()
        await asyncio.sleep(10)
        assert patient.silences == [4.7]
        assert patient.beats == [1.0, 2.0, 3.0, 4.0]

    in_virtual_time(act)


def test_a_beat_without_an_answer_is_known_before_the_limit() -> None:
    async def act(patient: Patient) -> None:
        patient.heart.begin()
        await asyncio.sleep(0.9)
        assert patient.heart.unanswered_s() == 0.0
        await asyncio.sleep(1.6)  # of the two beats the first counts
        assert patient.heart.unanswered_s() == pytest.approx(1.5)
        patient.heart.heard()
        assert patient.heart.unanswered_s() == 0.0
        patient.heart.end()

    in_virtual_time(act)


def test_after_its_end_nothing_comes_and_it_can_begin_again() -> None:
    async def act(patient: Patient) -> None:
        patient.heart.begin()
        await asyncio.sleep(1.5)
        patient.heart.end()
        patient.heart.end()
        await asyncio.sleep(10)
        assert (patient.beats, patient.silences) == ([1.0], [])
        patient.heart.begin()
        await asyncio.sleep(1.5)
        assert patient.beats == [1.0, 12.5]
        patient.heart.end()

    in_virtual_time(act)


def test_a_loop_that_was_held_up_reads_before_it_calls_anybody_silent() -> None:
    async def act(patient: Patient) -> None:
        patient.heart.begin()
        await asyncio.sleep(0.5)
        # As after SIGCONT: the timer of 1.0 runs at 9.0, and what came meanwhile is read then.
        timer = patient.heart._timer
        assert timer is not None
        timer.cancel()
        patient.loop.call_at(patient.began + 9.0, patient.heart._wake)
        patient.loop.call_at(patient.began + 9.01, patient.heart.heard)
        await asyncio.sleep(9.5)
        assert patient.silences == []
        patient.heart.end()

    in_virtual_time(act)
