"""``python -m ringd.cli.child_daemon PARENT``: ``ringd daemon`` as programs start it.

Its settings are a line on standard input, by ``Loaded.to_line``: its parent has checked them, so
neither a command line nor pydantic is needed here. That spares imports, which counts where a job's
daemons all start at once on few cores. RINGD_ variables and files are not looked at.

PARENT is the parent's process id. The daemon may be started ahead: it imports what it needs, and
waits for the line. Where none comes before standard input or the parent ends, it ends without a
word.

Its errors are a line on standard error; with a second argument, a descriptor, a line there too.
With a third one, "rendezvous", it also imports what only a rendezvous needs.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import sys
import traceback

from ringd.cli.exit_codes import OK, exit_code
from ringd.config.loader import Loaded
from ringd.errors import RingdError


def main() -> None:
    """Run until the parent has ended, or SIGTERM or SIGINT; exits as ``ringd daemon`` does."""
    gc.disable()  # what imports make stays: looking for garbage there is a twentieth of the start
    from ringd.daemon.main import run_daemon  # while the parent does other things

    if "rendezvous" in sys.argv[3:]:
        import ringd.rendezvous.service  # noqa: F401 - the others wait for it
    line = _line(int(sys.argv[1]))
    if not line.endswith(b"\n"):
        sys.exit(OK)
    loaded = Loaded.from_line(line)
    gc.enable()
    try:
        run_daemon(loaded)
    except RingdError as error:
        if loaded.settings.debug:
            traceback.print_exc()
        text = " ".join(str(error).split())
        print(f"ringd: {text}", file=sys.stderr)
        _tell(text)
        sys.exit(exit_code(error))
    except Exception as error:
        _tell(repr(error))
        raise


def _tell(text: str) -> None:
    """Our parent why we end, if it wants to hear that."""
    with contextlib.suppress(OSError):
        for descriptor in sys.argv[2:3]:
            os.write(int(descriptor), text.encode())


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
