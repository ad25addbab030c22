"""The log's lines."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from ringd.observe.log import setup

log = logging.getLogger("ringd.test")


@pytest.fixture(autouse=True)
def root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_says_when_who_and_what() -> None:
    out = io.StringIO()
    setup("daemon", rank=2, stream=out)
    log.info("joined %s", "job")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ringd\.daemon\[2\]: joined job\n", out.getvalue()
    )


def test_a_part_without_a_rank_has_no_brackets_and_warnings_say_so() -> None:
    out = io.StringIO()
    setup("rendezvous", stream=out)
    log.warning("late")
    assert out.getvalue().endswith("Z ringd.rendezvous: warning: late\n")


def test_json_lines_hold_the_same() -> None:
    out = io.StringIO()
    setup("daemon", rank=0, as_json=True, stream=out)
    log.error("lost\nrank 1")
    line = json.loads(out.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "error",
        "part": "daemon",
        "rank": 0,
        "logger": "ringd.test",
        "message": "lost\nrank 1",
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_a_secret_never_appears_not_even_in_a_traceback(as_json: bool) -> None:
    out = io.StringIO()
    setup("daemon", as_json=as_json, stream=out, secrets=["hush-hush-hush"])
    try:
        raise ValueError("hush-hush-hush")
    except ValueError:
        log.exception("with %s", "hush-hush-hush")
    assert "hush-hush-hush" not in out.getvalue()
    assert "***" in out.getvalue()
    assert "ValueError" in out.getvalue()


def test_a_text_with_line_breaks_cannot_pass_for_another_line() -> None:
    out = io.StringIO()
    setup("daemon", stream=out)
    log.info("a\n2026-01-01T00:00:00.000Z ringd.daemon: forged")
    assert out.getvalue().splitlines()[1].startswith("    ")


def test_the_level_holds_and_a_second_set_up_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup("daemon", stream=first)
    setup("daemon", level="error", stream=second)
    log.info("quiet")
    log.error("loud")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1
