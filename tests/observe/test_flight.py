"""What the flight recorder of a rank holds, in jobs on virtual time."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from ringd.observe.dumps import parse
from ringd.observe.explain import explain
from ringd.observe.flight import KEPT_OPERATIONS, MAX_TEXT, FlightRecorder
from ringd.vocabulary import OpSpec
from tests.engine.mail_scene import MailScene, message
from tests.engine.scene import ALL_REDUCE, BARRIER, Scene

OTHER = OpSpec("all_reduce", "int32", "max", (5,))


def document(scene: Scene, rank: int) -> dict[str, Any]:
    """A rank's dump, through JSON as a file has it."""
    snapshot = scene.cluster.nodes[rank].snapshot("test")
    found: dict[str, Any] = json.loads(json.dumps(snapshot.document()))
    return found


def documents(scene: Scene) -> list[dict[str, Any]]:
    return [document(scene, rank) for rank in range(scene.n)]


def states(dump: dict[str, Any]) -> list[tuple[str, str]]:
    return [(op["op"], op["state"]) for op in dump["operations"]]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_what_ended_well_is_there_in_order_with_its_facts(n: int) -> None:
    scene = Scene(n)

    async def main() -> None:
        await scene.calls([ALL_REDUCE] * n)
        await scene.calls([BARRIER] * n)
        for rank, dump in enumerate(documents(scene)):
            assert (dump["rank"], dump["world_size"], dump["epoch"]) == (rank, n, 1)
            assert dump["trainer_pid"] == 1000 + rank
            assert dump["host"] == socket.gethostname()
            assert (dump["recorded"], dump["forgotten"]) == (2, 0)
            assert [e["epoch"] for e in dump["epochs"]] == [1]
            assert dump["groups"] == [
                {"epoch": 1, "group": 0, "ranks": list(range(n)), "next_seq": 2, "left": {}}
            ]
            assert dump["links"]
            assert all(link["sent_bytes"] for link in dump["links"].values())
            first, second = dump["operations"]
            assert (first["seq"], second["seq"]) == (0, 1)
            assert first["call"] == "all_reduce op=sum dtype=float32 shape=(5,)"
            assert first["algorithm"] not in ("auto", None)
            assert first["bytes_done"] == first["bytes_total"] > 0
            assert first["error"] is None
            assert first["ended_ns"] >= first["entered_ns"] > 0
            assert first["ended_at"] - first["entered_at"] == pytest.approx(
                (first["ended_ns"] - first["entered_ns"]) / 1e9, abs=1e-5
            )
        assert len({dump["operations"][0]["digest"] for dump in documents(scene)}) == 1

    scene.run(main)


def test_what_is_in_flight_says_how_far_it_is_and_on_whom_it_waits() -> None:
    scene = Scene(3)

    async def main() -> None:
        waiting = [scene.call(rank, algorithm_spec("exchange")) for rank in (0, 1)]
        await scene.quiet()
        dump = document(scene, 0)
        (op,) = dump["operations"]
        assert (op["state"], op["seq"], op["waiting_on"]) == ("in flight", 0, [2])
        assert (op["ended_ns"], op["ended_at"]) == (None, None)
        assert op["peers"]["2"]["received"] == [0, 1]
        assert 0 < op["bytes_done"] < op["bytes_total"]
        report = explain([parse(d) for d in documents(scene)])
        assert report.headline is not None
        assert report.headline.ranks("never entered") == [2]
        assert report.chain[-1] == 2
        await scene.all([*waiting, scene.call(2, algorithm_spec("exchange"))])
        assert states(document(scene, 0)) == [("all_reduce", "done")]

    scene.run(main)


def algorithm_spec(name: str) -> OpSpec:
    return OpSpec("all_reduce", "float32", "sum", (5,), algorithm=name)


