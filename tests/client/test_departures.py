"""How a program's end is described: by the exception that is behind it, wherever it was raised."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from ringd.vocabulary import check_reduction
from ringd.wire.raised import Raised
from ringd_client import Communicator
from ringd_client._process import IN_ORDER, departure


def raised(make: Callable[[], object]) -> BaseException:
    try:
        make()
    except BaseException as exc:
        return exc
    raise AssertionError


def told(exc: BaseException) -> Raised:
    found = departure(exc).raised
    assert found is not None
    return found


def line_of(exc: BaseException, depth: int = -1) -> int | None:
    return traceback.extract_tb(exc.__traceback__)[depth].lineno


def test_an_exception_is_told_with_its_place() -> None:
    exc = raised(lambda: int("seven"))
    assert departure(exc).words() == {
        "how": "raised",
        "detail": "ValueError: invalid literal for int() with base 10: 'seven' "
        f"(test_departures.py:{line_of(exc)})",
        "exception": {
            "type": "ValueError",
            "message": "invalid literal for int() with base 10: 'seven'",
            "file": __file__,
            "line": line_of(exc),
        },
    }


def test_an_orderly_end_has_no_exception() -> None:
    assert IN_ORDER.words() == {"how": "closed", "detail": ""}
    assert departure(None) is IN_ORDER


def test_the_place_is_the_callers_line_not_ours(comm: Communicator) -> None:
    exc = raised(lambda: comm.all_reduce("no tensor"))  # type: ignore[arg-type]
    found = told(exc)
    assert (found.type, found.file) == ("UnsupportedTypeError", __file__)
    assert found.line == line_of(exc, 1)


@pytest.mark.parametrize(
    ("library", "call"),
    [
        ("torch", lambda: torch.nn.Linear(2, 2)(torch.ones(3))),
        ("torch", lambda: torch.ones(2, requires_grad=True).backward()),
        ("numpy", lambda: np.stack([])),
        ("json", lambda: json.loads("{")),
        ("ringd", lambda: check_reduction("int32", "avg")),
    ],
)
def test_the_place_is_the_programs_line_not_a_librarys(
    library: str, call: Callable[[], object]
) -> None:
    exc = raised(call)
    innermost = traceback.extract_tb(exc.__traceback__)[-1].filename
    assert f"/{library}/" in innermost  # what would be told without looking for the program's own
    found = told(exc)
    assert (found.type, found.message) == (type(exc).__name__, str(exc))
    assert (found.file, found.line) == (__file__, line_of(exc, 1))


def test_of_an_installed_program_the_place_is_the_innermost_line() -> None:
    def installed(name: str) -> Callable[..., object]:
        code = compile("def call(*args):\n    return args[0](*args[1:])", name, "exec")
        space: dict[str, Callable[..., object]] = {}
        exec(code, space)
        return space["call"]

    main = installed("/env/lib/python3.13/site-packages/trainer/main.py")
    step = installed("/env/lib/python3.13/site-packages/trainer/step.py")
    exc = raised(lambda: main(step, int, "seven"))
    assert exc.__traceback__ is not None
    exc.__traceback__ = exc.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert (told(exc).file, told(exc).line) == (step.__code__.co_filename, 2)


@pytest.mark.parametrize(
    ("code", "left"), [(None, "closed"), (0, "closed"), (3, "raised"), ("no data", "raised")]
)
def test_an_exit_is_a_failure_unless_it_reports_success(code: object, left: str) -> None:
    exc = raised(lambda: sys.exit(code))  # type: ignore[arg-type]
    found = departure(exc)
    assert found.how == left
    if found.raised:
        assert (found.raised.type, found.raised.message) == ("SystemExit", str(code))
        assert (found.raised.file, found.raised.line) == (__file__, line_of(exc, 1))


def exit_in_handler(status: int) -> None:
    try:
        torch.ones(2).reshape(3)
    except RuntimeError:
        sys.exit(status)


def test_of_an_exit_in_a_handler_the_exception_behind_it_is_told() -> None:
    found = told(raised(lambda: exit_in_handler(1)))
    assert (found.type, found.file) == ("RuntimeError", __file__)
    assert "invalid for input of size 2" in found.message
    assert departure(raised(lambda: exit_in_handler(0))) is IN_ORDER


def test_of_a_group_the_first_exception_is_told() -> None:
    async def fail() -> None:
        raise KeyError("k")

    async def program() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    found = told(raised(lambda: asyncio.run(program())))
    assert (found.type, found.message, found.file) == ("KeyError", "'k'", __file__)


def test_of_an_exception_of_a_thread_the_place_is_there() -> None:
    def work() -> None:
        print(1 / 0)

    with ThreadPoolExecutor(1) as pool:
        found = told(raised(pool.submit(work).result))
    assert (found.type, found.file) == ("ZeroDivisionError", __file__)
    assert found.line == work.__code__.co_firstlineno + 1


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_an_exception_that_can_not_be_printed_is_told_all_the_same() -> None:
    assert told(Unprintable()).message == "<its text can't be had>"
    assert str(told(Unprintable())) == "Unprintable: <its text can't be had>"


def test_what_has_no_text_and_no_place_is_told_by_its_name() -> None:
    assert departure(KeyboardInterrupt()).words()["detail"] == "KeyboardInterrupt"
    assert (told(KeyboardInterrupt()).file, told(KeyboardInterrupt()).line) == ("", 0)


def test_long_texts_are_cut() -> None:
    long = type("T" * 500, (Exception,), {})("m" * 5000)
    found = departure(long, ("/f" * 1000, 7)).raised
    assert found is not None
    assert (len(found.type), len(found.message), len(found.file)) == (200, 1000, 300)
    detail = departure(raised(lambda: {}["x" * 5000])).words()["detail"]
    assert len(detail) == 1000
    assert detail.startswith("KeyError: 'xxx")
    assert detail.rpartition(" ")[2].startswith("(test_departures.py:")


# ---------------------------------------------------------------- the end of a process

HEAD = """
import asyncio, sys, threading
sys.path[:0] = {path!r}
from ringd_client import _process
class Open:
    def _leave_at_exit(self, leaving):
        print(leaving.how, leaving.detail)
