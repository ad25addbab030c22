"""Figures of faults, worked out by hand; the command itself, on real processes; its network."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringd.bench.faults import sockets
from ringd.bench.faults.figures import Tally
from ringd.bench.faults.kinds import KINDS
from ringd.bench.faults.network import Network
from ringd.errors import UnsupportedPlatformError

LOST, STOPPED, RESET = KINDS["kill-trainer"], KINDS["stop-trainer"], KINDS["reset-link"]


def lost(at: float, culprit: int, verdict: str = "1.1") -> dict[str, Any]:
    fields = {"rank": culprit, "culprits": [culprit], "verdict": verdict, "seq": 4}
    return {
        "right": True,
        "calls": [],
        "at": at,
        "error": "PeerLostError",
        "fields": fields,
        "text": f"rank {culprit} is lost",
    }


def went_on(*calls: tuple[float, float], right: bool = True) -> dict[str, Any]:
    return {"right": right, "calls": [list(call) for call in calls], "error": None}


def test_times_are_from_the_event_to_the_exception_of_each_survivor() -> None:
    tally = Tally(LOST, 3)
    tally.add(0, 100.0, {1: lost(100.010, 0), 2: lost(100.030, 0)})
    tally.add(1, 200.0, {0: lost(200.020, 1, "1.2"), 2: lost(200.060, 1, "1.2")})
    row = tally.row()
    figures = [row[name] for name in ("min_ms", "median_ms", "p99_ms", "max_ms")]
    assert figures == [10.0, 25.0, None, 60.0]
    counts = [row[name] for name in ("rounds", "survivors", "raised", "named", "one_verdict")]
    assert counts == [2, 4, 4, 4, 2]
    assert row["errors"] == {"PeerLostError": 4}
    assert (row["kind"], row["n"], row["promised_ms"], row["ok"]) == (
        "kill-trainer",
        3,
        500.0,
        True,
    )
    assert tally.odd == []


def test_there_is_a_p99_of_a_hundred_survivors() -> None:
    tally = Tally(LOST, 2)
    for number in range(100):
        tally.add(0, 0.0, {1: lost((number + 1) / 1e3, 0)})
    assert tally.row()["p99_ms"] == 100.0


def test_a_survivor_that_names_another_rank_is_told_and_fails_the_run() -> None:
    tally = Tally(LOST, 3)
    tally.add(0, 0.0, {1: lost(0.1, 0), 2: lost(0.1, 1)})
    row = tally.row()
    assert (row["named"], row["ok"]) == (1, False)
    assert tally.odd == ["round 1, rank 0 struck: rank 2 said: rank 1 is lost"]


@pytest.mark.parametrize("second", ["1.2", ""])
def test_survivors_with_different_verdicts_fail_the_run(second: str) -> None:
    tally = Tally(LOST, 3)
    tally.add(0, 0.0, {1: lost(0.1, 0, "1.1"), 2: lost(0.1, 0, second)})
    assert (tally.row()["one_verdict"], tally.row()["ok"]) == (0, False)


@pytest.mark.parametrize(("seq", "one"), [(4, 0), (5, 1)])
def test_a_deadline_that_ends_two_operations_gives_a_verdict_for_each(seq: int, one: int) -> None:
    tally = Tally(STOPPED, 3)
    first, second = lost(1.0, 0, "1.1"), lost(1.0, 0, "1.2")
    for answer in (first, second):
        answer["error"] = "CollectiveTimeoutError"
    second["fields"]["seq"] = seq
    tally.add(0, 0.0, {1: first, 2: second})
    assert (tally.row()["one_verdict"], tally.row()["ok"]) == (one, bool(one))


def test_who_raises_something_else_or_nothing_fails_the_run() -> None:
    timed_out = Tally(STOPPED, 2)
    timed_out.add(0, 0.0, {1: lost(0.1, 0)})
    assert timed_out.row()["ok"] is False
    silent = Tally(LOST, 2)
    silent.add(0, 0.0, {1: went_on((0.0, 0.1))})
    assert (silent.row()["raised"], silent.row()["ok"]) == (0, False)


def test_where_nobody_is_to_raise_the_call_that_was_held_up_longest_counts() -> None:
    tally = Tally(RESET, 2)
    calls = [(8.0, 9.9), (9.99, 10.05), (10.05, 10.06)]  # the first ended before the event
    tally.add(0, 10.0, {1: went_on(*calls)})
    row = tally.row()
    assert (row["max_ms"], row["raised"], row["promised_ms"]) == (50.0, 0, None)
    assert row["ok"] is True
    tally.add(0, 10.0, {1: went_on((9.0, 11.0), right=False)})
    assert tally.row()["ok"] is False
    assert tally.odd == ["round 2, rank 0 struck: rank 1 said: a wrong sum"]


# The command


@pytest.mark.serial
@pytest.mark.timeout(120)
def test_the_command_prints_a_row_for_each_kind_and_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    kinds = ["kill-trainer", "raise", "stop-daemon", "close-link"]
    command = [sys.executable, "-m", "ringd", "bench", "--faults", "--kinds", ",".join(kinds)]
    command += ["-n", "3", "--rounds", "3", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(path.read_text())
    assert (report["schema"], report["rows"]) == (1, [])
    assert {"ringd", "python"} <= set(report["versions"])
    assert [row["kind"] for row in report["faults"]] == kinds
    for row in report["faults"]:
        assert row["ok"] is True, row
        assert (row["n"], row["rounds"], row["survivors"]) == (3, 3, 6)
        raises = row["kind"] != "close-link"
        assert row["raised"] == row["named"] == (6 if raises else 0)
        assert row["one_verdict"] == (3 if raises else 0)
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["max_ms"]
        assert row["kind"] in done.stdout
    stopped = report["faults"][2]
    assert stopped["errors"] == {"CollectiveTimeoutError": 6}
    assert stopped["min_ms"] > 900, "it shows at the deadline only"


# Faults of links


def test_a_reset_reaches_both_ends_and_a_cut_is_an_end_of_stream() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for how in ("reset", "cut"):
            ours = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()
            with ours, theirs:
                ours.sendall(b"abc")
                assert theirs.recv(3, socket.MSG_WAITALL) == b"abc"
                getattr(sockets.End(ours), how)()
                if how == "cut":
                    assert theirs.recv(1) == ours.recv(1) == b""
                    continue
                for end in (ours, theirs):
                    with pytest.raises(ConnectionResetError):
                        end.recv(1)


@pytest.mark.serial
def test_a_host_that_is_cut_off_loses_packets_in_silence_and_comes_back() -> None:
    receive = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.bind(('', 5000))\n"
        "s.settimeout(20)\n"
        "print('ready', flush=True)\n"
        "print(s.recv(9).decode(), flush=True)\n"
        "print(s.recv(9).decode())"
    )
    send = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.sendto(sys.argv[2].encode(), (sys.argv[1], 5000))"
    )
    with contextlib.ExitStack() as stack:
        try:
            network = stack.enter_context(Network(["a", "b"]))
        except UnsupportedPlatformError as exc:
            pytest.skip(str(exc))
        python = [sys.executable, "-c"]
        receiver = subprocess.Popen(
            [*network.enter("b"), *python, receive], stdout=subprocess.PIPE, text=True
        )
        stack.callback(receiver.kill)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"

        def say(word: str) -> None:
            command = [*network.enter("a"), *python, send, network.address("b"), word]
            subprocess.run(command, timeout=20, check=True)

        say("first")  # and the hosts know each other: what waits for an address is not lost
        assert receiver.stdout.readline() == "first\n"
        network.cut("b")
        say("lost")
        network.heal("b")
        say("heard")
        assert receiver.communicate(timeout=20)[0] == "heard\n"
