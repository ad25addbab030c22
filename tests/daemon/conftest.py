"""A daemon's socket with nobody behind it who acts on what its clients say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ringd.daemon.node import Node
from ringd.daemon.server import ClientServer
from ringd.daemon.session import Session
from ringd.wire.raised import Raised


class StandIn:
    """As much of a node as sessions meet; calls are taken, and never answered.

    Attributes:
        attached: a trainer's session, and for how long it waits for the others.
        ended: how a trainer has left, the detail, and what it has raised.
        calls: of the calls and reforms that came, what tests look at, by name.
    """

    log = logging.getLogger("test")
    rank = 0

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.attached: asyncio.Future[tuple[Session, float]] = loop.create_future()
        self.ended: asyncio.Future[tuple[str, str, Raised | None]] = loop.create_future()
        self.calls: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        busy_poll = SimpleNamespace(is_on=False)
        self.engine = SimpleNamespace(submit=self.submit, links={}, busy_poll=busy_poll)

    def submit(self, *_: Any, **told: Any) -> None:
        self.calls.put_nowait(told)

    def reform(self, *told: Any) -> None:
        self.calls.put_nowait({"deadline": told[-1]})

    def attach(self, session: Session, timeout_s: float) -> None:
        session.welcome(1, {"rank": 0, "world_size": 2})
        self.attached.set_result((session, timeout_s))

    def detach(self, _: Session, how: str, detail: str, raised: Raised | None = None) -> None:
        self.ended.set_result((how, detail, raised))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[StandIn]:
    """One that serves the socket ``0.sock``."""
    node = StandIn()
    server = ClientServer(asyncio.get_running_loop(), cast(Node, node), tmp_path / "0.sock")
    yield node
    server.close()
