"""The TCP connection between two daemons, taken hold of from outside: watched, cut, or reset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from ringd.bench.faults.sockets import End, between
from tests.processes.harness import Daemons, until


@contextlib.contextmanager
def link_of(group: Daemons, rank: int, peer: int) -> Iterator[End]:
    """The link to ``peer``, at ``rank``, when there is one: it may be made anew at the moment.

    Skips the test where the system does not let us.
    """
    with contextlib.ExitStack() as stack:

        def the_one() -> End | None:
            try:
                ends = stack.enter_context(between(group.daemon_pid(rank), group.daemon_pid(peer)))
            except PermissionError as exc:
                pytest.skip(str(exc))
            if len(ends) != 1:
                stack.close()
                return None
            return ends[0]

        yield until(the_one, f"one connection between ranks {rank} and {peer}")