_process.opened(Open())
"""


def last_words(tmp_path: Path, code: str) -> str:
    """What an open communicator is told at the end of a program."""
    file = tmp_path / "train.py"
    file.write_text(HEAD.format(path=[p for p in sys.path if p]) + textwrap.dedent(code).strip())
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("pass", "closed"),
        ("raise ValueError('bad data')", "raised ValueError: bad data (train.py:9)"),
        ("sys.exit()", "closed"),
        ("sys.exit(3)", "raised SystemExit: 3 (train.py:9)"),
        ("sys.exit('no data')", "raised SystemExit: no data (train.py:9)"),
        ("from sys import exit; exit(3)", "raised SystemExit: 3 (train.py:9)"),
        ("exit(3)", "raised SystemExit: 3 (train.py:9)"),
        (
            "import argparse; argparse.ArgumentParser().error('no data')",
            "raised SystemExit: 2 (train.py:9)",
        ),
        ("quit()", "closed"),
        ("raise SystemExit(3)", "closed"),  # nobody is told of it: see docs/semantics.md
        ("raise KeyboardInterrupt", "raised KeyboardInterrupt (train.py:9)"),
        (
            "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
            "raised KeyboardInterrupt (train.py:",
        ),
        ("import os; os._exit(3)", ""),
        ("threading.Thread(target=lambda: 1 / 0).start()", "closed"),
        ("threading.Thread(target=exit, args=(3,)).start()", "closed"),
        (
            "try: 1 / 0\nexcept ZeroDivisionError: sys.exit(1)",
            "raised ZeroDivisionError: division by zero (train.py:9)",
        ),
        ("try: sys.exit(3)\nfinally: sys.exit(0)", "closed"),
        ("threading.Thread(target=sys.exit, args=(3,)).start()", "closed"),
        (
            "async def main(): raise OSError('disk')\nasyncio.run(main())",
            "raised OSError: disk (train.py:9)",
        ),
        (
            "sys.excepthook = lambda *_: None\nraise KeyError('k')",
            "raised KeyError: 'k' (train.py:10)",
        ),
    ],
)
def test_the_end_of_a_process_is_told_to_what_is_open(
    tmp_path: Path, code: str, words: str
) -> None:
    told = last_words(tmp_path, code)
    assert told.startswith(words) if words.endswith(":") else told == words
