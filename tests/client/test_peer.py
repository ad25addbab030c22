"""What is seen of a process that does not answer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ringd_client._peer import STARVED, STOPPED, UNKNOWN, Peer, _state_of, look_at
from tests.client.conftest import eventually

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        yield near, far


def test_a_living_process_with_an_open_socket_is_starved(pair: Pair) -> None:
    assert look_at(pair[0]) == Peer(pid=os.getpid(), state=STARVED)


@pytest.mark.parametrize("unread", [False, True])
def test_a_closed_end_is_seen_behind_what_is_still_to_be_read(pair: Pair, unread: bool) -> None:
    near, far = pair
    if unread:
        far.send(b"last words")
    assert not look_at(near).gone
    far.close()
    assert look_at(near).gone
    if unread:
        assert near.recv(100) == b"last words"


def test_when_our_own_end_is_closed_nothing_is_there(pair: Pair) -> None:
    pair[0].close()
    assert look_at(pair[0]).gone


def test_a_process_is_seen_to_be_stopped_and_to_go_on() -> None:
    program = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        try:
            assert _state_of(process.pid) == STARVED
            process.send_signal(signal.SIGSTOP)
            eventually(lambda: _state_of(process.pid) == STOPPED)
            process.send_signal(signal.SIGCONT)
            eventually(lambda: _state_of(process.pid) == STARVED)
        finally:
            process.kill()
    assert _state_of(process.pid) == UNKNOWN


def test_a_process_of_another_namespace_is_unknown() -> None:
    assert _state_of(0) == UNKNOWN
