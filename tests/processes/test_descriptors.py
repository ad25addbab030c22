"""A rank that runs out of file descriptors, or memory, is named; the others go on with it."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.harness import Daemons
from tests.processes.programs import basics, calls, messages

Make = Callable[..., Daemons]
PLAIN = [{"shape": [3]}]


@contextlib.contextmanager
def no_descriptor_left(pid: int) -> Iterator[int]:
    """While this lasts, a process can open nothing; its limit."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
    limit = min(set(range(len(taken) + 1)) - taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield limit
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def is_whole(group: Daemons) -> None:
    """The next call is an ordinary one."""
    for told in group.do(calls.sequence, calls=PLAIN):
        assert told[0]["error"] is None, told


@pytest.mark.parametrize("victim", [0, 1])
def test_a_daemon_that_can_map_no_memory_is_named_by_all_and_works_again_with_descriptors(
    daemons: Make, victim: int
) -> None:
    group = daemons(3)
    group.connect()
    with no_descriptor_left(group.daemon_pid(victim)) as limit:
        told = [ends[0] for ends in group.do(calls.sequence, calls=PLAIN)]
    text = f"rank {victim}'s daemon is out of file descriptors (limit {limit}): raise `ulimit -n`"
    for rank, end in enumerate(told):
        expected = "ResourceError" if rank == victim else "CollectiveMismatchError"
        assert end["error"] == expected, end
        assert end["retry"] == "same_epoch"
        assert text in end["text"]
        if rank == victim:
            assert (end["fields"]["rank"], end["fields"]["limit"]) == (victim, limit)
        else:
            assert end["fields"]["ranks"] == [victim]
    is_whole(group)


def test_a_trainer_that_its_daemon_has_no_descriptor_for_hears_whose_it_is(daemons: Make) -> None:
    group = daemons(2)
    trainer = group.trainer(1)
    trainer.do(basics.disconnect)  # it is up
    with no_descriptor_left(group.daemon_pid(1)) as limit:
        for _ in range(2):
            told = trainer.do(basics.try_connect, timeout_s=30.0)
            assert told["error"] == "ResourceError", told
            assert told["fields"]["rank"] == 1
            assert f"rank 1's daemon is out of file descriptors (limit {limit})" in told["text"]
    group.connect()
    is_whole(group)


def test_a_trainer_without_descriptors_says_so_of_itself(daemons: Make) -> None:
    group = daemons(2)
    trainer = group.trainer(1)
    trainer.do(basics.disconnect)
    with no_descriptor_left(trainer.pid) as limit:
        told = trainer.do(basics.try_connect, timeout_s=30.0)
    assert told["error"] == "ResourceError", told
    words = f"(process {trainer.pid}) is out of file descriptors (limit {limit}): raise `ulimit -n`"
    assert words in told["text"]
    group.connect()
    is_whole(group)  # all that is loaded for a call is there
    with no_descriptor_left(trainer.pid) as limit:
        told = group.do(calls.sequence, calls=[{"shape": [1 << 20]}])[1][0]
    assert told["error"] == "ResourceError", told
    assert f"rank 1's trainer {words.partition(' is')[0]}" in told["text"]
    assert f"(limit {limit})" in told["text"]
    is_whole(group)


CALLS = (
    {"shape": [1 << 20]},
    {"collective": "all_gather", "shape": [1 << 19]},
    {"collective": "broadcast", "shape": [1 << 20], "root": 0},
)


def test_a_call_for_which_a_trainer_has_no_descriptor_is_void_on_all(daemons: Make) -> None:
    group = daemons(3)
    group.connect()
    is_whole(group)
    pid = group.trainer(1).pid
    with no_descriptor_left(pid) as limit:
        told = group.do(calls.sequence, calls=[*CALLS, *PLAIN])
    text = f"(process {pid}) is out of file descriptors (limit {limit}): raise `ulimit -n`"
    for rank, ends in enumerate(told):
        for end in ends[: len(CALLS)]:
            assert end["error"] == ("ResourceError" if rank == 1 else "CollectiveMismatchError"), (
                end
            )
            assert f"rank 1's trainer {text}" in end["text"]
            assert rank == 1 or end["fields"]["ranks"] == [1]
        assert ends[-1]["error"] is None, "what needs no more memory works"
    is_whole(group)


@contextlib.contextmanager
def no_memory_left(pid: int, but_bytes: int) -> Iterator[None]:
    """While this lasts, a process has that much more to itself."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    limit_bytes = pages * resource.getpagesize() + but_bytes
    resource.prlimit(pid, resource.RLIMIT_AS, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))


def test_a_call_for_which_a_trainer_has_no_memory_is_void_on_all(daemons: Make) -> None:
    group = daemons(3)
    group.connect()
    is_whole(group)
    tensor_bytes = 64 << 20  # more than what malloc would keep for later
    with no_memory_left(group.trainer(1).pid, tensor_bytes * 3 // 2):
        told = group.do(calls.sums, sizes=[tensor_bytes // 4, 3])
    text = f"rank 1's trainer (process {group.trainer(1).pid}) is out of memory"
    for rank, (end, last) in enumerate(told):
        assert end["error"] == ("ResourceError" if rank == 1 else "CollectiveMismatchError"), end
        assert end["retry"] == "same_epoch"
        assert text in end["text"]
        assert rank == 1 or end["fields"]["ranks"] == [1]
        assert (last["error"], last["value"]) == (None, [6.0, 6.0]), "the group stands"
    for ends in group.do(calls.sums, sizes=[tensor_bytes // 4]):
        assert (ends[0]["error"], ends[0]["value"]) == (None, [6.0, 6.0])


FIRST = ("agree", "agree_async", "new_group", "all_gather_object", "sync_state", "coalesce")


@pytest.mark.parametrize("name", FIRST)
def test_the_first_call_of_a_trainer_without_descriptors_is_void_on_all(
    daemons: Make, name: str
) -> None:
    group = daemons(2)
    group.connect()
    group.do(calls.of_any_kind, name="none")  # the program is loaded, and no shared memory is there
    with no_descriptor_left(group.trainer(1).pid):
        told = group.do(calls.of_any_kind, name=name)
    assert [end["error"] for end in told] == ["CollectiveMismatchError", "ResourceError"]
    assert "is out of file descriptors" in told[0]["text"]
    assert told[0]["fields"]["ranks"] == [1]
    is_whole(group)


def test_a_library_that_can_not_be_loaded_for_want_of_descriptors_is_a_resource_error(
    daemons: Make,
) -> None:
    group = daemons(2)
    group.connect()
    group.do(calls.of_any_kind, name="none")  # the program is loaded, and torch is not
    with no_descriptor_left(group.trainer(1).pid) as limit:
        told = group.do(calls.of_any_kind, name="empty")
    assert [end["error"] for end in told] == [None, "ResourceError"], told
    assert f"is out of file descriptors (limit {limit})" in told[1]["text"]
    is_whole(group)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_a_daemon_that_can_make_no_link_is_named_by_the_verdict(daemons: Make, victim: int) -> None:
    """Ranks 0 and 2 of 4 are no neighbours: their link is made at the first small all_reduce."""
    group = daemons(4)
    group.connect()
    for neighbours in ([0, 1], [2, 3]):  # shared memory is there
        group.do(messages.between, ranks=neighbours)
    with no_descriptor_left(group.daemon_pid(victim)) as limit:
        told = [ends[0] for ends in group.do(calls.sequence, calls=PLAIN)]
    words = f"rank {victim}'s daemon is out of file descriptors (limit {limit}): raise `ulimit -n`"
    for end in told:
        assert end["error"] == "PeerLostError", told
        assert end["fields"]["rank"] == victim, told
        assert words in end["text"]
