"""``ringd bench --stages``: marks, worked out by hand, become stages; the command itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringd.bench.crew import Crew
from ringd.bench.figures import Case
from ringd.bench.stages import marks
from ringd.bench.stages.figures import Samples, middle_half, row
from ringd.bench.stages.main import DAEMON, TRACED, BothJobs
from ringd.bench.stages.marks import (
    ANSWER,
    ENTER,
    FINISH,
    FOLD,
    IDLE,
    NOTHING,
    PREPARE,
    READ,
    RECEIVE,
    REQUEST,
    SEND,
    Recorder,
)
from ringd.bench.stages.path import STAGES, Call, calls
from ringd.bench.table import MIN_WIDTH

ROOT = Path(__file__).parents[2]
Marked = list[tuple[int, int]]
"""When in ns, and what."""
CALL: Marked = [(1000, PREPARE), (1010, REQUEST), (1900, FINISH), (2000, NOTHING)]
"""A trainer's marks."""


def made(marked: Marked) -> list[int]:
    return [marks.mark(what, at_ns) for at_ns, what in marked]


def stages(**times: int) -> Call:
    return dict.fromkeys(STAGES, 0) | {name.replace("_", "-"): t for name, t in times.items()}


@pytest.mark.parametrize(
    ("daemon", "expected"),
    [
        pytest.param(
            [(1030, READ), (1035, ENTER), (1050, SEND), (1075, ENTER), (1080, READ), (1081, IDLE),
             (1200, RECEIVE), (1250, FOLD), (1300, ANSWER), (1320, FOLD), (1330, RECEIVE),
             (1340, IDLE)],
            stages(
                prepare=10, request=20, read=5 + 1, enter=15 + 5, send=25, wait=119, receive=50,
                fold=50, answer=20, wake_up=580, finish=100,
            ),
            id="one frame each way",
        ),
        pytest.param(
            [(1030, READ), (1040, ENTER), (1050, IDLE), (1060, RECEIVE), (1070, FOLD), (1080, SEND),
             (1090, FOLD), (1100, RECEIVE), (1110, IDLE), (1210, RECEIVE), (1220, FOLD),
             (1230, RECEIVE), (1240, IDLE), (1340, SEND), (1350, IDLE), (1360, RECEIVE),
             (1370, ANSWER), (1380, RECEIVE), (1390, IDLE)],
            stages(
                prepare=10, request=20, read=10, enter=10, wait=10 + 100 + 100 + 10, send=10 + 10,
                receive=10 + 10 + 10 + 10 + 10, fold=10 + 10 + 10, answer=10, wake_up=520,
                finish=100,
            ),
            id="several segments are added up",
        ),
        pytest.param(
            [(900, ANSWER), (1015, RECEIVE), (1020, IDLE), (1025, RECEIVE), (1035, IDLE),
             (1040, READ), (1050, ENTER), (1060, ANSWER), (1070, ENTER)],
            stages(prepare=10, request=30, read=10, enter=10, answer=10, wake_up=830, finish=100),
            id="what the daemon does before it has read the request is not the call's",
        ),
        pytest.param(
            [(1030, READ), (1040, ENTER), (1860, ANSWER), (1950, ENTER), (2010, IDLE)],
            stages(prepare=10, request=20, read=10, enter=820, answer=40, finish=100),
            id="a trainer that runs before its daemon goes on has no wake-up",
        ),
        pytest.param(
            [(1030, READ), (1040, ENTER), (1050, ANSWER), (1060, IDLE), (1070, RECEIVE),
             (1080, SEND), (1090, RECEIVE), (1100, ANSWER), (1110, IDLE)],
            stages(prepare=10, request=20, read=10, enter=10, answer=10, wake_up=840, finish=100),
            id="after the answer a daemon is on nobody's way",
        ),
    ],
)  # fmt: skip
def test_each_moment_of_a_call_belongs_to_one_stage(daemon: Marked, expected: Call) -> None:
    (found,) = calls(made(CALL), made(daemon))
    assert found == expected
    assert sum(found.values()) == 2000 - 1000