def test_a_failed_operation_keeps_its_error_and_how_far_it_was() -> None:
    scene = Scene(3)

    async def main() -> None:
        await scene.all(
            scene.call(rank, algorithm_spec("exchange"), timeout_s=0.5) for rank in (0, 1)
        )
        (op,) = document(scene, 1)["operations"]
        assert (op["state"], op["waiting_on"]) == ("failed", [2])
        assert op["error"]["code"] == "timeout"
        assert len(op["error"]["message"]) <= MAX_TEXT
        assert op["peers"]["2"]["received"] == [0, 1]
        # the late rank's call takes its place, and has its record too
        await scene.call(2, algorithm_spec("exchange"))
        (late,) = document(scene, 2)["operations"]
        assert (late["seq"], late["state"], late["error"]["code"]) == (0, "failed", "timeout")
        assert (late["algorithm"], late["waiting_on"]) == (None, [])
        await scene.sum_works()
        assert states(document(scene, 2))[-1] == ("all_reduce", "done")

    scene.run(main)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_different_calls_are_both_recorded_whoever_comes_first(order: tuple[int, int]) -> None:
    scene = Scene(2)

    async def main() -> None:
        await scene.calls([ALL_REDUCE] * 2)
        calls = {0: ALL_REDUCE, 1: OTHER}
        for rank in order:
            scene.call(rank, calls[rank])
            await scene.quiet()
        report = explain([parse(d) for d in documents(scene)])
        assert report.headline is not None
        assert (report.headline.seq, report.headline.kind) == (1, "mismatch")
        told = [entry.op.call for entry in report.headline.entries if entry.op is not None]
        assert told == [str(ALL_REDUCE), str(OTHER)]
        await scene.sum_works()

    scene.run(main)


def test_a_call_that_was_refused_on_one_rank_is_recorded_there_too() -> None:
    scene = Scene(2)
    wrong = OpSpec("all_reduce", "float32", "band", (5,))

    async def main() -> None:
        first = scene.call(0)
        refused = scene.call(1, wrong, array=scene_array())
        await scene.all([first, refused])
        (op,) = document(scene, 1)["operations"]
        assert (op["seq"], op["state"]) == (0, "failed")
        assert op["error"]["code"] == "unsupported_reduction"
        assert op["call"] == str(wrong)
        await scene.sum_works()

    scene.run(main)


def scene_array() -> Any:
    return message(5, sender=1)


@pytest.mark.parametrize("count", [3, 10_001])
def test_messages_have_both_sides_with_the_same_number(count: int) -> None:
    scene = MailScene(3, segment_bytes=4096, eager_bytes=1024)

    async def main() -> None:
        for tag in (4, 5):
            sent = scene.send(2, 0, message(count, sender=2), tag=tag)
            got = scene.recv_any(0, count, tag=tag)
            assert [one.code for one in await scene.ended([sent, got])] == ["ok", "ok"]
        ours, theirs = document(scene, 0)["operations"], document(scene, 2)["operations"]
        assert [(o["op"], o["peer"], o["tag"], o["number"], o["seq"]) for o in ours] == [
            ("recv", 2, 4, 0, None),
            ("recv", 2, 5, 1, None),
        ]
        assert [(o["op"], o["peer"], o["tag"], o["number"]) for o in theirs] == [
            ("send", 0, 4, 0),
            ("send", 0, 5, 1),
        ]
        assert {o["bytes_done"] for o in ours + theirs} == {4 * count}

    scene.run(main)


def test_a_receive_that_nobody_answers_is_in_flight_and_then_failed() -> None:
    scene = MailScene(2)

    async def main() -> None:
        waiting = scene.recv(0, 1, 5, tag=7, timeout_s=3.0)
        await scene.quiet()
        (op,) = document(scene, 0)["operations"]
        assert (op["state"], op["peer"], op["tag"], op["waiting_on"]) == ("in flight", 1, 7, [1])
        report = explain([parse(d) for d in documents(scene)])
        assert [m.partner for m in report.messages] == ["not posted"]
        await waiting
        (op,) = document(scene, 0)["operations"]
        assert (op["state"], op["error"]["code"]) == ("failed", "timeout")
        await scene.passes(1, 0, tag=7)

    scene.run(main)


