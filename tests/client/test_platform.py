"""Elsewhere than on Linux, and without torch."""

from __future__ import annotations

import subprocess
import sys

HEAD = "import sys; sys.path[:0] = {path!r}; "


def run(code: str) -> str:
    program = HEAD.format(path=[p for p in sys.path if p]) + code
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_elsewhere_the_import_says_that_linux_is_needed() -> None:
    said = run(
        "sys.platform = 'darwin'\n"
        "from ringd.errors import UnsupportedPlatformError\n"
        "try:\n import ringd_client\n"
        "except UnsupportedPlatformError as exc:\n print(exc)"
    )
    assert "Linux only, this is darwin" in said


def test_importing_the_client_imports_neither_torch_nor_numpy() -> None:
    code = "import ringd_client; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert run(code) == "[]"


def test_the_public_face_is_complete() -> None:
    code = "import ringd_client as r; print([n for n in r.__all__ if not hasattr(r, n)])"
    assert run(code) == "[]"
