"""The daemon that a rank starts by itself, where it can't be one: the caller hears it, and why."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from ringd.errors import ConfigError, RendezvousError
from ringd_client import _attach
from ringd_client.torch import child, creation, daemon
from ringd_client.torch.options import Options

AGES_S = 3600.0


@pytest.fixture(autouse=True)
def no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings, and nothing but the end of a process ends the wait for it; none is left."""
    for name in [name for name in os.environ if name.startswith("RINGD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(_attach, "DIAL_S", AGES_S)
    monkeypatch.setattr(daemon, "_own", None)
    yield
    if daemon._own is not None:
        daemon._own.child.drop()


def open_world() -> None:
    until = time.monotonic() + AGES_S
    creation._open_world(dist.HashStore(), 0, 1, AGES_S, until, Options())


def test_a_port_in_use_is_told_in_the_daemons_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("RINGD_PORT", str(port))
        with pytest.raises(RendezvousError) as caught:
            open_world()
    error = caught.value
    assert f"has ended with exit code 2: 127.0.0.1:{port} is in use" in str(error)
    assert error.fields["exit_code"] == 2
    assert error.__suppress_context__  # "no daemon listens" would be wrong advice
    assert error.__cause__ is None


def test_kubernetes_variables_are_no_obstacle_and_are_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RINGD_PORT", "tcp://10.0.0.7:7000")
    monkeypatch.setattr(child, "own_module", lambda *_: [sys.executable, "-c", "raise SystemExit"])
    with pytest.raises(RendezvousError, match="exit code 0"):
        open_world()
    assert [r.getMessage().partition(" in ")[0] for r in caplog.records] == ["ignored RINGD_PORT"]


def test_a_daemon_that_ends_without_a_word_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "raise SystemExit(7)"]
    monkeypatch.setattr(child, "own_module", lambda *_: command)
    with pytest.raises(RendezvousError, match="exit code 7; its standard error says why"):
        open_world()


def test_a_variable_that_is_no_good_is_an_error_of_the_caller_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RINGD_SEGMENT_BYTES", "1K")
    with pytest.raises(ConfigError, match=r"1K.*environment RINGD_SEGMENT_BYTES.*allowed: 4K"):
        open_world()
    assert daemon._own is None
