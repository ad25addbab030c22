"""What a child is told, and where sockets lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringd.config import environment
from ringd.config.loader import load


def test_a_snapshot_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGD_RANK", "3")
    taken = environment.snapshot()
    monkeypatch.setenv("RINGD_RANK", "4")
    assert taken["RINGD_RANK"] == "3"


def test_a_child_gets_settings_as_variables_and_keeps_the_rest() -> None:
    base = {"PATH": "/bin", "RINGD_RANK": "0", "RINGD_SOCKET": "/old"}
    child = environment.for_child(base, rank=2, timeout_s=1.5, socket=None)
    assert child == {"PATH": "/bin", "RINGD_RANK": "2", "RINGD_TIMEOUT_S": "1.5"}
    assert base["RINGD_RANK"] == "0"


def test_a_child_reads_back_what_its_parent_had() -> None:
    flags = {
        "rank": 1,
        "world_size": 2,
        "port": "7000-7001",
        "rendezvous": "[::1]:7000",
        "segment_bytes": "64K",
        "log_json": True,
        "socket": "/x/y.sock",
        "timeout_s": 2.5,
    }
    parent = load(flags, environ={})
    child = load({}, environ=environment.for_child({}, **parent.overrides()))
    assert child.settings == parent.settings


def test_sockets_lie_in_the_users_own_folder() -> None:
    own = Path(f"/tmp/ringd-{os.getuid()}")
    assert environment.runtime_dir({}) == own
    assert environment.runtime_dir({"TMPDIR": "/var/tmp"}) == Path("/var/tmp") / own.name
    assert environment.runtime_dir({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/ringd")
