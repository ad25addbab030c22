"""``ip`` and ``tc``: every call has a deadline, and says what went wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from ringd.errors import UnsupportedPlatformError

LIMIT_S = 30.0
"""Of one call."""
TOOLS = ("ip", "tc", "unshare")


def why_not() -> str:
    """Why there can be no lab here, as far as a quick look tells; "" if nothing speaks against."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is missing (Debian: iproute2, util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        call("unshare", "--net", "--mount", "true")  # as root of a container may not
    except UnsupportedPlatformError as exc:
        return f"this system lets us make no network namespaces: {exc}"
    return ""


def check_possible() -> None:
    """See :func:`why_not`.

    Raises:
        UnsupportedPlatformError: something speaks against a lab.
    """
    if reason := why_not():
        raise UnsupportedPlatformError(f"no lab can be made here: {reason}")


def call(*command: str, text: str = "") -> str:
    """Run a command with ``text`` as its input; its output.

    Raises:
        UnsupportedPlatformError: it failed, or did not end in time.
    """
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise UnsupportedPlatformError(f"{' '.join(command)}: {exc}") from None
    if done.returncode:
        why = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UnsupportedPlatformError(f"{' '.join(command)}: {why}")
    return done.stdout


def ip(namespace: str, lines: Sequence[str]) -> None:
    """Run ``ip`` commands in a namespace ("": ours), one after another, in one process."""
    where = ["-netns", namespace] if namespace else []
    call("ip", *where, "-batch", "-", text="\n".join(lines) + "\n")


def tc(namespace: str, lines: Sequence[str]) -> None:
    """Run ``tc`` commands in a namespace, one after another, in one process."""
    call("tc", "-netns", namespace, "-batch", "-", text="\n".join(lines) + "\n")
