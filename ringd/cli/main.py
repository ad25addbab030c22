"""The console script: it loads the commands, and takes a Ctrl-C that comes meanwhile."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

_INTERRUPTED = 130
"""As in ``exit_codes``, which is not loaded yet."""


def main() -> None:
    """Load the commands, which takes some tenths of a second, and run one."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so under nohup
    if ours:
        signal.signal(signal.SIGINT, _leave)
    from ringd.cli.app import start

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    start()


def _leave(*_: object) -> NoReturn:
    """At once: there is nothing to clean up, and imports may swallow an exception."""
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
