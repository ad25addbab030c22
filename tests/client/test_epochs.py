"""agree, reform and newcomers: what the communicator is before, during and after a reform."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ringd_client
from ringd.errors import (
    CommunicatorClosedError,
    DaemonLostError,
    InvalidArgumentError,
    MembershipChangedError,
    PeerLostError,
    QuorumLostError,
    RingdError,
)
from ringd.vocabulary import OpSpec, agree_spec
from ringd.wire import ipc
from ringd_client import AsyncCommunicator, Communicator, Reform
from ringd_client._operation import GRACE_S
from tests.client.conftest import eventually
from tests.client.stub_cluster import Cluster
from tests.client.stub_daemon import StubDaemon

NEXT: dict[str, Any] = {
    "rank": 2,
    "world_size": 5,
    "ranks": [0, 3, 1, 7, 4],
    "lost": [2],
    "joined": [7, 4],
    "completed_by_all": 8,
    "completed_by_any": 11,
    "agreed": True,
}
REFORMED = Reform(5, 2, 5, (0, 3, 1, 7, 4), (2,), (7, 4), 8, 11, True)


def gathered(comm: Communicator) -> list[float]:
    """What an all_gather gives now: its region depends on rank and size."""
    output = np.empty(comm.world_size)
    comm.all_gather(output, np.array([-1.0]))
    return [float(x) for x in output]


# ------------------------------------------------------------ agree


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_agree_is_true_where_all_say_so(new_cluster: Callable[[int], Cluster], n: int) -> None:
    def program(comm: Communicator) -> list[bool]:
        said = [comm.agree(comm.rank != refuser) for refuser in range(-1, n)]
        handles = [comm.agree_async(comm.rank != refuser) for refuser in range(-1, n)]
        return said + [handle.wait() for handle in reversed(handles)]

    cluster = new_cluster(n)
    for said in cluster.run(program):
        assert said == [True, *[False] * n, *[False] * n, True]
        assert {type(word) for word in said} == {bool}
    assert set(cluster.performed) == {agree_spec(0)}


def test_agree_of_the_asyncio_twin(new_cluster: Callable[[int], Cluster]) -> None:
    async def program(comm: AsyncCommunicator) -> list[bool]:
        handles = [comm.agree(comm.rank != 1), comm.agree_async(True)]
        return [await handle for handle in handles]

    assert asyncio.run(new_cluster(3).run_async(program)) == [[False, True]] * 3


@pytest.mark.parametrize("flag", [1, None, "yes", np.bool_(True)])
def test_agree_takes_a_bool_and_takes_its_place_if_it_does_not(
    comm: Communicator, daemon: StubDaemon, flag: Any
) -> None:
    with pytest.raises(InvalidArgumentError, match="flag is True or False"):
        comm.agree(flag)
    assert comm.agree(True)
    assert [spec for spec, _ in daemon.poisons] == [OpSpec("agree", "", "", ())]


def test_an_agree_that_failed_gives_no_answer(comm: Communicator, daemon: StubDaemon) -> None:
    daemon.script = lambda submitted: PeerLostError("rank 2 is lost", rank=2)
    with pytest.raises(PeerLostError):
        comm.agree(True)
    handle = comm.agree_async(True)
    with pytest.raises(PeerLostError):
        handle.wait()


# ------------------------------------------------------------ the next epoch


def test_reform_tells_who_is_there_and_the_communicator_has_its_new_place(
    comm: Communicator, daemon: StubDaemon
) -> None:
    assert (comm.rank, comm.world_size, comm.ranks, comm.epoch) == (1, 3, (0, 1, 2), 4)
    assert gathered(comm) == [0.0, -1.0, 200.0]
    daemon.next_place = NEXT
    assert comm.reform(min_size=2, timeout_s=9) == REFORMED
    [wish] = daemon.reforms
    assert 0 < wish.pop("deadline") - time.monotonic() <= 9
    assert wish == {"min_size": 2, "timeout_s": 9.0, "epoch": 4, "heard": 0}
    assert (comm.rank, comm.world_size, comm.epoch) == (2, 5, 5)
    assert comm.ranks == (0, 3, 1, 7, 4)
    assert repr(comm) == "<Communicator rank 2 of 5 (started as ranks 0, 3, 1, 7, 4), epoch 5>"
    assert gathered(comm) == [0.0, 100.0, -1.0, 300.0, 400.0]
    daemon.next_place = {**NEXT, "rank": 0, "world_size": 1, "ranks": [1], "agreed": None}
    assert comm.reform().agreed is None
    assert gathered(comm) == [-1.0]


def test_the_asyncio_twin_goes_on_too(daemon: StubDaemon) -> None:
    async def main() -> None:
        async with await ringd_client.connect_async(socket=daemon.path, timeout_s=5) as comm:
            daemon.newcomers = [7, 4]
            assert await comm.newcomers() == (7, 4)
            daemon.next_place = NEXT
            assert await comm.reform(min_size=2, timeout_s=9) == REFORMED
            assert (comm.rank, comm.world_size, comm.epoch) == (2, 5, 5)
            output = np.empty(5)
            await comm.all_gather(output, np.array([-1.0]))
            assert output.tolist() == [0.0, 100.0, -1.0, 300.0, 400.0]

    asyncio.run(main())


def test_operations_in_flight_end_and_ordinary_tensors_are_untouched(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda submitted: "hold"
    tensor = np.arange(4.0)
    handle, answer = comm.all_reduce_async(tensor), comm.agree_async(True)
    eventually(lambda: len(daemon.held) == 2)
    daemon.script = lambda submitted: None
    comm.reform()
    for one in (handle, answer):
        with pytest.raises(MembershipChangedError, match="epoch 4 is over"):
            one.wait()
    assert tensor.tolist() == [0, 1, 2, 3]
    assert gathered(comm) == [0.0, -1.0, 200.0]


def test_shared_memory_stays_what_it_was(comm: Communicator, daemon: StubDaemon) -> None:
    tensor = comm.empty(1000, "float64", like="numpy")
    tensor[:] = 3
    comm.reform()
    assert (tensor == 3).all()
    comm.all_reduce(tensor)
    assert (tensor == 9).all()
    assert [m[0] for m in daemon.log].count(ipc.SEGMENT) == 1
    more = comm.empty(10)
    assert more.shape == (10,)


def test_groups_are_closed_and_say_why(comm: Communicator, daemon: StubDaemon) -> None:
    group = comm.new_group([0, 1])
    assert group is not None
    group.barrier()
    comm.reform()
    assert group.closed
    assert not comm.closed
    again = comm.new_group([1, 2])
    assert again is not None
    assert again.group == group.group  # numbers begin anew in each epoch
    with pytest.raises(CommunicatorClosedError, match="ended with epoch 4, which reform"):
        group.all_reduce(np.ones(1))
    with pytest.raises(CommunicatorClosedError, match="ended with epoch 4"):
        group.all_gather_object(1)
    group.close()
    again.barrier()  # answered in the order of what was sent
    assert daemon.freed == []
    again.close()
    comm.barrier()
    assert daemon.freed == [again.group]


# ------------------------------------------------------------ a reform that fails


def test_after_a_failure_only_another_reform_is_possible(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.no_reform = QuorumLostError("only rank 1 came", epoch=4, here=[1], missing=[0, 2])
    with pytest.raises(QuorumLostError) as caught:
        comm.reform()
    assert caught.value.fields["missing"] == [0, 2]
    assert (comm.epoch, comm.world_size) == (4, 3)
    submitted = len(daemon.submitted)
    for call in (comm.barrier, lambda: comm.isend(np.ones(1), 0), lambda: comm.agree(True)):
        with pytest.raises(MembershipChangedError, match=r"call reform\(\)"):
            call()
    with pytest.raises(MembershipChangedError), comm.coalesce():
        pass
    assert len(daemon.submitted) == submitted
    assert comm.newcomers() == ()
    assert comm.status()["rank"] == 1
    daemon.no_reform = None
    assert comm.reform().epoch == 5
    assert gathered(comm) == [0.0, -1.0, 200.0]


def test_the_client_keeps_its_own_clock_and_may_ask_again(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.no_reform = "mute"
    began = time.monotonic()
    with pytest.raises(DaemonLostError, match="reform: no answer from the daemon"):
        comm.reform(timeout_s=0.2)
    assert time.monotonic() - began >= 0.2 + GRACE_S
    with pytest.raises(MembershipChangedError):
        comm.barrier()
    daemon.answer_reform(1)  # too late: nobody waits for it
    comm.status()
    assert comm.epoch == 4
    with pytest.raises(MembershipChangedError, match=r"Call reform\(\) to learn of epoch 5"):
        comm.barrier()
    assert daemon.submitted == []
    daemon.no_reform = None
    assert comm.reform().epoch == 5
    comm.barrier()
    assert comm.reform().epoch == 6


@pytest.mark.parametrize("called", [0, 1, 2])
def test_what_is_told_of_an_agreement_is_what_the_program_lacks(
    comm: Communicator, daemon: StubDaemon, called: int
) -> None:
    """With handles it has the answer when it has waited; agreements of groups are no matter."""
    group = comm.new_group([0, 1])
    assert group is not None
    assert comm.agree(True)
    first, last = comm.agree_async(True), comm.agree_async(True)
    for handle in (last, first)[:called]:
        assert handle.wait()
    assert group.agree(True)
    daemon.agreement = max(s.request for s in daemon.submitted if not s.spec.group), True
    assert comm.reform().agreed is (None if called else True)
    assert comm.reform().agreed is None


def test_a_cancelled_reform_may_be_called_again(daemon: StubDaemon) -> None:
    async def main() -> None:
        async with await ringd_client.connect_async(socket=daemon.path, timeout_s=5) as comm:
            daemon.no_reform = "mute"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(comm.reform(timeout_s=20), 0.05)
            with pytest.raises(MembershipChangedError):
                comm.barrier()
            daemon.no_reform = None
            assert (await comm.reform()).epoch == 5
            await comm.barrier()

    asyncio.run(main())


@pytest.mark.parametrize(
    "place",
    [
        {"rank": 5},
        {"ranks": [0, 1]},
        {"lost": None},
        {"completed_by_all": "many"},
        {"epoch": None, "world_size": "3"},
    ],
)
def test_an_answer_that_makes_no_sense_is_the_daemons_error(
    comm: Communicator, daemon: StubDaemon, place: dict[str, Any]
) -> None:
    daemon.next_place = place
    daemon.answer_reform = lambda request: daemon.send(  # type: ignore[method-assign]
        ipc.DONE, request, None, {**NEXT, "epoch": 5, **place}
    )
    with pytest.raises(DaemonLostError, match="reform can't be read"):
        comm.reform()
    with pytest.raises(MembershipChangedError):
        comm.barrier()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"min_size": 0}, "min_size is a number of ranks"),
        ({"min_size": True}, "min_size is a number of ranks"),
        ({"min_size": 1.5}, "min_size is a number of ranks"),
        ({"timeout_s": 0}, "timeout_s is a positive number"),
        ({"timeout_s": "soon"}, "timeout_s is a positive number"),
    ],
)
def test_a_bad_argument_asks_nothing_and_the_epoch_goes_on(
    comm: Communicator, daemon: StubDaemon, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        comm.reform(**arguments)
    comm.barrier()
    assert daemon.reforms == []
    assert daemon.poisons == []


def test_it_is_for_the_world_and_not_for_a_block(comm: Communicator, daemon: StubDaemon) -> None:
    with comm.new_group([0, 1]) as group:
        for call in (group.reform, group.newcomers):
            with pytest.raises(InvalidArgumentError, match="the world's communicator"):
                call()
    for name in ("reform", "newcomers"):
        with pytest.raises(InvalidArgumentError, match=f"{name} can't"), comm.coalesce():
            getattr(comm, name)()
    assert daemon.reforms == []


def test_more_operations_than_the_limit_do_not_keep_it_from_asking(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda submitted: "hold"
    comm._state.max_in_flight = 3
    handles = [comm.barrier_async() for _ in range(3)]
    eventually(lambda: len(daemon.held) == 3)
    assert comm.reform().epoch == 5
    assert all(isinstance(h.exception() or _ended(h), MembershipChangedError) for h in handles)


def _ended(handle: Any) -> RingdError | None:
    with pytest.raises(RingdError):
        handle.wait()
    return handle.exception()


def test_a_closed_communicator_does_not_reform(daemon: StubDaemon) -> None:
    comm = ringd_client.connect(socket=daemon.path, timeout_s=5)
    comm.close()
    with pytest.raises(CommunicatorClosedError):
        comm.reform()


# ------------------------------------------------------------ other threads


def test_a_call_of_another_thread_during_a_reform_raises(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.no_reform = "mute"
    with ThreadPoolExecutor(1) as pool:
        reforming = pool.submit(comm.reform, timeout_s=20)
        eventually(lambda: daemon.reforms)
        with pytest.raises(MembershipChangedError, match="when it has returned"):
            comm.barrier()
        with pytest.raises(InvalidArgumentError, match="another reform"):
            comm.reform()
        request = max(comm._state.pending)
        daemon.answer_reform(request)
        assert reforming.result(10).epoch == 5
    comm.barrier()
    assert [call.spec.collective for call in daemon.submitted] == ["barrier"]


def test_what_was_prepared_in_one_epoch_is_not_posted_in_the_next(
    comm: Communicator, daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread has the region of its call ready, and the epoch changes before it posts."""
    ready, changed = threading.Event(), threading.Event()
    post = comm._connection.post

    def slow_post(operation: Any) -> None:
        if operation.spec != "reform" and threading.current_thread() is not threading.main_thread():
            ready.set()
            assert changed.wait(10)
        post(operation)

    monkeypatch.setattr(comm._connection, "post", slow_post)
    daemon.next_place = NEXT
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(gathered, comm)
        assert ready.wait(10)
        comm.reform()
        changed.set()
        with pytest.raises(MembershipChangedError, match="epoch 4.*in epoch 5"):
            late.result(10)
    assert daemon.submitted == []
    assert len(gathered(comm)) == 5


def test_a_block_that_spans_a_reform_posts_nothing(comm: Communicator, daemon: StubDaemon) -> None:
    with ThreadPoolExecutor(1) as pool:

        def program() -> None:
            with comm.coalesce():
                comm.all_gather(np.empty(3), np.ones(1))
                daemon.next_place = NEXT
                pool.submit(comm.reform).result(10)

        with pytest.raises(MembershipChangedError, match="epoch 4"):
            program()
    assert daemon.submitted == []
    assert len(gathered(comm)) == 5


def test_a_call_of_several_operations_does_not_go_on_in_the_next_epoch(
    comm: Communicator, daemon: StubDaemon
) -> None:
    from ringd_client import _groups as groups

    steps = groups.split(comm, 0, 0, None, None)
    first = next(steps)
    comm._connection.post(first)
    comm._connection.finish(first)
    comm.reform()
    second = next(steps)
    with pytest.raises(MembershipChangedError, match="epoch 4"):
        comm._connection.post(second)
    assert [call.spec.collective for call in daemon.submitted] == ["all_gather"]


def test_a_welcome_without_ranks_has_all_of_them_in_order(comm: Communicator) -> None:
    assert comm.ranks == (0, 1, 2)
    assert comm.newcomers() == ()
