"""What an error says of the deadline that ended a call: what was asked for, where, and by whom."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from ringd.engine.failures import lasted
from ringd.engine.operation import Operation
from ringd.engine.times import OTHERS_S, Times
from ringd.errors import CollectiveTimeoutError, RingdError
from ringd.vocabulary import RECV, OpSpec
from ringd.wire.bounds import OF_CALL, OF_COMMUNICATOR, OF_DAEMON, Bound, checked_bound, words
from tests.engine.scene import ALL_REDUCE, TICK_S, VERDICT_S, Scene

EXCHANGE = replace(ALL_REDUCE, algorithm="exchange")
SETTINGS = [
    (Bound(2.3456789), "timeout_s", "its deadline of 2.3456789 s (timeout_s of the call)"),
    (
        Bound(2.5, OF_COMMUNICATOR),
        "default_timeout_s",
        "its deadline of 2.5 s (default_timeout_s of the communicator)",
    ),
    (
        Bound(3, OF_DAEMON),
        "RINGD_TIMEOUT_S",
        "its deadline of 3 s (the daemon's timeout_s (--timeout, RINGD_TIMEOUT_S))",
    ),
]


async def fails(
    scene: Scene, rank: int, spec: OpSpec, bound: Bound | None, **options: float
) -> RingdError:
    """The error of a call that is posted a little after it began."""
    ended: asyncio.Future[RingdError | None] = scene.loop.create_future()
    array = np.ones(spec.count, spec.dtype)
    view = memoryview(array).cast("B")
    local = 7 if spec.collective == RECV else None
    scene.engine(rank).submit(
        spec.packed,
        lambda size: view[:size],
        lambda error, _: ended.set_result(error),
        local=local,
        bound=bound,
        **options,
    )
    error = await ended
    assert isinstance(error, CollectiveTimeoutError)
    return error


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize(("bound", "setting", "text"), SETTINGS)
def test_the_time_is_the_one_that_was_asked_for_and_the_setting_is_named(
    bound: Bound, setting: str, text: str, reachable: bool
) -> None:
    scene = Scene(3)

    async def main() -> None:
        if not reachable:
            await scene.cluster.stop_rendezvous()
        left_s = bound.timeout_s - 0.0123
        error = await fails(scene, 0, EXCHANGE, bound, timeout_s=left_s)
        assert f"ended at {text}: " in str(error)
        assert f"f it is only slow, raise {words(setting)}." in str(error)
        assert error.fields["setting"] == setting

    scene.run(main)


@pytest.mark.parametrize(("bound", "setting", "text"), SETTINGS)
def test_a_message_says_the_same(bound: Bound, setting: str, text: str) -> None:
    scene = Scene(2)

    async def main() -> None:
        spec = OpSpec(RECV, "float32", "", (4,), root=1)
        error = await fails(scene, 0, spec, bound, timeout_s=bound.timeout_s - 0.0123)
        assert f" ended at {text}, after " in str(error)
        assert str(error).endswith(f"If it is only slow, raise {words(setting)}.")
        assert error.fields["setting"] == setting

    scene.run(main)


@pytest.mark.parametrize(
    ("elapsed_s", "asked_s", "text"),
    [
        (2.96, 3.0, "3.00 s"),
        (2.92, 3.0, "3.00 s"),
        (2.0, 3.0, "2.00 s"),  # another rank's deadline was earlier
        (3.04, 3.0, "3.04 s"),
        (0.5, 0.0, "0.50 s"),
    ],
)
def test_no_call_reads_as_if_it_had_ended_before_its_deadline(
    elapsed_s: float, asked_s: float, text: str
) -> None:
    assert lasted(elapsed_s, asked_s) == text


def test_the_daemons_own_defaults_are_named_as_such() -> None:
    scene = Scene(3, timeout_s=1.5, recv_timeout_s=0.0)

    async def main() -> None:
        error = await fails(scene, 0, EXCHANGE, None)
        whose = "the daemon's timeout_s (--timeout, RINGD_TIMEOUT_S)"
        assert f"its deadline of 1.5 s ({whose})" in str(error)

    scene.run(main)
    scene = Scene(3, recv_timeout_s=0.5)

    async def silence() -> None:
        error = await fails(scene, 0, EXCHANGE, None)
        assert "500 ms without a byte (the daemon's recv_timeout_ms" in str(error)
        assert error.fields["setting"] == "RINGD_RECV_TIMEOUT_MS"

    scene.run(silence)


async def under_way(scene: Scene, *timeouts_s: float) -> Operation:
    """Rank 0's operation, when the first ranks have called with these deadlines, and not all."""
    for rank, timeout_s in enumerate(timeouts_s):
        scene.call(rank, EXCHANGE, timeout_s=timeout_s)
    await asyncio.sleep(0.5)
    (op,) = scene.engine(0).live
    assert isinstance(op, Operation)
    return op


