"""What ``ringd status`` shows: calls, messages and groups in flight."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ringd.observe import status_view
from tests.engine.mail_scene import MailScene, message
from tests.engine.scene import ALL_REDUCE

SIZES = {"segment_bytes": 4096, "eager_bytes": 1024}


def shown(status: dict[str, Any], scope: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The table's rows, as words."""
    status_view._print(status, scope)
    text = capsys.readouterr().out
    return [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]


def test_collectives_messages_and_groups_in_flight_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    scene = MailScene(3, **SIZES)

    async def main() -> None:
        group = await scene.make_group((2, 0))
        scene.call(0, timeout_s=5.0)
        scene.call(0, replace(ALL_REDUCE, group=group), timeout_s=5.0)
        scene.recv(0, 1, 5, tag=7, timeout_s=5.0)
        scene.recv_any(0, 5, tag=8, group=group, timeout_s=5.0)
        scene.send(0, 1, message(10_001, sender=0), tag=9, timeout_s=5.0)
        await asyncio.sleep(1.0)
        state = scene.cluster.nodes[0].state()
        rows = shown(state, "daemon", capsys)
        for row in (
            "0 0 all_reduce #1 1 s 0 of 40 1, 2",
            f"0 {group} all_reduce #0 1 s 0 of 20 2",
            "0 0 recv from 1, tag 7 1 s 0 of 20 1",
            f"0 {group} recv from any, tag 8 1 s 0 of 20 2",
            "0 0 send to 1, tag 9 1 s 0 of 40,004 1",
            f"{group} 2, 0 0: 1",
        ):
            assert any(line == row for line in rows), (row, rows)
        assert state["in_flight"] == 5
        reports = [{"rank": r, "state": scene.cluster.nodes[r].state()} for r in range(3)]
        rows = shown({"reports": reports}, "group", capsys)
        assert any(line == f"{group} 2, 0 0: 1, 2: 0" for line in rows), rows
        assert sum("recv from 1, tag 7" in line for line in rows) == 1

    scene.run(main)


def test_an_idle_job_has_no_empty_tables(capsys: pytest.CaptureFixture[str]) -> None:
    scene = MailScene(2)

    async def main() -> None:
        rows = shown(scene.cluster.nodes[0].state(), "daemon", capsys)
        assert "in flight" not in rows
        assert "groups" not in rows

    scene.run(main)
