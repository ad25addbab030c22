"""Which daemon is ours, as the environment tells it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringd.errors import ConfigError
from ringd_client._environment import daemon_socket, daemon_socket_or_none


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's folder for sockets; of the environment nothing else is left."""
    for name in list(os.environ):
        if name.startswith(("RINGD_", "RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI_", "JOB_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "ringd").mkdir()
    return tmp_path / "ringd"


@pytest.fixture
def standing(folder: Path) -> Iterator[Path]:
    """The socket of the daemon of rank 1 of the job "night"."""
    path = folder / "night-1.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        daemon.bind(str(path))
        yield path


def rank_1_of(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RINGD_JOB_ID", job)


def test_the_socket_that_is_named_comes_first(
    standing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_1_of("night", monkeypatch)
    monkeypatch.setenv("RINGD_SOCKET", "/there/0.sock")
    assert daemon_socket_or_none() == "/there/0.sock"


def test_then_that_of_job_and_rank_if_it_stands(
    standing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_1_of("night", monkeypatch)
    assert daemon_socket_or_none() == str(standing)
    monkeypatch.setenv("RANK", "0")
    assert daemon_socket_or_none() is None


def test_a_job_that_is_not_named_is_nobodys(
    standing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_1_of("", monkeypatch)
    assert daemon_socket_or_none() is None
    assert daemon_socket() == str(standing.parent / "default-1.sock")


def test_a_file_that_is_no_socket_is_no_daemon(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_1_of("night", monkeypatch)
    (folder / "night-1.sock").touch()
    assert daemon_socket_or_none() is None


def test_without_any_of_it_the_error_says_what_to_do(folder: Path) -> None:
    assert daemon_socket_or_none() is None
    with pytest.raises(ConfigError, match="ringd run"):
        daemon_socket()
