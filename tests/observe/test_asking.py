"""Dumps over a daemon's Unix socket, and which daemons are meant."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ringd.config.loader import Loaded, load
from ringd.daemon import server
from ringd.daemon.node import Node
from ringd.daemon.server import ClientServer
from ringd.errors import ConfigError, DaemonLostError, InvalidArgumentError
from ringd.observe import asking, dump_view, sockets, status_view
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
    going = bound(served.parent / "0.sock", listens=True)
    going.settimeout(20)
    loaded = load({}, environ={"XDG_RUNTIME_DIR": str(tmp_path)})
    with going, ThreadPoolExecutor() as pool:
        hangs_up = [pool.submit(lambda: going.accept()[0].close()) for _ in range(2)]
        files, errors = await asyncio.to_thread(dump_view.dump, loaded, tmp_path / "out")
        for hung_up in hangs_up:  # on who looks whether somebody is there, and on who asks
            hung_up.result()
    assert files == [tmp_path / "out/flight-rank1-epoch1.json"]
    assert [type(error) for error in errors] == [DaemonLostError]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no dump can be written"):
        await asyncio.to_thread(dump_view.dump, loaded, tmp_path / "file")


def bound(path: Path, *, listens: bool) -> socket.socket:
    """A socket at ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(str(path))
    if listens:
        sock.listen()
    return sock


class TestDeadSockets:
    """What daemons leave behind that were killed."""

    @pytest.fixture(autouse=True)
    def _elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "ringd"

    def loaded(self, tmp_path: Path, **flags: Any) -> Loaded:
        return load(flags, environ={"XDG_RUNTIME_DIR": str(tmp_path)})

    def test_they_are_passed_over_and_removed(self, tmp_path: Path, folder: Path) -> None:
        for name in ("torch-1/0.sock", "torch-2/0.sock", "default-0.sock"):
            bound(folder / name, listens=False).close()
        with bound(folder / "run-1/0.sock", listens=True):
            loaded = self.loaded(tmp_path)
            assert asking.find_all(loaded) == [folder / "run-1/0.sock"]
            assert asking.find_one(loaded) == folder / "run-1/0.sock"
        assert [*folder.glob("**/*.sock")] == [folder / "run-1/0.sock"]

    def test_when_all_are_dead_nobody_runs_here(self, tmp_path: Path, folder: Path) -> None:
        bound(folder / "torch-1/0.sock", listens=False).close()
        for find in (asking.find_one, asking.find_all):
            with pytest.raises(DaemonLostError, match="no job is running here"):
                find(self.loaded(tmp_path))

    def test_one_that_was_named_is_left_alone(self, tmp_path: Path, folder: Path) -> None:
        bound(folder / "x.sock", listens=False).close()
        loaded = self.loaded(tmp_path, socket=folder / "x.sock")
        with pytest.raises(DaemonLostError, match="no daemon answers at .*x.sock"):
            status_view.ask(asking.find_one(loaded), "daemon")
        assert (folder / "x.sock").exists()

    def test_one_that_takes_no_more_is_living(self, folder: Path) -> None:
        with bound(folder / "0.sock", listens=False) as busy, contextlib.ExitStack() as waiting:
            busy.listen(0)
            for _ in range(2):
                client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                waiting.enter_context(client).setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.connect(str(folder / "0.sock"))
            assert not sockets.remove_dead(folder / "0.sock")

    def test_those_of_other_users_are_passed_over_only(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bound(folder / "0.sock", listens=False).close()
        monkeypatch.setattr("os.getuid", lambda: 4711)
        assert sockets.remove_dead(folder / "0.sock")
        assert (folder / "0.sock").exists()

    def test_a_daemon_that_has_bound_and_does_not_listen_yet_keeps_its_socket(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Looked at in the moment between the two calls, which have no other way to be seen."""
        path = folder / "0.sock"
        seen = []

        class Watched(socket.socket):
            def listen(self, *args: Any) -> None:
                seen.append((sockets.refuses(path), sockets.remove_dead(path), path.exists()))
                super().listen(*args)

        monkeypatch.setattr("ringd.daemon.server.socket.socket", Watched)
        with server._listen(path):
            assert seen == [(True, False, True)]
            assert not sockets.refuses(path)

    def test_one_that_a_new_daemon_takes_meanwhile_is_kept(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = folder / "0.sock"
        bound(path, listens=False).close()
        with contextlib.ExitStack() as daemon:
            looked = []

            def refuses(path: Path, really: Callable[[Path], bool] = sockets.refuses) -> bool:
                answer = really(path)
                if not looked:
                    looked.append(answer)
                    daemon.enter_context(server._listen(path))
                return answer

            monkeypatch.setattr(sockets, "refuses", refuses)
            assert not sockets.remove_dead(path)
            assert looked == [True]
            assert path.exists()


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
        with pytest.raises(InvalidArgumentError, match="which job.*--job-id.*a .*; b "):
            self.found(tmp_path)

    def test_one_rank_of_one_job(self, tmp_path: Path) -> None:
        names = ("run-1/0.sock", "run-1/1.sock", "run-2/1.sock", "a-1.sock")
        assert self.found(tmp_path, *names, job_id="run-2", rank=1) == ["run-2/1.sock"]
        assert self.found(tmp_path, job_id="a", rank=1) == ["a-1.sock"]
        with pytest.raises(InvalidArgumentError, match="which job"):
            self.found(tmp_path, rank=1)
        with pytest.raises(DaemonLostError, match="no daemon of rank 5 runs here; .*run-1 "):
            self.found(tmp_path, rank=5)
        with pytest.raises(DaemonLostError, match="no daemon of job c runs here"):
            self.found(tmp_path, job_id="c")

    def test_status_asks_the_job_that_was_named(self, tmp_path: Path) -> None:
        self.found(tmp_path, "run-1/0.sock", "run-2/0.sock", "run-2/1.sock", job_id="run-2")
        for flags, name in (({}, "0.sock"), ({"rank": 1}, "1.sock")):
            loaded = load({"job_id": "run-2", **flags}, environ={"XDG_RUNTIME_DIR": str(tmp_path)})
            assert asking.find_one(loaded) == tmp_path / "ringd/run-2" / name

    def test_a_socket_that_was_named_is_taken_as_it_is(self, tmp_path: Path) -> None:
        assert self.found(tmp_path, socket=tmp_path / "ringd/x.sock") == ["x.sock"]
