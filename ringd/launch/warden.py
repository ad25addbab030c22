"""The warden: ends process groups when its launcher is gone, however that happened.

It reads lines from its standard input, "+ PGID" and "- PGID"; at the end of the input (the
launcher ended, or was killed) it ends the groups that are still noted, and removes the folders
that are its arguments. It imports nothing of ringd, so that it starts at once and can't fail
with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time

GRACE_S = 2.0


def end_groups(groups: set[int], grace_s: float) -> None:
    """SIGTERM, a grace, SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for group in list(groups):
            try:
                os.killpg(group, number)
            except ProcessLookupError:
                groups.discard(group)
            except PermissionError:
                pass
        deadline = time.monotonic() + grace_s
        while groups and number == signal.SIGTERM and time.monotonic() < deadline:
            time.sleep(0.05)
            for group in list(groups):
                with contextlib.suppress(PermissionError):
                    try:
                        os.killpg(group, 0)
                    except ProcessLookupError:
                        groups.discard(group)


def main() -> None:
    """Read until the end of input, then end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        sign, _, number_text = line.strip().partition(" ")
        if number_text.isdigit():
            (groups.add if sign == "+" else groups.discard)(int(number_text))
    end_groups(groups, GRACE_S)
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
