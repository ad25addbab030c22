"""R1: containers whose own names mislead advertise the address that reached the rendezvous."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compose.stack import Stack

pytestmark = [pytest.mark.compose, pytest.mark.timeout(300)]

RANKS = ("rank0", "rank1", "rank2", "rank3")
FILES = ("docker-compose.yml", "tests/compose/faults.yml", "tests/compose/debian_names.yml")
StackOf = Callable[..., Stack]


@pytest.fixture
def hosts(tmp_path: Path) -> str:
    """A folder with each container's /etc/hosts."""
    for name in RANKS:
        (tmp_path / name).write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        (tmp_path / name).chmod(0o644)
    return str(tmp_path)


def test_r1_what_is_advertised_is_the_containers_address_and_not_its_name(
    stack_of: StackOf, hosts: str
) -> None:
    stack = stack_of(*FILES, HOSTS=hosts)
    stack.compose("up", "-d")
    stack.await_line("IN FULL SWING", *RANKS)
    addresses = {}
    for name in RANKS:
        assert stack.run_in(name, "getent", "hosts", name).stdout.split()[0] == "127.0.1.1"
        networks = stack.inspect(name)["NetworkSettings"]["Networks"]
        addresses[name] = f"{networks[f'{stack.project}_job']['IPAddress']}:7100"
    for rank, name in enumerate(RANKS):
        status = json.loads(stack.run_in(name, "ringd", "status", "--local", "--json").stdout)
        assert status["address"] == addresses[name]
        right = (rank + 1) % len(RANKS)
        if rank < right:  # the lower rank dials
            assert status["links"][str(right)]["peer"] == addresses[RANKS[right]]


def test_r1_a_container_that_can_only_advertise_loopback_is_named(
    stack_of: StackOf, hosts: str
) -> None:
    stack = stack_of(*FILES, HOSTS=hosts, RANK1_BIND="127.0.0.1")
    stack.compose("up", "-d")
    assert stack.await_end("rank1")["rank1"] != 0
    log = stack.log("rank1")
    assert "rank 1 advertises loopback (127.0.0.1:7100)" in log
    assert "set the advertised address of rank 1 to one that its peers can reach" in log