def test_whose_deadline_it_was_is_told_by_that_rank_even_if_others_hear_of_it_first() -> None:
    """The deadline of rank 1 travels in whole milliseconds, so others would be a little early."""
    scene = Scene(4)

    async def main() -> None:
        futures = [scene.call(r, EXCHANGE, timeout_s=60.0) for r in (0, 2)]
        futures.append(scene.call(1, EXCHANGE, timeout_s=1.0005))
        for one in await scene.all(futures):
            assert "ended at its deadline of 1.0005 s (timeout_s of the call): " in str(one.error)
            assert one.took_s <= 1.0005 + TICK_S + VERDICT_S

    scene.run(main)


def test_what_is_told_back_again_and_again_does_not_shorten_a_deadline() -> None:
    """Each sign of life carries what is left, a little less than is true, and is answered."""
    scene = Scene(3)

    async def main() -> None:
        op = await under_way(scene, 5.0, 5.0)
        before = op.deadline
        for _ in range(100):
            op.bound_deadline(op.deadline - 0.002, 1)
        assert (op.deadline, op.due, op.bounded_by) == (before, before, -1)
        op.bound_deadline(before - 1.0, 1)
        assert (op.deadline, op.bounded_by) == (before - 1.0, 1)

    scene.run(main)


def test_a_deadline_of_a_rank_that_can_not_say_so_is_told_as_that_ranks() -> None:
    scene = Scene(3)

    async def main() -> None:
        call = scene.call(0, EXCHANGE, timeout_s=60.0)
        scene.call(1, EXCHANGE, timeout_s=1.0)
        await asyncio.sleep(0.5)
        for other in (scene.host(0), scene.host(2), "rendezvous"):
            scene.network.cut(scene.host(1), other)
        one = await call
        assert "ended at the deadline of rank 1: " in str(one.error)
        assert one.took_s <= 1.0 + OTHERS_S + 2 * TICK_S + VERDICT_S + 0.2  # rank 1 is not heard

    scene.run(main)


def test_an_operation_that_has_begun_knows_the_first_of_all_deadlines() -> None:
    scene = Scene(3)

    async def main() -> None:
        op = await under_way(scene, 5.0, 3.0)
        assert op.bounded_by == 1
        assert op.due - op.deadline == pytest.approx(OTHERS_S)
        (other,) = scene.engine(1).live
        assert (other.bounded_by, other.due) == (-1, other.deadline)

    scene.run(main)


def test_times_of_a_call_have_the_defaults_of_the_options() -> None:
    scene = Scene(2, timeout_s=9.0, recv_timeout_s=0.5)

    async def main() -> None:
        scene.call(0, timeout_s=0.0)
        scene.call(0, timeout_s=1.5, recv_timeout_s=0.25, bound=Bound(2.0, OF_COMMUNICATOR))
        usual, own = scene.engine(0).live
        assert usual.times == Times(9.0, 0.5, "RINGD_TIMEOUT_S", "RINGD_RECV_TIMEOUT_MS")
        assert usual.deadline - usual.started == 9.0
        assert own.times == Times(2.0, 0.25, "default_timeout_s", "recv_timeout_ms")
        assert own.deadline - own.started == 1.5
        scene.trainer(0).die()

    scene.run(main)


@pytest.mark.parametrize(
    "value", [None, [], [1.0], [0, 1], [-1.0, 0], [1.0, 3], ["1", 0], {}, [1.0, 0, 0]]
)
def test_what_is_no_bound_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="a bound is"):
        checked_bound(value)


def test_a_bound_comes_as_it_was_sent() -> None:
    assert checked_bound([2.5, OF_DAEMON]) == Bound(2.5, OF_DAEMON)
    assert checked_bound([3, OF_CALL]) == Bound(3.0, OF_CALL)
