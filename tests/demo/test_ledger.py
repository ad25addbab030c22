"""Accounting lines come back by operation and rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringd.demo.ledger import Ledger, by_operation, received, sent
from ringd.errors import RingdError


def line(seq: int, rank: int) -> dict[str, Any]:
    return {"kind": "collective", "group": 0, "group_size": 2, "seq": seq, "rank": rank}


def test_messages_and_other_groups_are_passed_over() -> None:
    message = {"kind": "p2p", "group": 0, "group_size": 2, "rank": 0, "peer": 1, "tag": 0}
    other = {**line(0, 1), "group": 3}
    assert by_operation([line(0, 0), message, other, line(0, 1)]) == [[line(0, 0), line(0, 1)]]


def test_lines_are_sorted_by_call_and_rank() -> None:
    lines = [line(5, 1), line(4, 0), line(5, 0), line(4, 1)]
    assert by_operation(lines) == [[line(4, 0), line(4, 1)], [line(5, 0), line(5, 1)]]


def test_a_missing_rank_is_an_error() -> None:
    with pytest.raises(RingdError, match="operation 5 has 1 of 2 ranks"):
        by_operation([line(4, 0), line(4, 1), line(5, 1)])


def test_a_ledger_goes_on_where_it_stopped(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "accounting.jsonl")
    ledger.skip()
    for seq in range(3):
        with ledger.path.open("a") as file:
            file.writelines(json.dumps(line(seq, rank)) + "\n" for rank in (0, 1))
        if seq == 0:
            ledger.skip()
        else:
            assert [lines[0]["seq"] for lines in ledger.take()] == [seq]
    assert ledger.take() == []


def test_bytes_of_a_line_are_those_of_all_peers() -> None:
    flow = {"payload": 10, "overhead": 3}
    entry = {"sent": {"0": flow, "2": flow}, "received": {"0": flow}}
    assert (sent(entry, "payload"), sent(entry, "overhead"), received(entry, "payload")) == (
        20, 6, 10
    )  # fmt: skip
