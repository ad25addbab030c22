"""Where there can be no lab, it says why before anything is made."""

from __future__ import annotations

import os

import pytest

from ringd.errors import UnsupportedPlatformError
from ringd.lab import lab, tools
from ringd.lab.ending import RUN
from ringd.lab.spec import LabSpec

SPEC = LabSpec(hosts=1, name="never")


def test_without_root_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnsupportedPlatformError, match="network namespaces need root"):
        lab.up(SPEC)
    assert not (RUN / "never").exists()


def test_root_that_may_make_no_namespaces_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*command: str, text: str = "") -> str:
        raise UnsupportedPlatformError(f"{' '.join(command)}: Operation not permitted")

    monkeypatch.setattr(tools.shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tools, "call", refuse)
    with pytest.raises(UnsupportedPlatformError, match="no network namespaces: .*not permitted"):
        lab.up(SPEC)
    assert not (RUN / "never").exists()


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.shutil, "which", lambda tool: None if tool != "ip" else "/sbin/ip")
    with pytest.raises(UnsupportedPlatformError, match=r"tc, unshare is missing \(Debian"):
        lab.up(SPEC)


def test_a_command_that_fails_is_quoted_with_what_it_said() -> None:
    with pytest.raises(UnsupportedPlatformError, match="sh -c echo no >&2; exit 3: no"):
        tools.call("sh", "-c", "echo no >&2; exit 3")


def test_a_command_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "LIMIT_S", 0.2)
    with pytest.raises(UnsupportedPlatformError, match="timed out"):
        tools.call("sleep", "60")
