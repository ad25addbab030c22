"""Ranks on several hosts, each in a network of its own: they start their daemons and meet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringd.bench.faults.network import Network
from ringd.errors import UnsupportedPlatformError
from tests.processes.harness import ROOT, WIDER, environment, processes_of, until

SCRIPT = Path(__file__).parent / "scripts" / "where.py"
HOSTS = ("first", "second")
PORT = 29500
WITHIN_S = 100.0
"""On a crowded machine torch alone takes most of it."""


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network(HOSTS) as network:
            yield network
    except UnsupportedPlatformError as exc:
        pytest.skip(str(exc))


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> Iterator[str]:
    name = str(request.node.name)
    yield name
    until(lambda: not processes_of(name), "nothing is left", 10 * WIDER)


def launched(network: Network) -> dict[str, object]:
    """What a launcher on each host says, beside the rank."""
    return {
        "MASTER_ADDR": network.address(HOSTS[0]),
        "MASTER_PORT": PORT,
        "WORLD_SIZE": len(HOSTS),
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
    }


def run(network: Network, owner: str, **variables: object) -> list[dict[str, Any]]:
    """One rank on each host; what they say."""
    path = f"{ROOT}:{ROOT / 'client'}"
    code = "import ringd_client.torch\n" + SCRIPT.read_text()
    is_launched = "WORLD_SIZE" in variables
    ranks = [
        subprocess.Popen(
            [*network.enter(host), sys.executable, "-c", code, str(rank), str(len(HOSTS))],
            env=environment(
                owner, PYTHONPATH=path, **variables, **({"RANK": rank} if is_launched else {})
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(HOSTS)
    ]
    told = []
    for process in ranks:
        try:
            out, err = process.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            for other in ranks:
                other.kill()
            raise
        assert process.returncode == 0, err
        told.append(json.loads(out))
    return told


def check(network: Network, told: list[dict[str, Any]]) -> None:
    """All have met, and each daemon is reached at its own host."""
    for rank, said in enumerate(told):
        assert said["rank"] == rank
        assert said["sum"] == [1.0, 3.0, 5.0]
        assert said["address"].rpartition(":")[0] == network.address(HOSTS[rank])
        assert said["rendezvous"].rpartition(":")[0] == network.address(HOSTS[0])


@pytest.mark.parametrize("secret", [None, "of-all-ranks-0123456789abcdef"])
def test_daemons_are_reached_at_their_hosts_and_a_secret_that_is_set_stays_out_of_the_store(
    network: Network, owner: str, secret: str | None
) -> None:
    given = {} if secret is None else {"RINGD_SECRET": secret}
    told = run(network, owner, **launched(network), **given)
    check(network, told)
    for said in told:
        if secret is None:
            assert len(said["secret"]) == 64
        else:
            assert said["secret"] is None


@pytest.mark.slow
def test_without_a_launcher_the_store_says_where_rank_0_is(network: Network, owner: str) -> None:
    place = f"tcp://{network.address(HOSTS[0])}:{PORT}"
    check(network, run(network, owner, MEET_AT=place))


def test_an_address_that_is_not_this_hosts_is_replaced_by_ours_on_the_way_there(
    network: Network,
) -> None:
    code = (
        "import torch; from ringd_client.torch import daemon; "
        "print(daemon._free_address(torch.distributed.HashStore()))"
    )
    done = subprocess.run(
        [*network.enter(HOSTS[1]), sys.executable, "-c", code],
        env=environment("nobody", PYTHONPATH=f"{ROOT}:{ROOT / 'client'}", RANK=0)
        | {name: str(value) for name, value in launched(network).items()},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rpartition(":")[0] == network.address(HOSTS[1])
