"""F3: small operations, one after another, without a step of 40 ms."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable

import numpy as np
import pytest

from ringd.transport.base import Address, Channel
from ringd.transport.tcp import TcpTransport
from tests.processes.harness import WIDER, Daemons
from tests.processes.programs import faults

Standing = Callable[[int], Daemons]


@pytest.mark.parametrize("what", ["barrier", "all_reduce"])
def test_f3_a_thousand_small_operations_have_no_step_of_forty_milliseconds(
    standing: Standing, what: str
) -> None:
    for took in standing(2).do(faults.latencies, what=what, rounds=1000):
        seconds = np.array(took)
        assert np.quantile(seconds, 0.99) < 0.010 * WIDER
        # A delayed acknowledgement that meets Nagle's algorithm costs 40 ms each time.
        assert np.mean((seconds > 0.038) & (seconds < 0.048)) < 0.01


def test_f3_nagle_is_off_on_the_side_that_dials_and_on_the_side_that_accepts() -> None:
    async def both_sides() -> list[int]:
        transport = TcpTransport()
        came: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        listener = await transport.listen(Address("127.0.0.1", 0), came.set_result)
        deadline = asyncio.get_running_loop().time() + 10
        dialled = await transport.dial(listener.address, deadline=deadline)
        accepted = await came
        ports = {dialled.local.port, listener.address.port}
        found = options_of_connections(ports)
        for channel in (dialled, accepted):
            channel.abort()
        listener.close()
        return found

    assert asyncio.run(both_sides()) == [1, 1]


def options_of_connections(ports: set[int]) -> list[int]:
    """TCP_NODELAY of this process's connected sockets that are bound to one of ``ports``."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with sock:
            if sock.family == socket.AF_INET and sock.getsockname()[1] in ports:
                try:
                    sock.getpeername()
                except OSError:
                    continue  # it listens
                found.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    return found
