"""``python -m ringd.cli.child_daemon``: ``ringd daemon`` as programs start it by themselves.

All its settings come from the environment, so there is no command line to parse. That spares the
import of typer, which counts where a job's daemons all start at once on few cores.
"""

from __future__ import annotations

import sys

from ringd.cli.exit_codes import exit_code
from ringd.config import environment
from ringd.config.loader import load
from ringd.errors import RingdError


def main() -> None:
    """Run until the parent has ended, or SIGTERM or SIGINT; exits as ``ringd daemon`` does."""
    try:
        loaded = load({}, environ=environment.snapshot())
        loaded.require("rank", "world_size")

        from ringd.daemon.main import run_daemon

        run_daemon(loaded)
    except RingdError as error:
        print(f"ringd: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
