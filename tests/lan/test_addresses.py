"""What a daemon tells the others to dial, on hosts whose names or interfaces mislead."""

from __future__ import annotations

import re
import time

import pytest

from ringd.lab.spec import IPV6_ONLY, OWN_LOOPBACK, TWO_INTERFACES
from tests.lan.conftest import MakeGroup, MakeLab
from tests.lan.hosts import LanDaemons
from tests.processes.drills import all_sum
from tests.processes.harness import WIDER, until
from tests.processes.programs import faults

QUIRKS = [(OWN_LOOPBACK,), (TWO_INTERFACES,), (IPV6_ONLY,), (IPV6_ONLY, OWN_LOOPBACK)]


def peers_are_where_the_lan_is(job: LanDaemons) -> None:
    """Every daemon has every other one at its address in the LAN."""
    all_sum(job)  # exchanged whole, so that all speak to all
    for rank in range(job.n):
        links = job.links(rank)
        assert set(links) == set(range(job.n)) - {rank}
        for peer, address in links.items():
            host = address.rpartition(":")[0].strip("[]")
            assert host == job.lab.address(peer), links


@pytest.mark.parametrize("quirks", QUIRKS)
def test_r1_the_address_is_that_of_the_socket_which_reached_the_rendezvous(
    lab: MakeLab, group: MakeGroup, quirks: tuple[str, ...]
) -> None:
    peers_are_where_the_lan_is(group(lab("3", quirks=quirks)))


def test_a_named_interface_is_listened_on_and_advertised(lab: MakeLab, group: MakeGroup) -> None:
    made = lab("2", quirks=(TWO_INTERFACES,))
    job = group(made, start=False)
    for rank in range(2):
        job.start_daemon(rank, interface=made.spec.interface)
    for rank in range(2):
        job.await_daemon(rank)
    job.connect()
    peers_are_where_the_lan_is(job)


def test_r3_where_a_daemon_listens_and_what_it_advertises_are_two_settings(
    lab: MakeLab, group: MakeGroup
) -> None:
    # Rank 1 advertises its name, which is 127.0.1.1 to itself and right to the others.
    job = group(lab("2", quirks=(OWN_LOOPBACK,)), start=False)
    job.start_daemon(0)
    job.start_daemon(1, bind="0.0.0.0", port=7100, advertise="host1:7100")
    for rank in range(2):
        job.await_daemon(rank)
    job.connect()
    all_sum(job)
    assert job.status(1)["address"] == "host1:7100"


def test_r1_a_rank_that_advertises_loopback_to_other_hosts_is_named_at_once(
    lab: MakeLab, group: MakeGroup
) -> None:
    job = group(lab("2"), start=False)
    job.start_daemon(0)
    until(lambda: "rank 0 joined" in job.log("rendezvous"), "rank 0 has joined")
    begun = time.monotonic()
    job.start_daemon(1, bind="127.0.0.1")
    assert job.daemon_exit(1) == 3
    assert time.monotonic() - begun < 2.0 * WIDER
    log = job.log("daemon1")
    assert "rank 1 advertises loopback (127.0.0.1:" in log
    assert "set the advertised address of rank 1 to one that its peers can reach" in log


def test_r3_an_advertised_address_that_nobody_reaches_is_named_long_before_the_deadline(
    lab: MakeLab, group: MakeGroup
) -> None:
    job = group(lab("2", quirks=(TWO_INTERFACES,)), start=False)
    job.start_daemon(0)
    job.start_daemon(1, port=7100, advertise="10.213.79.2:7100")
    for rank in range(2):
        job.await_daemon(rank)
    job.connect()
    for told in job.do(faults.call, timeout_s=300.0):
        assert told["error"] == "PeerLostError", told
        assert "can't connect to 10.213.79.2:7100" in told["text"], told["text"]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (
            "10.213.79.2:7100",
            r"(no answer|OSError: \[Errno 113\])",
        ),  # before and after ARP gives up
        ("10.213.78.2:7199", "ConnectionRefusedError: "),
    ],
)
def test_a_call_that_ends_before_the_dialling_does_names_the_address_too(
    lab: MakeLab, group: MakeGroup, address: str, why: str
) -> None:
    job = group(lab("2", quirks=(TWO_INTERFACES,)), start=False)
    job.start_daemon(0)
    job.start_daemon(1, port=7100, advertise=address)
    for rank in range(2):
        job.await_daemon(rank)
    job.connect()
    for told in job.do(faults.call, timeout_s=3.0):
        assert told["error"] == "CollectiveTimeoutError", told
        assert told["fields"]["case"] == "link down", told
        assert told["fields"]["culprits"] == [1]
        said = f"rank 0 can't reach rank 1 at {re.escape(address)}: {why}"
        assert re.search(said, told["text"]), told["text"]
        assert "the address that rank 1 advertises (RINGD_ADVERTISE)" in told["text"]
