"""Between hosts an operation does not wait for the last acks: what they are due for is copied."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from ringd.vocabulary import OpSpec
from tests.engine.scene import DELAY_S, Array, Ended, Scene

SEGMENT_BYTES = 64 * 1024
LITTLE = OpSpec("broadcast", "float32", "", (3 * SEGMENT_BYTES // 4,), root=0)
MUCH = OpSpec("broadcast", "float32", "", (16 * SEGMENT_BYTES // 4,), root=0)


def numbers(spec: OpSpec) -> Array:
    return np.arange(spec.count, dtype="float32")


def begin(scene: Scene, spec: OpSpec, arrays: Sequence[Array]) -> list[asyncio.Future[Ended]]:
    return [scene.call(rank, spec, array) for rank, array in enumerate(arrays)]


def test_the_sender_of_a_few_segments_is_done_before_their_ack() -> None:
    scene = Scene(2, segment_bytes=SEGMENT_BYTES)

    async def main() -> None:
        arrays = [numbers(LITTLE), np.zeros_like(numbers(LITTLE))]
        root, other = await scene.all(begin(scene, LITTLE, arrays))
        assert root.error is None
        assert other.error is None
        assert (other.array == numbers(LITTLE)).all()
        # Credit takes one trip; the ack would take two more, there and back.
        assert root.took_s < 2 * DELAY_S
        await scene.quiet()
        assert not scene.engine(0).links[1]._unacked

    scene.run(main)


def test_of_many_segments_all_but_the_last_ones_are_waited_for() -> None:
    scene = Scene(2, segment_bytes=SEGMENT_BYTES)

    async def main() -> None:
        arrays = [numbers(MUCH), np.zeros_like(numbers(MUCH))]
        root, other = begin(scene, MUCH, arrays)
        scene.network.clog(scene.host(1), scene.host(0))  # the credit has left; no ack comes
        assert (await other).error is None
        await scene.quiet()
        assert not root.done()
        scene.network.unclog(scene.host(1), scene.host(0))
        assert (await root).error is None
        assert (arrays[1] == numbers(MUCH)).all()

    scene.run(main)


def test_what_was_copied_goes_again_after_a_reset_though_the_caller_has_written_over_it() -> None:
    scene = Scene(2, segment_bytes=SEGMENT_BYTES, pipe_bytes=2 * 1024 * 1024)

    async def main() -> None:
        arrays = [numbers(LITTLE), np.zeros_like(numbers(LITTLE))]
        root, other = begin(scene, LITTLE, arrays)
        assert (await root).error is None
        assert not other.done()
        arrays[0].fill(-1)
        scene.network.reset((scene.host(0), scene.host(1)))
        assert (await other).error is None
        assert (arrays[1] == numbers(LITTLE)).all()
        assert scene.engine(0).links[1].resumed == 1

    scene.run(main)


def test_what_the_socket_had_not_taken_is_copied_too() -> None:
    scene = Scene(2, segment_bytes=SEGMENT_BYTES, pipe_bytes=SEGMENT_BYTES // 2)

    async def main() -> None:
        arrays = [numbers(LITTLE), np.zeros_like(numbers(LITTLE))]
        root, other = begin(scene, LITTLE, arrays)
        assert (await root).error is None
        assert scene.engine(0).links[1].connection.channel.backlog_bytes
        arrays[0].fill(-1)
        assert (await other).error is None
        assert (arrays[1] == numbers(LITTLE)).all()

    scene.run(main)


def test_on_one_host_the_ack_is_waited_for() -> None:
    scene = Scene(2, segment_bytes=SEGMENT_BYTES)

    async def main() -> None:
        for rank in range(2):
            scene.engine(rank).links[1 - rank].far = False
        arrays = [numbers(LITTLE), np.zeros_like(numbers(LITTLE))]
        root, other = await scene.all(begin(scene, LITTLE, arrays))
        assert root.error is None
        assert root.at == other.at + DELAY_S

    scene.run(main)
