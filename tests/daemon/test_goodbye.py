"""What a session makes of its trainer's last words, and of a call that is none."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ringd.wire import ipc
from ringd.wire.bounds import Bound
from ringd.wire.raised import Raised
from tests.daemon.conftest import StandIn

EXCEPTION = {"type": "ValueError", "message": "bad data", "file": "/job/train.py", "line": 41}
RAISED = Raised("ValueError", "bad data", "/job/train.py", 41)
TEXT = "ValueError: bad data (train.py:41)"
End = tuple[str, str, Raised | None]


@pytest.fixture
async def client(tmp_path: Path, node: StandIn) -> AsyncIterator[socket.socket]:
    """A trainer that has attached."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(tmp_path / "0.sock"))
        sock.send(ipc.pack(ipc.HELLO, {"version": ipc.VERSION, "role": "trainer"}))
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        assert ipc.unpack(await loop.sock_recv(sock, 65536))[0] == ipc.WELCOME
        yield sock


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ({"how": "closed", "detail": ""}, ("goodbye", "", None)),
        ({"how": "closed", "exception": EXCEPTION}, ("goodbye", "", None)),
        ({"how": "raised", "detail": TEXT, "exception": EXCEPTION}, ("raised", TEXT, RAISED)),
        ({"how": "raised", "exception": EXCEPTION}, ("raised", TEXT, RAISED)),
        ({"how": "raised", "detail": "of an older client"}, ("raised", "of an older client", None)),
        ({"how": "raised", "detail": "d" * 9999}, ("raised", "d" * 2000, None)),
    ],
)
async def test_a_goodbye_is_passed_on_with_its_exception(
    node: StandIn, client: socket.socket, words: dict[str, Any], end: End
) -> None:
    client.send(ipc.pack(ipc.GOODBYE, words))
    assert await asyncio.wait_for(node.ended, 10) == end
    loop = asyncio.get_running_loop()
    assert ipc.unpack(await loop.sock_recv(client, 65536)) == [ipc.BYE]


@pytest.mark.parametrize("exception", ["ValueError", {**EXCEPTION, "line": "41"}, {}])
async def test_one_that_can_not_be_read_counts_as_a_death(
    node: StandIn, client: socket.socket, exception: Any
) -> None:
    client.send(ipc.pack(ipc.GOODBYE, {"how": "raised", "detail": "", "exception": exception}))
    how, detail, raised = await asyncio.wait_for(node.ended, 10)
    assert (how, raised) == ("died", None)
    assert "sent a message that can't be read" in detail


async def test_a_call_comes_with_the_bound_that_was_asked_for(
    node: StandIn, client: socket.socket
) -> None:
    submit = [ipc.SUBMIT, 1, b"spec", 1.9, 0.0, 0, 0, None]
    for bound, found in (([2.0, 1], Bound(2.0, 1)), (None, None)):
        client.send(ipc.pack(*submit, bound))
        assert (await asyncio.wait_for(node.calls.get(), 10))["bound"] == found
    client.send(ipc.pack(*submit, [0, 1]))
    assert (await asyncio.wait_for(node.ended, 10))[0] == "died"


SUBMIT = {
    "request": 1,
    "spec": b"spec",
    "deadline": 1.9,
    "recv_timeout_s": 0.0,
    "segment": 0,
    "offset": 0,
    "local": None,
    "bound": None,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request", "1"),
        ("request", None),
        ("segment", 1.0),
        ("segment", [1]),
        ("offset", "8"),
        ("deadline", "now"),
        ("deadline", float("nan")),
        ("deadline", True),
        ("recv_timeout_s", "q"),
        ("recv_timeout_s", -1.0),
        ("recv_timeout_s", float("nan")),
        ("recv_timeout_s", float("inf")),
        ("local", -1),
        ("bound", [float("nan"), 0]),
    ],
)
async def test_a_call_with_a_field_that_can_not_be_is_refused_before_it_is_entered(
    node: StandIn, client: socket.socket, field: str, value: Any
) -> None:
    client.send(ipc.pack(ipc.SUBMIT, *{**SUBMIT, field: value}.values()))
    assert (await asyncio.wait_for(node.ended, 10))[0] == "died"
    assert node.calls.empty()


@pytest.mark.parametrize("more", [{"recv_timeout_s": 2}, {"deadline": None}, {"deadline": 3}])
async def test_a_call_with_fields_that_can_be_is_entered(
    node: StandIn, client: socket.socket, more: dict[str, Any]
) -> None:
    client.send(ipc.pack(ipc.SUBMIT, *{**SUBMIT, **more}.values()))
    assert (await asyncio.wait_for(node.calls.get(), 10))["bound"] is None
