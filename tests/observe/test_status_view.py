"""What ``ringd status`` shows: calls, messages and groups in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringd.config.loader import Loaded, load
from ringd.errors import InvalidArgumentError
from ringd.observe import dump_view, status_view
from tests.engine.mail_scene import MailScene, message
from tests.engine.scene import ALL_REDUCE

SIZES = {"segment_bytes": 4096, "eager_bytes": 1024}


def shown(status: dict[str, Any], scope: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The table's rows, as words."""
    status_view._print(status, scope)
    text = capsys.readouterr().out
    return [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]


def test_a_stopped_trainer_is_shown_as_stopped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    scene = MailScene(2, **SIZES)

    async def main() -> None:
        scene.cluster.trainers[1].state = "stopped"
        states = [node.state() for node in scene.cluster.nodes]
        rows = [shown(state, "daemon", capsys) for state in states]
        assert [state["trainer_state"] for state in states] == ["running", "stopped"]
        assert any(" 1001 (stopped) " in row for row in rows[1]), rows
        assert not any("stopped" in row for row in rows[0])

    scene.run(main)


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


def test_the_table_fits_into_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    scene = MailScene(2)

    async def main() -> None:
        large = {"trainer": 4194303, "next_seq": 1_234_567, "completed": 12_345_678}
        state = {**scene.cluster.nodes[0].state(), **large, "address": "127.0.0.1:65535"}
        rows = shown({"reports": [{"rank": 0, "state": state}]}, "group", capsys)
        heads = [" ".join(row.replace("┃", " ").split()) for row in rows]
        assert "rank address trainer epoch next seq done in flight" in heads
        assert "0 127.0.0.1:65535 4194303 1 1234567 12345678 0" in rows

    scene.run(main)


def test_an_idle_job_has_no_empty_tables(capsys: pytest.CaptureFixture[str]) -> None:
    scene = MailScene(2)

    async def main() -> None:
        rows = shown(scene.cluster.nodes[0].state(), "daemon", capsys)
        assert "in flight" not in rows
        assert "groups" not in rows

    scene.run(main)


def test_without_a_rendezvous_the_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    scene = MailScene(2)

    async def main() -> None:
        away = {
            "address": "127.0.0.1:7000",
            "in_reach": False,
            "lost_for_s": 12.0,
            "cause": "[Errno 111] refused",
            "not_asked": [1],
        }
        error = {"code": "rendezvous", "message": "the rendezvous is not connected", "fields": {}}
        status = {"error": error, "rendezvous": away, "self": scene.cluster.nodes[0].state()}
        text = " ".join(shown(status, "group", capsys))
        assert "127.0.0.1:7000 is out of reach for 12 s: [Errno 111] refused" in text
        assert "could not be asked: rank 1" in text
        away |= {"lost_for_s": None, "cause": None}
        text = " ".join(shown(status, "group", capsys))
        assert "127.0.0.1:7000 is out of reach: the rendezvous is not connected" in text

    scene.run(main)


@pytest.mark.parametrize("view", [lambda x: status_view.show(x, scope="group", as_json=True),
                                  lambda x: dump_view.dump(x, Path("out"))])  # fmt: skip
def test_the_socket_of_another_rank_than_the_one_asked_for_is_refused(
    view: Callable[[Loaded], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(status_view, "ask", lambda path, scope: {"rank": 0})
    monkeypatch.setattr(dump_view, "ask", lambda path: {"rank": 0})
    loaded = load({"socket": "m0.sock", "rank": 5}, environ={})
    with pytest.raises(
        InvalidArgumentError, match=r"--rank is 5, but .* m0\.sock is that of rank 0"
    ):
        view(loaded)
    assert not Path("out").exists()


def test_a_rank_of_the_environment_does_not_contradict_a_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(status_view, "ask", lambda path, scope: {"rank": 0})
    loaded = load({"socket": "m0.sock"}, environ={"RINGD_RANK": "1"})
    status_view.show(loaded, scope="group", as_json=True)
    assert '"rank": 0' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("epoch", "joined", "attached", "told"),
    [
        (0, [0, 1], [], ["no daemon yet: ranks 2 and 3", "no trainer yet: ranks 0 and 1"]),
        (0, [0, 1, 2, 3], [1], ["no trainer yet: ranks 0, 2 and 3"]),
        (0, [0, 1, 2, 3], [0, 1, 2, 3], []),
        (2, [0, 1, 3], [], ["its daemon is gone: rank 2"]),
        (2, [0, 1, 2], [], ["epoch 2 is of ranks 0, 1 and 2, of 4; not in it: rank 3"]),
    ],
)
def test_who_is_missing_is_said(
    epoch: int,
    joined: list[int],
    attached: list[int],
    told: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = {
        "epoch": epoch,
        "world_size": 4,
        "members": [0, 1, 2, 3] if joined[-1] == 3 and epoch else [0, 1, 2],
        "joined": joined,
        "attached": attached,
        "reports": [],
        "unanswered": [],
    }
    rows = shown(status, "group", capsys)
    assert [row for row in rows if row.startswith(("no ", "its ", "epoch "))] == told


def test_who_waits_in_reform_is_not_told_to_call_it(capsys: pytest.CaptureFixture[str]) -> None:
    scene = MailScene(2)

    async def main() -> None:
        state = scene.cluster.nodes[0].state()
        assert state["reforming"] is False
        over = {"broken": "epoch 1 is over: rank 1 asked for the next one. Call reform()"}
        assert any("Call reform()" in row for row in shown({**state, **over}, "daemon", capsys))
        rows = shown({**state, **over, "reforming": True}, "daemon", capsys)
        assert any("rank 0: its trainer waits in reform()" in row for row in rows)
        assert not any("Call reform()" in row for row in rows)

    scene.run(main)
