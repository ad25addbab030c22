"""The daemon in a container beside its trainer's: what both can see of each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compose.stack import TOP, Stack, docker

pytestmark = [pytest.mark.compose, pytest.mark.timeout(300)]

TRAINERS = ("trainer0", "trainer1")
StackOf = Callable[..., Stack]
FILES = ("deploy/sidecar.yml", "tests/compose/sidecar_faults.yml")


@pytest.fixture
def apart(tmp_path: Path) -> tuple[str, str]:
    """The same files, with a pid namespace for each container."""
    lines = (TOP / FILES[0]).read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.strip().startswith("pid:")]
    assert len(lines) - len(kept) == 2
    (tmp_path / "apart.yml").write_text("".join(kept))
    return str(tmp_path / "apart.yml"), FILES[1]


def test_trainers_without_a_network_train_with_the_daemons_beside_them(stack_of: StackOf) -> None:
    stack = stack_of("deploy/sidecar.yml")
    stack.compose("up", "-d")
    assert stack.await_end(*TRAINERS) == dict.fromkeys(TRAINERS, 0)
    assert "after 440 steps" in stack.log("trainer0")
    assert stack.run_in("daemon0", "ringd", "status", "--local").returncode == 0  # it stays


def test_a_daemon_sees_what_a_trainer_in_its_pid_namespace_does(stack_of: StackOf) -> None:
    stack = stack_of(*FILES, LATE_RANK="1")
    stack.compose("up", "-d")
    told = stack.verdict("trainer0")
    assert told["code"] == "timeout"
    assert told["fields"]["culprits"] == [1]
    assert "in wait_for_ever" in str(told["fields"]["stacks"])


def test_a_trainer_that_is_stopped_is_called_stopped(stack_of: StackOf) -> None:
    assert case_of_a_stopped_trainer(stack_of(*FILES)) == "trainer stopped"


def test_with_pid_namespaces_apart_a_stopped_trainer_is_one_that_did_not_call(
    stack_of: StackOf, apart: tuple[str, str]
) -> None:
    assert case_of_a_stopped_trainer(stack_of(*apart)) == "never entered"


def case_of_a_stopped_trainer(stack: Stack) -> str:
    """What the verdict says of trainer 1, which is stopped."""
    stack.compose("up", "-d")
    stack.await_line("IN FULL SWING", *TRAINERS)
    # From here, since a process that is the first of its namespace can't be stopped from within.
    assert docker("kill", "--signal", "STOP", stack.container("trainer1")).returncode == 0
    told = stack.verdict("trainer0")
    assert told["code"] == "timeout"
    assert told["fields"]["culprits"] == [1]
    case: str = told["fields"]["case"]
    return case


def test_with_pid_namespaces_apart_a_late_trainer_is_named_without_its_stack(
    stack_of: StackOf, apart: tuple[str, str]
) -> None:
    stack = stack_of(*apart, LATE_RANK="1")
    stack.compose("up", "-d")
    told = stack.verdict("trainer0")
    assert told["code"] == "timeout"
    assert told["fields"]["culprits"] == [1]
    assert not told["fields"].get("stacks")


def test_with_pid_namespaces_apart_the_end_of_a_trainer_is_still_seen(
    stack_of: StackOf, apart: tuple[str, str]
) -> None:
    stack = stack_of(*apart)
    stack.compose("up", "-d")
    stack.await_line("IN FULL SWING", *TRAINERS)
    assert docker("kill", stack.container("trainer1")).returncode == 0
    told = stack.verdict("trainer0")
    assert told["code"] == "peer_lost"
    assert told["fields"]["rank"] == 1
    assert "another pid namespace" in told["text"]
    assert told["elapsed_s"] < 5  # not the deadline of the call


def test_a_trainer_of_another_user_is_turned_away(stack_of: StackOf) -> None:
    stack = stack_of(*FILES, TRAINER_USER="10002:10002")
    stack.compose("up", "-d")
    assert 0 not in stack.await_end(*TRAINERS).values()
    assert "Permission denied" in stack.log("trainer0")
