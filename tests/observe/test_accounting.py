"""The lines of the accounting: collectives of all groups, and messages."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringd.observe.accounting import AccountingFile
from ringd.vocabulary import ANY_SOURCE
from tests.engine.mail_scene import MailScene, message
from tests.engine.scene import ALL_REDUCE

LOG = logging.getLogger("ringd.test.accounting")
SIZES = {"segment_bytes": 4096, "eager_bytes": 1024}


def account(scene: MailScene, folder: Path) -> None:
    """Have all ranks append to one file, as the daemons of ``ringd run`` do."""
    for node in scene.cluster.nodes:
        node._recorder = AccountingFile(folder / "bytes.jsonl", LOG)


def lines(folder: Path, **wanted: Any) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "bytes.jsonl").read_text().splitlines()]
    return [x for x in found if all(x[name] == value for name, value in wanted.items())]


@pytest.mark.parametrize("n", [3, 5])
def test_a_call_is_found_by_epoch_group_and_seq(tmp_path: Path, n: int) -> None:
    scene = MailScene(n)
    members = (n - 1, 0)

    async def main() -> None:
        account(scene, tmp_path)
        group = await scene.make_group(members)
        await scene.sum_works()
        spec = replace(ALL_REDUCE, group=group)
        assert {one.code for one in await scene.all(scene.call(r, spec) for r in members)} == {"ok"}
        world = lines(tmp_path, epoch=1, group=0, op="all_reduce")
        assert sorted(x["rank"] for x in world) == list(range(n))
        assert {(x["seq"], x["group_size"], x["world_size"]) for x in world} == {(1, n, n)}
        of_group = lines(tmp_path, epoch=1, group=group)
        assert sorted(x["rank"] for x in of_group) == sorted(members)
        assert {(x["seq"], x["group_size"], x["world_size"]) for x in of_group} == {(0, 2, n)}
        assert {x["kind"] for x in world + of_group} == {"collective"}

    scene.run(main)


@pytest.mark.parametrize("count", [0, 5, 10_001])
def test_each_side_of_a_message_has_a_line(tmp_path: Path, count: int) -> None:
    scene = MailScene(3, **SIZES)

    async def main() -> None:
        account(scene, tmp_path)
        got = scene.recv_any(2, count, tag=7)
        await scene.send(0, 2, message(count, sender=0), tag=7)
        assert (await got).error is None
        (sent,), (received,) = lines(tmp_path, rank=0), lines(tmp_path, rank=2)
        common = {
            "kind": "p2p", "world_size": 3, "group": 0, "group_size": 3, "epoch": 1, "tag": 7,
            "dtype": "float32", "count": count, "error": None,
        }  # fmt: skip
        payload = {"payload": 4 * count}
        assert {**sent, **common} == sent
        assert (sent["op"], sent["peer"]) == ("send", 2)
        assert (sent["sent"], sent["received"]) == ({"2": payload}, {})
        assert {**received, **common} == received
        assert (received["op"], received["peer"]) == ("recv", 0)
        assert (received["sent"], received["received"]) == ({}, {"0": payload})

    scene.run(main)


def test_a_message_that_failed_says_so_and_how_far_it_came(tmp_path: Path) -> None:
    scene = MailScene(2, **SIZES)

    async def main() -> None:
        account(scene, tmp_path)
        scene.recv(0, ANY_SOURCE, 5, tag=1, timeout_s=0.5)
        scene.recv(0, 1, 5, tag=2, timeout_s=0.5)
        scene.send(0, 1, message(10_001, sender=0), tag=3, timeout_s=0.5)
        await asyncio.sleep(1.0)
        told = {x["tag"]: x for x in lines(tmp_path, kind="p2p", rank=0)}
        assert {x["error"] for x in told.values()} == {"timeout"}
        assert {tag: x["peer"] for tag, x in told.items()} == {1: None, 2: 1, 3: 1}
        assert told[1]["received"] == {}
        assert told[2]["received"] == {"1": {"payload": 0}}
        assert told[3]["sent"] == {"1": {"payload": 0}}

    scene.run(main)


def test_a_full_disk_ends_the_accounting_and_no_operation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = MailScene(2)

    async def main() -> None:
        await scene.sum_works()
        files = [AccountingFile(Path("/dev/full"), LOG) for _ in scene.cluster.nodes]
        for node, file in zip(scene.cluster.nodes, files, strict=True):
            node._recorder = file
        for _ in range(3):
            await scene.sum_works()
        for file in files:
            file.close()

    scene.run(main)
    told = [record.getMessage() for record in caplog.records if record.name == LOG.name]
    assert told == ["the accounting in /dev/full ends here: No space left on device"] * 2
