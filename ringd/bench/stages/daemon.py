"""``daemon CONTROL PARENT``: the daemon that ``ringd run`` starts, traced.

A thread beside it sleeps until the driver at CONTROL asks for the marks.
"""

from __future__ import annotations

import runpy
import sys
import threading

from ringd.bench.orders import serve
from ringd.bench.stages.hooks import trace_daemon
from ringd.bench.stages.marks import Recorder
from ringd.config import environment


def main() -> None:
    """Run it until it ends."""
    control = sys.argv.pop(1)
    hello = {"impl": "daemon", "rank": int(environment.snapshot()["RANK"])}
    recorder = Recorder()
    trace_daemon(recorder)
    answering = threading.Thread(
        target=serve, args=(control, hello, lambda _: recorder.take()), daemon=True
    )
    answering.start()
    runpy.run_module("ringd.cli.child_daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