def test_calls_follow_each_other_and_what_is_between_them_belongs_to_none() -> None:
    trainer = [(at + shift, what) for shift in (0, 5000) for at, what in CALL]
    daemon = [
        (1030, READ), (1040, ENTER), (1050, ANSWER), (1060, IDLE),
        (3000, READ), (3010, ANSWER), (3020, RECEIVE), (3030, IDLE),
        (6040, READ), (6050, ENTER), (6070, ANSWER), (6080, IDLE),
    ]  # fmt: skip
    shared = {"prepare": 10, "read": 10, "answer": 10, "finish": 100}
    assert calls(made(trainer), made(daemon)) == [
        stages(request=20, enter=10, wake_up=840, **shared),
        stages(request=30, enter=20, wake_up=820, **shared),
    ]


def test_calls_that_are_not_whole_are_left_out() -> None:
    late = [(500, FINISH), (510, NOTHING), *CALL, (3000, PREPARE), (3010, REQUEST)]
    assert [sum(call.values()) for call in calls(made(late), [])] == [1000]


def test_what_goes_on_after_a_method_is_what_went_on_before() -> None:
    recorder = Recorder()

    def fail() -> None:
        raise OSError

    send = recorder.during(SEND, fail)

    def take(number: int) -> int:
        with pytest.raises(OSError):  # noqa: PT011
            send()
        return number + 1

    assert recorder.during(FOLD, take)(1) == 2
    recorder.mark(PREPARE)
    taken = recorder.take()
    found = [marks.read(mark) for mark in taken["marks"]]
    assert [what for what, _ in found] == [FOLD, SEND, FOLD, IDLE, PREPARE]
    assert [at for _, at in found] == sorted(at for _, at in found)
    assert recorder.take() == {"marks": [], "lost": False}


def test_a_recorder_that_is_full_says_so() -> None:
    recorder = Recorder()
    for _ in range(marks.MOST + 1):
        recorder.mark(IDLE)
    taken = recorder.take()
    assert (len(taken["marks"]), taken["lost"]) == (marks.MOST, True)
    assert not recorder.take()["lost"]


CASE = Case("ringd", "all_reduce", 2, 1024, "float32", "auto", "ordinary", 4)


def test_a_row_is_of_the_slowest_ranks_calls() -> None:
    samples = Samples()
    quick, slow = stages(prepare=1000, wait=1000), stages(prepare=1000, wait=7000)
    other, long = stages(prepare=3000, wait=3000), stages(wait=100_000)
    right = [{"ok": True, "times_us": [5.0, 1.0]}, {"ok": True, "times_us": [2.0, 7.0]}]
    samples.add_untraced(right)
    samples.add_traced(right, [[quick, other], [slow, quick]])
    samples.add_untraced(right)
    samples.add_traced(right, [[long, quick], [slow, quick]])
    assert samples.traced == [slow, other, long, quick]
    found = row(CASE, samples)
    assert (found["rounds"], found["samples"], found["ok"]) == (2, 4, True)
    assert (found["p10_us"], found["median_us"]) == (2.0, 7.0)  # of 2, 6, 8, 100
    assert (found["untraced_p10_us"], found["untraced_median_us"]) == (5.0, 6.0)  # 5, 5, 7, 7
    assert [part["stage"] for part in found["stages"]] == list(STAGES)
    by_name = {part["stage"]: part for part in found["stages"]}
    # The middle half is the calls of 6 and of 8 µs.
    assert by_name["prepare"] == {
        "stage": "prepare", "p10_us": 0.0, "median_us": 1.0, "share": 4 / 14,
    }  # fmt: skip
    assert by_name["wait"] == {"stage": "wait", "p10_us": 1.0, "median_us": 5.0, "share": 10 / 14}


