"""What a session makes of the times that a client says: absolute ones, on the client's clock."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringd.wire import ipc
from tests.daemon.conftest import StandIn

HERE = os.stat("/proc/self/ns/time").st_ino
ELSEWHERE = 1
"""The inode of no namespace."""
AHEAD_S = 5000.0
NEAR_S = 5.0


@pytest.fixture
def client(tmp_path: Path, node: StandIn) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(tmp_path / "0.sock"))
        yield sock


def hello(client: socket.socket, **more: Any) -> None:
    client.send(ipc.pack(ipc.HELLO, {"version": ipc.VERSION, "role": "trainer", **more}))


def submit(client: socket.socket, deadline: float | None) -> None:
    client.send(ipc.pack(ipc.SUBMIT, 1, b"spec", deadline, 0.0, 0, 0, None, [9.0, 0]))


async def told(node: StandIn) -> float | None:
    deadline: float | None = (await asyncio.wait_for(node.calls.get(), 10))["deadline"]
    return deadline


async def test_a_deadline_is_taken_as_it_was_said_however_late_it_is_read(
    node: StandIn, client: socket.socket
) -> None:
    hello(client, clock=time.monotonic(), time_namespace=HERE)
    for deadline in (time.monotonic() + 5, time.monotonic() - 5):
        submit(client, deadline)
        assert await told(node) == deadline
        wish = {"min_size": 1, "timeout_s": 9.0, "deadline": deadline, "epoch": 1, "heard": 0}
        client.send(ipc.pack(ipc.REFORM, 2, wish))
        assert await told(node) == deadline
    submit(client, None)
    assert await told(node) is None


async def test_the_clock_of_another_time_namespace_is_converted(
    node: StandIn, client: socket.socket
) -> None:
    for_us = time.monotonic()
    hello(client, clock=for_us + AHEAD_S, time_namespace=ELSEWHERE, timeout_s=9.0)
    assert (await asyncio.wait_for(node.attached, 10))[1] == 9.0
    submit(client, for_us + AHEAD_S + 60.0)
    deadline = await told(node)
    assert deadline is not None
    assert for_us + 60.0 - NEAR_S < deadline < for_us + 60.0 + NEAR_S


async def test_who_waits_to_attach_has_waited_since_it_asked(
    node: StandIn, client: socket.socket
) -> None:
    hello(client, clock=time.monotonic() - 100.0, time_namespace=HERE, timeout_s=160.0)
    _, left_s = await asyncio.wait_for(node.attached, 10)
    assert 60.0 - NEAR_S < left_s <= 60.0


@pytest.mark.parametrize("clock", [float("nan"), float("inf"), "12:00", True])
async def test_what_is_no_clock_ends_the_session(
    node: StandIn, client: socket.socket, clock: Any
) -> None:
    hello(client, clock=clock, time_namespace=HERE)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    assert await asyncio.wait_for(loop.sock_recv(client, 65536), 10) == b""
    assert not node.attached.done()
