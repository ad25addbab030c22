"""``python -m ringd.lab.keeper NAME``: takes a lab down when its maker is gone, however it went.

It reads its standard input, which the maker holds. "keep" means that the lab is to stay, or is
down already; the end of the input without it, that the maker was killed.
"""

from __future__ import annotations

import signal
import sys

from ringd.lab.ending import take_down


def main() -> None:
    """See the module."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.readline().strip() != "keep":
        take_down(sys.argv[1])


if __name__ == "__main__":
    main()
