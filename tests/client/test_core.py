"""The conversation without I/O: requests become datagrams, datagrams become answers."""

from __future__ import annotations

from typing import Any

import pytest

from ringd.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    CommunicatorClosedError,
    DaemonLostError,
    InvalidArgumentError,
    MembershipChangedError,
    PeerLostError,
    RingdError,
    TooManyOperationsError,
)
from ringd.vocabulary import OpSpec
from ringd.wire import ipc
from ringd.wire.bounds import OF_COMMUNICATOR, OF_DAEMON, Bound
from ringd_client._core import MAX_IN_FLIGHT, ClientState
from ringd_client._operation import Operation, Question
from ringd_client._peer import STARVED, STOPPED, Peer


class Settled:
    """Counts what a settlement would do."""

    result_bytes = 0

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[bool] = []
        self.error = error

    def linger(self, operation: Operation[Any]) -> bool:
        return False

    def settle(self, write: bool) -> None:
        self.calls.append(write)
        if self.error is not None:
            raise self.error


def new_operation(settled: Settled | None = None) -> Operation[Any]:
    return Operation("all_reduce", b"spec", 3, 4096, settled)


def submitted(state: ClientState, settled: Settled | None = None) -> Operation[Any]:
    operation = new_operation(settled)
    state.submit(operation)
    return operation


def done(
    operation: Operation[Any], error: RingdError | None = None, result: int | None = None
) -> bytes:
    told = None if error is None else error.to_wire()
    return ipc.pack(ipc.DONE, operation.request, told, result)


def test_a_submission_is_the_message_of_the_protocol() -> None:
    state = ClientState(rank=0)
    operation = new_operation()
    operation.recv_timeout_s = 0.5
    operation.local = (1, 2)
    operation.began, operation.bound = 1000.5, Bound(20.0, OF_COMMUNICATOR)
    expected = [ipc.SUBMIT, 1, b"spec", 1020.5, 0.5, 3, 4096, [1, 2], [20.0, 1]]
    assert ipc.unpack(state.submit(operation)) == expected
    error = InvalidArgumentError("no")
    assert ipc.unpack(state.poison(b"bad", error)) == [ipc.POISON, 2, b"bad", error.to_wire()]
    assert list(state.pending) == [1]  # nobody answers a poison
    assert ipc.unpack(state.ask_status(new_operation(), "group")) == [ipc.STATUS, 3, "group"]


def test_operations_may_be_answered_in_any_order() -> None:
    state = ClientState(rank=0)
    first, second = submitted(state), submitted(state)
    assert state.receive(done(second)) == (second,)
    assert (first.answered, second.answered) == (False, True)
    assert state.receive(done(first)) == (first,)
    assert not state.pending


def test_the_result_of_a_success_is_what_a_wait_returns() -> None:
    state = ClientState(rank=0)
    received, moved, failed = submitted(state), submitted(state), submitted(state)
    for operation in (received, moved, failed):
        operation.output = "as called"
    state.receive(done(received, result=4))
    state.receive(done(moved))
    state.receive(done(failed, CollectiveMismatchError("differs"), result=4))
    outputs = [operation.output for operation in (received, moved, failed)]
    assert outputs == [4, "as called", "as called"]


def test_a_group_is_open_until_it_is_closed() -> None:
    state = ClientState(rank=0)
    with pytest.raises(CommunicatorClosedError, match="group 3"):
        state.admit(3)
    state.open_group(3, 0)
    state.admit(3)
    assert state.close_group(3, 0)
    assert not state.close_group(3, 0)
    with pytest.raises(CommunicatorClosedError):
        state.admit(3)


def test_the_highest_number_of_a_group_counts_until_the_next_epoch() -> None:
    state = ClientState(rank=0, epoch=1)
    state.open_group(7, 1)
    state.open_group(4, 1)
    state.close_group(7, 1)
    assert state.highest_group == 7
    state.prepare_epoch(2, 16)
    assert state.highest_group == 0


def test_to_open_a_group_is_a_question_with_its_number_and_members() -> None:
    state = ClientState(rank=0)
    question = Question("open a group", ipc.OPEN_GROUP, 3, (2, 0))
    assert ipc.unpack(state.submit(question)) == [ipc.OPEN_GROUP, 1, 3, [2, 0]]
    assert state.receive(done(question)) == (question,)


