"""The job of docker-compose.yml: it trains, ends by itself, and names the rank that is gone."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.compose.stack import TOP, Stack, docker

pytestmark = [pytest.mark.compose, pytest.mark.timeout(300)]

RANKS = ("rank0", "rank1", "rank2", "rank3")
JOB = ("rendezvous", *RANKS)
StackOf = Callable[..., Stack]


def losses(text: str) -> list[float]:
    """Of each step that was printed."""
    return [float(x) for x in re.findall(r"step +\d+ +loss ([0-9.]+)", text)]


def test_up_trains_the_digits_as_one_host_does_and_ends_by_itself(stack_of: StackOf) -> None:
    stack = stack_of("docker-compose.yml")
    stack.compose("up", timeout_s=280)
    assert stack.await_end("secret", *JOB) == dict.fromkeys(("secret", *JOB), 0)
    printed = losses(stack.log("rank0"))
    assert len(printed) == 22
    # Gradients may be added in another order than there.
    on_one_host = losses((TOP / "examples" / "README.md").read_text())
    assert [*printed[:3], printed[-1]] == pytest.approx(on_one_host, rel=1e-4)
    assert "accuracy 0.92" in stack.log("rank0")


def test_containers_have_no_more_than_they_need(stack_of: StackOf) -> None:
    stack = stack_of("docker-compose.yml", "tests/compose/faults.yml")
    stack.compose("up", "-d")
    stack.await_line("IN FULL SWING", *RANKS)
    for service in JOB:
        assert stack.run_in(service, "id", "-u").stdout.strip() == "10001"
        assert "Read-only file system" in stack.run_in(service, "touch", "/opt/ringd/x").stdout
        assert stack.run_in(service, "touch", "/run/ringd-secret/x").returncode != 0
        secret = stack.run_in(service, "stat", "-c", "%a %u", "/run/ringd-secret/job").stdout
        assert secret.split() == ["600", "10001"]
        capabilities = stack.run_in(service, "grep", "CapEff", "/proc/self/status").stdout
        assert int(capabilities.split()[1], 16) == 0
        host = stack.inspect(service)["HostConfig"]
        assert host["Memory"] > 0
        assert host["NanoCpus"] > 0
        assert host["PidsLimit"] == 256

    # Restarted in a second, on the same ports: it runs anew.
    at = f"{time.time():.3f}"
    stack.compose("restart", "--timeout", "0")
    stack.await_line("IN FULL SWING", *RANKS, since=at)


def test_a_health_check_fails_while_its_process_is_stopped_and_only_then(stack_of: StackOf) -> None:
    stack = stack_of("docker-compose.yml", "tests/compose/faults.yml")
    stack.compose("up", "-d")
    stack.await_line("IN FULL SWING", *RANKS)
    # In this order: without its daemon a rank is lost, and the job, and then the rendezvous end.
    for service, command in (("rendezvous", "rendezvous"), ("rank2", "daemon")):
        kind, *check = stack.inspect(service)["Config"]["Healthcheck"]["Test"]
        assert kind == "CMD"
        assert stack.run_in(service, *check).returncode == 0
        stack.signal(service, command, signal.SIGSTOP)
        assert stack.run_in(service, *check).returncode != 0


def kill(stack: Stack, service: str) -> None:
    assert docker("kill", stack.container(service)).returncode == 0


def disconnect(stack: Stack, service: str) -> None:
    network, container = f"{stack.project}_job", stack.container(service)
    assert docker("network", "disconnect", network, container).returncode == 0


def pause(stack: Stack, service: str) -> None:
    assert docker("pause", stack.container(service)).returncode == 0


@pytest.mark.parametrize("fault", [kill, disconnect, pause])
def test_survivors_name_the_container_that_is_gone(
    stack_of: StackOf, fault: Callable[[Stack, str], None]
) -> None:
    stack = stack_of("docker-compose.yml", "tests/compose/faults.yml", CALL_TIMEOUT_S="20")
    stack.compose("up", "-d")
    stack.await_line("IN FULL SWING", *RANKS)
    fault(stack, "rank2")
    survivors = ("rank0", "rank1", "rank3")
    told = [stack.verdict(service) for service in survivors]
    for verdict in told:
        assert verdict["code"] == "peer_lost", verdict
        assert verdict["fields"]["rank"] == 2, verdict
        assert not verdict["fields"].get("partial"), verdict
        assert "rank 2" in verdict["text"]
        assert verdict["elapsed_s"] < 15  # not the deadline of the call
    for one, other in pairwise(told):
        assert one["fields"]["case"] == other["fields"]["case"]
        assert one["fields"].get("verdict") == other["fields"].get("verdict")
    assert stack.await_end(*survivors) == dict.fromkeys(survivors, 0)
    if fault is disconnect:  # it lives, hears no verdict, and can't know more than whom it misses
        alone = stack.verdict("rank2")["fields"]
        assert alone["partial"] is True, alone
        assert alone["waiting_on"], alone
        assert 2 not in alone["waiting_on"], alone
    if fault is pause:
        docker("unpause", stack.container("rank2"))


def test_ranks_that_come_ten_seconds_before_the_rendezvous_wait_for_it(stack_of: StackOf) -> None:
    stack = stack_of("docker-compose.yml", "tests/compose/faults.yml")
    stack.compose("up", "-d", *RANKS)
    # Its name is none yet: to them it is an unknown host.
    stack.await_line("can't reach the rendezvous at rendezvous:7000 yet", *RANKS)
    time.sleep(10)
    assert [stack.ended(service) for service in RANKS] == [None] * 4
    stack.compose("up", "-d", "rendezvous")
    stack.await_line("IN FULL SWING", *RANKS)
