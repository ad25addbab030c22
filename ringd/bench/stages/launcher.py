"""``launcher CONTROL run …``: ``ringd run …``, whose daemons are traced."""

from __future__ import annotations

import runpy
import sys

from ringd.launch import crew
from ringd.launch.python import own_module

CHILD, TRACED = "ringd.cli.child_daemon", "ringd.bench.stages.daemon"


def main() -> None:
    """Be ``ringd run``; the driver of the bench listens at CONTROL."""
    control = sys.argv.pop(1)

    def traced(name: str, *args: object) -> list[str]:
        return own_module(TRACED, control, *args) if name == CHILD else own_module(name, *args)

    setattr(crew, "own_module", traced)  # noqa: B010
    runpy.run_module("ringd", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