def test_a_watcher_is_called_once_whenever_an_operation_finishes() -> None:
    told: list[str] = []
    state = ClientState(rank=0)
    answered, late, given_up = (submitted(state) for _ in range(3))
    answered.when_finished(lambda: told.append("answered"))
    given_up.when_finished(lambda: told.append("given up"))
    state.receive(done(answered))
    assert told == []  # answered, but the result is not written
    answered.settle()
    given_up.give_up(RingdError("enough"))
    state.receive(done(given_up))
    given_up.settle()
    assert told == ["answered", "given up"]
    state.receive(done(late))
    late.settle()
    late.when_finished(lambda: told.append("late"))
    assert told == ["answered", "given up", "late"]


def test_room_for_several_operations_is_asked_for_at_once() -> None:
    state = ClientState(rank=0, max_in_flight=5)
    submitted(state)
    state.admit(count=4)
    with pytest.raises(TooManyOperationsError):
        state.admit(count=5)


def test_a_success_writes_and_a_failure_does_not() -> None:
    state = ClientState(rank=0)
    for error in (None, CollectiveMismatchError("differs", seq=3)):
        settled = Settled()
        operation = submitted(state, settled)
        state.receive(done(operation, error))
        operation.settle()
        operation.settle()
        assert settled.calls == [error is None]
        assert operation.finished
        assert type(operation.error) is type(error)
    assert operation.error is not None
    assert operation.error.fields == {"seq": 3}


def test_given_up_operations_keep_their_memory_until_the_answer_and_are_not_written() -> None:
    state = ClientState(rank=0)
    settled = Settled()
    operation = submitted(state, settled)
    assert operation.give_up(state.silent(operation, 9.0, Peer()))
    assert operation.finished
    assert settled.calls == []
    assert operation.request in state.pending
    state.receive(done(operation))
    operation.settle()
    assert settled.calls == [False]
    assert isinstance(operation.error, DaemonLostError)


SPEC = OpSpec("all_reduce", "float32", "sum", (3,), group=5)


@pytest.mark.parametrize(
    ("daemon", "words"),
    [
        (Peer(pid=77, state=STOPPED), ("process 77", "is stopped", "SIGCONT")),
        (Peer(pid=77, state=STARVED), ("process 77", "is alive", "overloaded", "RINGD_TIMEOUT_S")),
        (Peer(), ("process unknown", "can't be seen", "RINGD_TIMEOUT_S")),
    ],
)
def test_a_call_that_a_living_daemon_lets_pass_is_a_timeout_that_says_how_it_does(
    daemon: Peer, words: tuple[str, ...]
) -> None:
    state = ClientState(rank=2, epoch=4)
    operation: Operation[Any] = Operation(SPEC, b"spec")
    operation.begin(7.0, Bound(2.0, OF_DAEMON))
    operation.epoch = 4
    error = state.silent(operation, 9.25, daemon)
    assert isinstance(error, CollectiveTimeoutError)
    assert error.retry == "same_epoch"
    assert error.fields == {
        "op": "all_reduce",
        "group": 5,
        "epoch": 4,
        "rank": 2,
        "setting": "RINGD_TIMEOUT_S",
        "elapsed_s": 2.25,
        "timeout_s": 2.0,
        "partial": True,
        "daemon_pid": daemon.pid,
        "daemon_state": daemon.state,
    }
    for word in ("rank 2", "all_reduce", "2.250 s", ": 2 s", *words):
        assert word in str(error)


def test_a_call_whose_daemon_has_closed_its_end_and_a_question_are_no_timeouts() -> None:
    state = ClientState(rank=2)
    operation: Operation[Any] = Operation(SPEC, b"spec")
    assert isinstance(state.silent(operation, 9.0, Peer(gone=True)), DaemonLostError)
    question = Question("newcomers", ipc.NEWCOMERS)
    assert isinstance(state.silent(question, 9.0, Peer(pid=7, state=STARVED)), DaemonLostError)
    assert state.ended is None


def test_giving_up_comes_too_late_after_the_result() -> None:
    state = ClientState(rank=0)
    operation = submitted(state, Settled())
    state.receive(done(operation))
    operation.settle()
    assert not operation.give_up(RingdError("late"))
    assert operation.error is None


