"""``python -m ringd.cli.child_daemon``: ``ringd daemon`` as programs start it by themselves.

All its settings come from the environment, so there is no command line to parse. That spares the
import of typer, which counts where a job's daemons all start at once on few cores.

With the argument ``-`` it is started ahead: it imports what it needs, and waits for the rest of
its settings on standard input. They are one line, a JSON object of settings and their texts. Where
none comes before standard input or the parent (RINGD_PARENT_PID) ends, it ends without a word.
"""

from __future__ import annotations

import gc
import os
import select
import sys
import traceback

from ringd.cli.exit_codes import OK, exit_code
from ringd.config import environment
from ringd.config.loader import load
from ringd.errors import RingdError

AHEAD = "-"


def main() -> None:
    """Run until the parent has ended, or SIGTERM or SIGINT; exits as ``ringd daemon`` does."""
    gc.disable()  # what imports make stays: looking for garbage there is a twentieth of the start
    environ = environment.snapshot()
    debug = False
    if sys.argv[1:] == [AHEAD]:
        environ = _completed(environ)
    try:
        loaded = load({}, environ=environ)
        debug = loaded.settings.debug
        loaded.require("rank", "world_size")

        from ringd.daemon.main import run_daemon

        gc.enable()
        run_daemon(loaded)
    except RingdError as error:
        if debug:
            traceback.print_exc()
        print(f"ringd: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(exit_code(error))


def _completed(environ: dict[str, str]) -> dict[str, str]:
    """The environment with the settings that come on standard input."""
    import json

    import ringd.daemon.main  # noqa: F401  while the parent does other things

    line = _line(int(environ.get(environment.variable("parent_pid"), 0)))
    if not line.endswith(b"\n"):
        sys.exit(OK)
    return environment.for_child(environ, **json.loads(line))


def _line(parent_pid: int) -> bytes:
    """What comes on standard input up to the end of a line, of itself, or of the parent.

    A process that the parent forked may hold the pipe open, so its end alone would not do.
    """
    try:
        parent = os.pidfd_open(parent_pid)
    except OSError:
        return b""
    line = b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([0, parent], [], [])
        more = os.read(0, 65536) if 0 in readable else b""
        if not more:
            break
        line += more
    os.close(parent)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return line


if __name__ == "__main__":
    main()