def test_groups_have_their_members_also_when_they_are_freed() -> None:
    scene = MailScene(3)

    async def main() -> None:
        number = await scene.make_group((0, 2))
        spec = OpSpec("all_reduce", "float32", "sum", (5,), group=number)
        await scene.all(scene.call(rank, spec) for rank in (0, 2))
        before = {g["group"]: g for g in document(scene, 0)["groups"]}
        assert before[number]["ranks"] == [0, 2]
        assert before[number]["next_seq"] == 1
        for rank in (0, 2):
            scene.engine(rank).groups.free(number)
        after = {g["group"]: g for g in document(scene, 0)["groups"]}
        assert (after[number]["ranks"], after[number]["next_seq"]) == ([0, 2], None)
        assert explain([parse(d) for d in documents(scene)]).headline is None

    scene.run(main)


def test_epochs_and_why_they_ended_are_kept_and_the_next_call_starts_anew() -> None:
    scene = MailScene(3)

    async def main() -> None:
        await scene.calls([ALL_REDUCE] * 3)
        scene.trainer(1).die()
        await scene.quiet()
        scene.trainer(0).goodbye()
        scene.trainer(2).goodbye()
        await scene.quiet()
        await asyncio.gather(*scene.attach())
        await scene.sum_works()
        dump = document(scene, 0)
        assert [e["epoch"] for e in dump["epochs"]] == [1, 2]
        assert "rank 1 is lost" in dump["epochs"][0]["ended"]
        assert dump["epochs"][1]["ended"] is None
        assert [(o["epoch"], o["seq"]) for o in dump["operations"]] == [(1, 0), (2, 0)]
        assert {(g["epoch"], g["group"]) for g in dump["groups"]} == {(1, 0), (2, 0)}

    scene.run(main)


def test_memory_is_bounded_and_what_is_forgotten_is_counted() -> None:
    scene = Scene(2)

    async def main() -> None:
        for _ in range(KEPT_OPERATIONS + 7):
            await scene.calls([BARRIER] * 2)
        dump = document(scene, 0)
        assert (dump["recorded"], dump["forgotten"]) == (KEPT_OPERATIONS + 7, 7)
        assert [op["seq"] for op in dump["operations"]] == list(range(7, KEPT_OPERATIONS + 7))

    scene.run(main)


def test_a_snapshot_does_not_change_with_what_comes_later() -> None:
    scene = Scene(2)

    async def main() -> None:
        await scene.calls([ALL_REDUCE] * 2)
        snapshot = scene.cluster.nodes[0].snapshot("test")
        await scene.calls([BARRIER] * 2)
        assert states(snapshot.document()) == [("all_reduce", "done")]
        assert snapshot.document() == snapshot.document()

    scene.run(main)


def test_failures_of_any_kind_are_told_to_whoever_writes_dumps() -> None:
    scene = MailScene(3)
    told: list[tuple[int, str]] = []

    def news() -> set[int]:
        found = {rank for rank, _ in told}
        told.clear()
        return found

    async def main() -> None:
        for rank, node in enumerate(scene.cluster.nodes):
            node._on_failure = lambda what, rank=rank: told.append((rank, what))
        await scene.calls([ALL_REDUCE] * 3)
        assert news() == set()
        # also the rank that never came has to dump: it is the one to look at
        await scene.all(scene.call(rank, timeout_s=0.5) for rank in (0, 1))
        await scene.quiet()
        assert news() == {0, 1, 2}
        await scene.call(2)
        await scene.recv(0, 1, 5, timeout_s=0.5)
        assert 0 in news()
        scene.trainer(1).die()
        await scene.quiet()
        first = dict(reversed(told))
        assert first[1].startswith("this rank's trainer is gone: ")
        assert first[0].startswith("rank 1 is lost: trainer died (")
        assert first[2] == first[0]
        assert news() == {0, 1, 2}

    scene.run(main)


def test_recording_keeps_no_operation_alive() -> None:
    """What is kept of an operation are facts: its plan, region and caller may go."""
    scene = Scene(2)

    async def main() -> None:
        await scene.calls([ALL_REDUCE] * 2)
        await scene.all([scene.call(0, timeout_s=0.5)])
        flight: FlightRecorder = scene.cluster.nodes[0].flight
        for kept in flight._kept:
            modules = {type(part).__module__ for part in kept}
            assert modules <= {"builtins", "ringd.vocabulary"}

    scene.run(main)
