"""Connecting: what HELLO says, who is refused, how long one waits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ringd_client
from ringd.errors import (
    CollectiveTimeoutError,
    ConfigError,
    DaemonLostError,
    InvalidArgumentError,
    RendezvousError,
    ResourceError,
)
from ringd.wire import ipc
from ringd_client import _attach, _stack
from ringd_client._operation import GRACE_S
from tests.client.stub_daemon import StubDaemon

Connect = Callable[..., Any]


def blocking(**options: Any) -> None:
    ringd_client.connect(**options).close()


def on_a_loop(**options: Any) -> None:
    async def attempt() -> None:
        await (await ringd_client.connect_async(**options)).close()

    asyncio.run(attempt())


both = pytest.mark.parametrize("connect", [blocking, on_a_loop])


@both
def test_hello_says_version_role_and_the_time_that_is_left(
    connect: Connect, daemon: StubDaemon
) -> None:
    connect(socket=daemon.path, timeout_s=5)
    kind, body = daemon.log[0]
    assert kind == ipc.HELLO
    assert (body["version"], body["role"]) == (ipc.VERSION, "trainer")
    assert 4 < body["timeout_s"] <= 5
    assert 0 <= time.monotonic() - body["clock"] < 5
    assert body["time_namespace"] == os.stat("/proc/self/ns/time").st_ino


def test_the_place_in_the_group_comes_from_the_daemon(daemon: StubDaemon) -> None:
    with ringd_client.connect(socket=daemon.path) as comm:
        assert (comm.rank, comm.world_size, comm.epoch) == (1, 3, 4)
        assert repr(comm) == "<Communicator rank 1 of 3, epoch 4>"
    assert repr(comm) == "<Communicator rank 1 of 3, closed>"


@both
def test_the_socket_comes_from_the_environment(
    connect: Connect, daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGD_SOCKET", daemon.path)
    connect()
    monkeypatch.delenv("RINGD_SOCKET")
    with pytest.raises(ConfigError, match="RINGD_SOCKET is not set.*ringd run"):
        connect()


@both
@pytest.mark.parametrize(
    "error",
    [
        RendezvousError("2 of 3 joined; missing: rank 2", missing=[2]),
        CollectiveTimeoutError("odd, but so it is"),
    ],
)
def test_a_refusal_is_raised_as_the_daemon_says_it(
    connect: Connect, daemon: StubDaemon, error: Exception
) -> None:
    daemon.refuse = error  # type: ignore[assignment]
    with pytest.raises(type(error), match=str(error)):
        connect(socket=daemon.path)


@both
def test_a_daemon_that_never_answers_is_left_at_the_deadline(
    connect: Connect, daemon: StubDaemon
) -> None:
    daemon.welcomes = False
    began = time.monotonic()
    with pytest.raises(RendezvousError, match=r"within 0\.2 s"):
        connect(socket=daemon.path, timeout_s=0.2)
    assert 0.2 + GRACE_S <= time.monotonic() - began < 5


@both
def test_a_daemon_that_dies_meanwhile_is_lost_at_once(connect: Connect, daemon: StubDaemon) -> None:
    daemon.welcomes = False
    threading.Timer(0.1, daemon.die).start()
    with pytest.raises(DaemonLostError, match="closed the connection"):
        connect(socket=daemon.path, timeout_s=20)


@both
def test_a_daemon_may_begin_to_listen_a_moment_later(
    connect: Connect, start_daemon: Callable[..., StubDaemon], tmp_path: Path
) -> None:
    timer = threading.Timer(0.2, start_daemon)
    timer.start()
    connect(socket=str(tmp_path / "d0.sock"))
    timer.join()


@both
def test_without_a_daemon_the_error_says_where_and_how_to_get_one(
    connect: Connect, tmp_path: Path
) -> None:
    path = str(tmp_path / "nobody.sock")
    with pytest.raises(DaemonLostError, match="nobody.sock.*ringd run"):
        connect(socket=path, timeout_s=0.1)


@both
def test_another_kind_of_socket_is_refused_at_once(connect: Connect, tmp_path: Path) -> None:
    path = str(tmp_path / "stream.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(DaemonLostError, match="no daemon listens"):  # and no RendezvousError
            connect(socket=path)


@both
@pytest.mark.parametrize("answer", [b"HTTP/1.1 400", ipc.pack(ipc.WELCOME, {}), ipc.pack(3, 4)])
def test_something_that_is_no_daemon_is_said_to_be_none(
    connect: Connect, daemon: StubDaemon, answer: bytes
) -> None:
    daemon.welcomes = False
    threading.Timer(0.1, lambda: daemon.send_raw(answer)).start()
    with pytest.raises(DaemonLostError, match=r"protocol|kind 3"):
        connect(socket=daemon.path)


@both
@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan"), "5"])
def test_a_bad_timeout_is_a_config_error(connect: Connect, timeout_s: object) -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        connect(socket="unused", timeout_s=timeout_s)


@both
@pytest.mark.parametrize("limit", [0, -1, 1.5, "1G"])
def test_a_bad_arena_limit_is_refused(connect: Connect, limit: object) -> None:
    with pytest.raises(InvalidArgumentError, match="arena_limit_bytes"):
        connect(socket="unused", arena_limit_bytes=limit)


async def test_a_cancelled_attempt_leaves_nothing_behind(daemon: StubDaemon) -> None:
    daemon.welcomes = False
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ringd_client.connect_async(socket=daemon.path), 0.1)
    assert await asyncio.to_thread(daemon.gone.wait, 2)


@both
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_who_can_open_no_socket_is_told_so_and_not_that_no_daemon_listens(
    connect: Connect, daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: str) -> socket.socket:
        raise OSError(number, os.strerror(number))

    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(_attach, "dial", refuse)
    with pytest.raises(ResourceError, match=r"\(process \d+\).* out of file descriptors") as caught:
        connect(socket=daemon.path, timeout_s=5)
    assert caught.value.fields["resource"] == "file descriptors"


@both
def test_without_proc_a_program_connects_all_the_same(
    connect: Connect, daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(number: int) -> bool:
        raise FileNotFoundError(2, "No such file or directory", "/proc/self/status")

    monkeypatch.setattr(_stack, "_file", None)
    monkeypatch.setattr(_stack, "_is_taken", missing)
    connect(socket=daemon.path, timeout_s=5)
    assert "stack_signal" not in daemon.log[0][1]


@contextlib.contextmanager
def daemon_that(answers: Callable[[socket.socket], None], folder: Path) -> Iterator[str]:
    """The socket of a daemon that takes one client, does this, and closes."""
    path = folder / "0.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            conversation, _ = listener.accept()
            with conversation:
                answers(conversation)

        thread = threading.Thread(target=serve)
        thread.start()
        yield str(path)
        thread.join()


@both
def test_the_last_words_of_a_daemon_that_does_not_read_ours_are_heard(
    connect: Connect, tmp_path: Path
) -> None:
    """It may close before HELLO is sent, or without reading it."""
    error = ResourceError("rank 1's daemon is out of all", rank=1)

    def turn_away(conversation: socket.socket) -> None:
        conversation.send(ipc.pack(ipc.REFUSED, error.to_wire()))

    with (
        daemon_that(turn_away, tmp_path) as path,
        pytest.raises(ResourceError, match="rank 1's daemon is out of all"),
    ):
        connect(socket=path, timeout_s=5)


@both
def test_a_daemon_that_ends_before_the_group_is_complete_is_said_to_be_gone(
    connect: Connect, tmp_path: Path
) -> None:
    """It says goodbye; who was killed does not, and reads alike."""

    def say_goodbye(conversation: socket.socket) -> None:
        conversation.recv(1 << 16)
        conversation.send(ipc.pack(ipc.BYE))

    with (
        daemon_that(say_goodbye, tmp_path) as path,
        pytest.raises(DaemonLostError, match="closed the connection before the group was"),
    ):
        connect(socket=path, timeout_s=5)