@pytest.mark.parametrize("failure", [ValueError("odd"), InvalidArgumentError("gone")])
def test_a_result_that_cant_be_written_is_an_error_of_the_operation(failure: Exception) -> None:
    state = ClientState(rank=0)
    operation = submitted(state, Settled(failure))
    state.receive(done(operation))
    operation.settle()
    assert isinstance(operation.error, RingdError)
    assert str(failure) in str(operation.error)


def test_an_interrupt_while_the_result_is_written_does_not_look_like_success() -> None:
    state = ClientState(rank=0)
    operation = submitted(state, Settled(KeyboardInterrupt()))
    state.receive(done(operation))
    with pytest.raises(KeyboardInterrupt):
        operation.settle()
    assert operation.finished
    assert operation.error is not None


def test_beyond_the_bound_nothing_is_posted() -> None:
    state = ClientState(rank=0)
    operations = [submitted(state) for _ in range(MAX_IN_FLIGHT)]
    with pytest.raises(TooManyOperationsError, match="1,024"):
        submitted(state)
    assert len(state.pending) == MAX_IN_FLIGHT
    state.receive(done(operations[5]))
    assert submitted(state).request == MAX_IN_FLIGHT + 1


@pytest.mark.parametrize(
    "error",
    [
        CollectiveMismatchError("differs"),
        PeerLostError("rank 2 is gone", rank=2),
        PeerLostError("rank 2 is gone", rank=2, group=3),
        DaemonLostError("rank 2 lost its daemon", rank=2),
        MembershipChangedError("the epoch is over"),
    ],
)
def test_an_error_of_one_operation_leaves_the_others_alone(error: RingdError) -> None:
    state = ClientState(rank=0)
    state.open_group(3, 0)
    first, second = submitted(state), submitted(state)
    assert state.receive(done(first, error)) == (first,)
    assert isinstance(first.answer, type(error))
    assert not second.over  # the daemon ends it, if it has to
    state.admit()
    state.admit(3)
    assert state.ended is None


@pytest.mark.parametrize(
    "last", [b"", ipc.pack(ipc.BYE), b"\xc1", b"\x93\x43", ipc.pack(ipc.DONE), ipc.pack("x")]
)
def test_the_end_of_the_daemon_and_garbage_end_everything(last: bytes) -> None:
    state = ClientState(rank=0)
    operations = submitted(state), submitted(state)
    assert state.receive(last) == operations
    for operation in operations:
        assert isinstance(operation.answer, DaemonLostError)
    assert operations[0].answer is not operations[1].answer
    with pytest.raises(DaemonLostError):
        state.admit()


def test_a_late_refusal_carries_its_own_error() -> None:
    state = ClientState(rank=0)
    operation = submitted(state)
    state.receive(ipc.pack(ipc.REFUSED, PeerLostError("told to go").to_wire()))
    assert isinstance(operation.answer, PeerLostError)


@pytest.mark.parametrize(
    "message", [(ipc.DONE, 77, None, None), (200, "?"), (ipc.STATUS_REPLY, 77, {})]
)
def test_unknown_messages_and_answers_to_nobody_are_passed_over(message: tuple[Any, ...]) -> None:
    state = ClientState(rank=0)
    operation = submitted(state)
    assert state.receive(ipc.pack(*message)) == ()
    assert not operation.over


def test_status_replies_are_states_or_errors() -> None:
    state = ClientState(rank=0)
    good, bad = new_operation(), new_operation()
    state.ask_status(good, "daemon")
    state.ask_status(bad, "daemon")
    state.receive(ipc.pack(ipc.STATUS_REPLY, good.request, {"rank": 3, "code": "fine"}))
    error = DaemonLostError("no coordinator").to_wire()
    state.receive(ipc.pack(ipc.STATUS_REPLY, bad.request, error))
    assert good.reply == {"rank": 3, "code": "fine"}
    assert good.answer is None
    assert isinstance(bad.answer, DaemonLostError)


def test_detached_operations_are_counted_until_they_are_answered() -> None:
    state = ClientState(rank=0)
    assert state.attended
    operation = new_operation()
    operation.detached = True
    state.submit(operation)
    assert not state.attended
    state.receive(done(operation))
    assert state.attended


def test_expired_are_those_that_are_late_and_not_over() -> None:
    state = ClientState(rank=0)
    late, early, given_up = submitted(state), submitted(state), submitted(state)
    late.expires, early.expires, given_up.expires = 5.0, 50.0, 5.0
    given_up.give_up(RingdError("x"))
    assert state.expired(10.0) == [late]
