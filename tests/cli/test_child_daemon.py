"""The daemon that programs start by themselves: the same settings and errors, less to import."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

MODULE = "ringd.cli.child_daemon"


def child(**settings: object) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RINGD_")}
    env |= {f"RINGD_{name.upper()}": str(value) for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, "-m", MODULE], env=env, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        ({}, 2, "rank is not set"),
        ({"rank": 5, "world_size": 2}, 2, "rank is 5, allowed are 0 to 1"),
        ({"rank": 0, "world_size": 1, "segmnt_bytes": 1}, 2, "did you mean"),
    ],
)
def test_an_error_is_one_line_and_the_exit_code_of_the_command(
    settings: dict[str, object], code: int, text: str
) -> None:
    done = child(**settings)
    assert done.returncode == code
    assert text in done.stderr
    assert done.stderr.startswith("ringd: ")
    assert done.stderr.count("\n") == 1


def test_it_imports_nothing_that_it_can_do_without() -> None:
    """Four of them start at once on two cores: each of these would be seen in a job's start."""
    heavy = ("typer", "rich", "pydantic", "torch", "tomllib", "numpy.testing", "ringd_client")
    code = (
        f"import sys, {MODULE}, ringd.daemon.main; print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def ahead(parent: int | None = None) -> subprocess.Popen[str]:
    """One that is started ahead, of this process or another parent."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RINGD_")}
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, "-"],
        env=env | {"RINGD_PARENT_PID": str(parent or os.getpid())},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def watches(pid: int) -> bool:
    """Whether it has a descriptor of a process."""
    with contextlib.suppress(OSError):  # one is closed while we look
        return any("pidfd" in str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_started_ahead_it_takes_settings_from_its_input() -> None:
    done = ahead()
    said = {"rank": "5", "world_size": "2", "secret": "hush-hush-hush-hush"}
    _, err = done.communicate(json.dumps(said) + "\n", timeout=60)
    assert done.returncode == 2
    assert "rank is 5, allowed are 0 to 1" in err
    assert "hush" not in err


@pytest.mark.parametrize("text", ["", '{"rank": "0"'])
def test_started_ahead_it_ends_without_a_word_if_it_is_not_needed(text: str) -> None:
    done = ahead()
    _, err = done.communicate(text, timeout=60)
    assert (done.returncode, err) == (0, "")


def test_started_ahead_it_ends_with_its_parent_though_its_input_stays_open() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent:
        child = ahead(parent.pid)
        while not watches(child.pid):
            assert child.poll() is None
            time.sleep(0.01)
        parent.kill()
        parent.wait()
        assert child.wait(60) == 0
        child.communicate()