@pytest.mark.parametrize("which", ["add_untraced", "add_traced"])
def test_a_wrong_result_of_one_rank_in_either_job_spoils_the_row(which: str) -> None:
    samples, call = Samples(), stages(wait=10)
    right = [{"ok": True, "times_us": [1.0]}] * 2
    wrong = [right[0], {"ok": False, "times_us": [1.0]}]
    samples.add_untraced(wrong if which == "add_untraced" else right)
    samples.add_traced(wrong if which == "add_traced" else right, [[call], [call]])
    assert not row(CASE, samples)["ok"]


@pytest.mark.parametrize(("n", "kept"), [(1, [0]), (3, [0, 1, 2]), (4, [1, 2]), (9, [2, 6])])
def test_the_middle_half_is_never_empty(n: int, kept: list[int]) -> None:
    found = middle_half([stages(wait=time) for time in range(n)])
    assert [found[0]["wait"], found[-1]["wait"]] == [kept[0], kept[-1]]


def test_the_page_says_what_each_stage_is() -> None:
    rows = [f"| `{name}` | {text} |" for name, text in STAGES.items()]
    assert "\n".join(rows) in (ROOT / "docs/bench.md").read_text()


# ---------------------------------------------------------------- on real processes


@pytest.mark.serial
@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [256, 1 << 16])
def test_the_stages_are_the_time_that_the_trainer_measured(count: int) -> None:
    order = {"do": "measure", "op": "all_reduce", "count": count, "dtype": "float32"}
    order |= {"algorithm": "auto", "memory": "ordinary", "operations": 20}
    with Crew([TRACED, DAEMON], 2, BothJobs()) as crew:
        answers = crew.order(TRACED, **order)
        trainers, daemons = (crew.order(who, do="take") for who in (TRACED, DAEMON))
    spent = dict.fromkeys(STAGES, 0)
    for answer, trainer, daemon in zip(answers, trainers, daemons, strict=True):
        assert answer["ok"]
        found = calls(trainer["marks"], daemon["marks"])
        assert len(found) == 1 + 3 + 20  # checked, to warm up, timed
        wholes_us = [sum(call.values()) / 1e3 for call in found[-20:]]
        for whole_us, timed_us in zip(wholes_us, answer["times_us"], strict=True):
            assert whole_us <= timed_us
        assert sum(wholes_us) > 0.5 * sum(answer["times_us"])
        for name in STAGES:
            spent[name] += sum(call[name] for call in found)
    # Who comes last has no wait, and where the trainer is quicker than its daemon, no wake-up.
    assert {name for name, ns in spent.items() if not ns} <= {"wake-up"}


@pytest.mark.serial
@pytest.mark.timeout(120)
def test_the_command_shows_each_call_traced_and_untraced(tmp_path: Path) -> None:
    path = tmp_path / "stages.json"
    command = [sys.executable, "-m", "ringd", "bench", "--stages", "--quick", "--rounds", "2"]
    command += ["-n", "2", "--sizes", "1K", "--op", "all_reduce,barrier", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(path.read_text())
    assert report["rows"] == []
    assert [(r["op"], r["bytes"]) for r in report["stages"]] == [
        ("all_reduce", 1024),
        ("barrier", 0),
    ]
    for r in report["stages"]:
        assert r["ok"] is True
        assert (r["n"], r["rounds"], r["samples"]) == (2, 2, 100)
        assert [part["stage"] for part in r["stages"]] == list(STAGES)
        assert sum(part["share"] for part in r["stages"]) == pytest.approx(1.0)
        for found in (r, *r["stages"]):
            assert 0 <= found["p10_us"] <= found["median_us"]
        assert 0 < r["untraced_p10_us"] <= r["untraced_median_us"]
    assert "all_reduce of 1K float32, 2 ranks, auto: exchange" in done.stdout
    for text in STAGES.values():
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= MIN_WIDTH
