"""The daemon that programs start by themselves: the same settings and errors, less to import."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_it_imports_neither_the_command_line_nor_torch() -> None:
    code = (
        f"import sys, {MODULE}, ringd.daemon.main; "
        "print([m for m in ('typer', 'rich', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
