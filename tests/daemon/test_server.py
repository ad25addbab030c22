"""The daemon's Unix socket: whose place it may take, and who may reach it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path
from typing import cast

import pytest

from ringd.daemon.node import Node
from ringd.daemon.server import ClientServer
from ringd.errors import AddressInUseError, ConfigError

NO_NODE = cast("Node", None)
"""Nobody connects in these tests."""


async def serve(path: Path) -> ClientServer:
    return ClientServer(asyncio.get_running_loop(), NO_NODE, path)


async def test_only_its_user_can_reach_it_and_it_goes_away_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "made" / "for" / "it.sock"
    server = await serve(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for made in (path.parent, path.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    server.close()
    assert not path.exists()


async def test_a_dead_daemons_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "0.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    server = await serve(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.connect(str(path))
    server.close()


async def test_a_living_daemons_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "0.sock"
    first = await serve(path)
    inode = path.stat().st_ino
    with pytest.raises(AddressInUseError, match="served by a living daemon"):
        await serve(path)
    assert path.stat().st_ino == inode
    first.close()


async def test_a_file_in_its_place_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "0.sock"
    path.write_text("precious")
    with pytest.raises(AddressInUseError, match=r"0\.sock"):
        await serve(path)
    assert path.read_text() == "precious"


async def test_a_folder_that_can_not_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be made"):
        await serve(tmp_path / "file" / "0.sock")


async def test_no_descriptor_is_left_when_it_can_not_listen(tmp_path: Path) -> None:
    path = tmp_path / "0.sock"
    first = await serve(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(AddressInUseError):
            await serve(path)
    assert len(os.listdir("/proc/self/fd")) == before
    first.close()
