"""A stand-in for the daemon, a communicator attached to it, and leak checks for every test."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ringd_client
from ringd_client import Communicator
from tests.client.stub_cluster import Cluster
from tests.client.stub_daemon import StubDaemon


def open_fds() -> dict[str, str]:
    """All descriptors but those of listing them, and the stack file, which stays for good."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
    kept = ("/proc/", "/memfd:ringd-stack")
    return {fd: name for fd, name in found.items() if not name.startswith(kept)}


def mapped_segments() -> int:
    """How many mappings of the arena's segments this process holds."""
    maps = Path("/proc/self/maps").read_text()
    return sum("memfd:ringd" in line for line in maps.splitlines())


def our_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("ringd-")]


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    before = open_fds()
    yield
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        leaked = {fd: n for fd, n in open_fds().items() if before.get(fd) != n}
        leaked = {fd: n for fd, n in leaked.items() if "socket" in n or "memfd" in n}
        if not leaked and not our_threads() and not mapped_segments():
            return
        time.sleep(0.01)
        gc.collect()
    assert leaked == {}
    assert our_threads() == []
    assert mapped_segments() == 0


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[Callable[..., StubDaemon]]:
    """Start any number of stand-ins; they end with the test."""
    started: list[StubDaemon] = []

    def start(**options: Any) -> StubDaemon:
        daemon = StubDaemon(tmp_path / f"d{len(started)}.sock", **options)
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        daemon.stop()


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[[int], Cluster]]:
    """Make the daemons of any number of ranks; they end with the test."""
    made: list[Cluster] = []

    def make(world_size: int) -> Cluster:
        folder = tmp_path / f"c{len(made)}"
        folder.mkdir()
        made.append(Cluster(folder, world_size))
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture
def daemon(start_daemon: Callable[..., StubDaemon]) -> StubDaemon:
    """Rank 1 of 3."""
    return start_daemon()


@pytest.fixture
def comm(daemon: StubDaemon) -> Iterator[Communicator]:
    """A communicator that is attached to ``daemon``."""
    with ringd_client.connect(socket=daemon.path, timeout_s=5) as communicator:
        yield communicator


def eventually(condition: Callable[[], object], within_s: float = 10.0) -> None:
    """Wait for a condition that another thread will make true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.002)


def is_held(lock: Any) -> bool:
    """Whether another thread has it."""
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True
