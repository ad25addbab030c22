"""The TCP connection between two daemons, taken hold of from outside: watched, cut, or reset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from ringd.bench.faults.sockets import End, between
from tests.processes.harness import Daemons


@contextlib.contextmanager
def link_of(group: Daemons, rank: int, peer: int) -> Iterator[End]:
    """The link to ``peer``, at ``rank``; skips the test where the system does not let us."""
    with contextlib.ExitStack() as stack:
        try:
            ends = stack.enter_context(between(group.daemon_pid(rank), group.daemon_pid(peer)))
        except PermissionError as exc:
            pytest.skip(str(exc))
        assert len(ends) == 1, f"{len(ends)} connections between ranks {rank} and {peer}"
        yield ends[0]
