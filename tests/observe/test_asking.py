"""Dumps over a daemon's Unix socket, and which daemons are meant."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ringd.config.loader import load
from ringd.daemon.node import Node
from ringd.daemon.server import ClientServer
from ringd.errors import ConfigError, DaemonLostError
from ringd.observe import asking, dump_view
from ringd.observe.flight import Snapshot
from ringd.wire import ipc


class StubNode:
    """What a session asks of its node, with a dump of many pieces."""

    def __init__(self, rank: int, padding: int) -> None:
        self.log = logging.getLogger("test")
        self.engine = SimpleNamespace(world=SimpleNamespace(epoch=1))
        self.rank = rank
        self._padding = padding

    def snapshot(self, reason: str) -> Snapshot:
        head = {"rank": self.rank, "epoch": 1, "reason": reason, "groups": []}
        padding = "".join(chr(33 + i % 90) for i in range(self._padding))
        return Snapshot({**head, "padding": padding}, [], [], [], {}, 1, 2)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Path]:
    """A daemon's socket; its dump has about 1 MB."""
    loop = asyncio.get_running_loop()
    path = tmp_path / "ringd/job/1.sock"
    server = ClientServer(loop, cast("Node", StubNode(1, 1_000_000)), path)
    yield path
    server.close()


async def test_a_dump_of_many_pieces_comes_whole(served: Path) -> None:
    document = await asyncio.to_thread(dump_view.ask, served)
    assert (document["rank"], document["reason"]) == (1, "ringd dump")
    assert len(document["padding"]) == 1_000_000
    assert document["padding"][89:92] == 'z!"'


async def test_who_asks_again_without_reading_is_hung_up_on(served: Path) -> None:
    def greedy() -> list[tuple[int, int]]:
        with asking.asking(served) as daemon:
            for request in range(2):
                daemon.say(ipc.DUMP, request)
            hang_up = select.poll()
            hang_up.register(daemon._sock, 0)
            return hang_up.poll(60_000)

    ((_, event),) = await asyncio.to_thread(greedy)
    assert event & select.POLLHUP
    document = await asyncio.to_thread(dump_view.ask, served)
    assert document["rank"] == 1


async def test_a_file_for_each_daemon_and_an_error_for_each_that_is_gone(
    served: Path, tmp_path: Path
) -> None:
    gone = served.parent / "0.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(gone))
    loaded = load({}, environ={"XDG_RUNTIME_DIR": str(tmp_path)})
    files, errors = await asyncio.to_thread(dump_view.dump, loaded, tmp_path / "out")
    assert files == [tmp_path / "out/flight-rank1-epoch1.json"]
    assert [type(error) for error in errors] == [DaemonLostError]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no dump can be written"):
        await asyncio.to_thread(dump_view.dump, loaded, tmp_path / "file")


class TestWhichDaemon:
    """Sockets of two jobs of ``ringd run``, and of one whose daemons were started singly."""

    @pytest.fixture(autouse=True)
    def _nothing_set(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def found(self, tmp_path: Path, *sockets: str, **flags: Any) -> list[str]:
        folder = tmp_path / "ringd"
        for name in sockets:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        loaded = load(flags, environ={"XDG_RUNTIME_DIR": str(tmp_path)})
        return [str(path.relative_to(folder)) for path in asking.find_all(loaded)]

    def test_all_of_the_only_job_in_rank_order(self, tmp_path: Path) -> None:
        names = [f"run-1/{rank}.sock" for rank in range(12)]
        assert self.found(tmp_path, *names) == names

    def test_daemons_that_were_started_singly_are_told_apart_by_their_job(
        self, tmp_path: Path
    ) -> None:
        names = ("a-0.sock", "a-1.sock", "b-0.sock")
        assert self.found(tmp_path, *names, job_id="a") == ["a-0.sock", "a-1.sock"]
        with pytest.raises(DaemonLostError, match="which daemon"):
            self.found(tmp_path)

    def test_one_rank_of_one_job(self, tmp_path: Path) -> None:
        names = ("run-1/0.sock", "run-1/1.sock", "run-2/1.sock", "a-1.sock")
        assert self.found(tmp_path, *names, job_id="run-2", rank=1) == ["run-2/1.sock"]
        assert self.found(tmp_path, job_id="a", rank=1) == ["a-1.sock"]
        with pytest.raises(DaemonLostError, match="which daemon"):
            self.found(tmp_path, rank=1)
        with pytest.raises(DaemonLostError, match="no job is running here"):
            self.found(tmp_path, rank=5)

    def test_a_socket_that_was_named_is_taken_as_it_is(self, tmp_path: Path) -> None:
        assert self.found(tmp_path, socket=tmp_path / "ringd/x.sock") == ["x.sock"]
