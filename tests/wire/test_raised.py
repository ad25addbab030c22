"""An exception on its way to other ranks: bounded, and refused if it is none."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from ringd.wire.raised import MAX_FILE, MAX_LINE, MAX_TEXT, MAX_TYPE, Raised

GOOD = {"type": "ValueError", "message": "bad data", "file": "/job/train.py", "line": 41}


def test_it_comes_as_it_was_sent() -> None:
    raised = Raised("ValueError", "bad data", "/job/train.py", 41)
    assert raised.words() == GOOD
    assert Raised.read(msgpack.unpackb(msgpack.packb(GOOD))) == raised
    assert Raised.read(None) is None


def test_people_read_it_in_one_line_and_programs_as_fields() -> None:
    raised = Raised("ValueError", "bad data", "/job/train.py", 41)
    assert str(raised) == "ValueError: bad data (train.py:41)"
    assert str(Raised("KeyboardInterrupt")) == "KeyboardInterrupt"
    assert raised.fields() == {
        "exception_type": "ValueError",
        "exception_message": "bad data",
        "file": "/job/train.py",
        "line": 41,
    }


def test_texts_are_cut_and_of_a_path_the_end_is_kept() -> None:
    data = {"type": "T" * 999, "message": "m" * 9999, "file": "/f" * 999, "line": 2**40}
    assert Raised.read(data) == Raised(
        "T" * MAX_TYPE, "m" * MAX_TEXT, "/f" * (MAX_FILE // 2), MAX_LINE
    )


@pytest.mark.parametrize(
    "data",
    [
        "ValueError",
        [],
        {**GOOD, "type": None},
        {**GOOD, "message": 3},
        {**GOOD, "file": b"train.py"},
        {**GOOD, "line": "41"},
        {**GOOD, "line": True},
        {k: v for k, v in GOOD.items() if k != "file"},
    ],
)
def test_what_is_none_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="an exception"):
        Raised.read(data)


def test_what_utf_8_has_not_can_be_sent_all_the_same() -> None:
    raised = Raised.cut("E", "bad \udcff byte", "/job/\udce4.py", 3)
    assert msgpack.unpackb(msgpack.packb(raised.words())) == {
        "type": "E",
        "message": "bad ? byte",
        "file": "/job/?.py",
        "line": 3,
    }
