"""One rank: orders in, answers out, until told to end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import traceback
from typing import Any, TextIO

import ringd_client
from ringd.config import environment
from ringd_client import Communicator

Order = dict[str, Any]


def main(control: str) -> None:
    """Serve the socket ``control``."""
    with ringd_client.connect() as comm, socket.socket(socket.AF_UNIX) as sock:
        sock.connect(control)
        # A driver that has heard enough (of another rank's failure) closes in mid-answer.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            _serve(comm, sock)
        _end_gloo()


def _serve(comm: Communicator, sock: socket.socket) -> None:
    with sock.makefile("rw", encoding="utf-8") as file:
        _say(file, _hello(comm))
        for line in file:
            order = json.loads(line)
            if order["do"] == "end":
                break
            _say(file, _answer(comm, order))


def _say(file: TextIO, what: dict[str, Any]) -> None:
    file.write(json.dumps(what) + "\n")
    file.flush()


def _hello(comm: Communicator) -> dict[str, Any]:
    socket_path = environment.snapshot()[environment.variable("socket")]
    return {"rank": comm.rank, "pid": os.getpid(), "socket": socket_path}


def _answer(comm: Communicator, order: Order) -> dict[str, Any]:
    try:
        return _do(comm, order)
    except Exception as exc:
        traceback.print_exc()
        return {"failure": f"{type(exc).__name__}: {exc}"}


def _do(comm: Communicator, order: Order) -> dict[str, Any]:
    """Each part is imported when it is wanted."""
    match order["do"]:
        case "gloo":
            from ringd.demo.workers import gloo

            return gloo.start(comm, order)
        case "verify":
            from ringd.demo.workers import verify

            return verify.answer(comm, order)
        case "traffic":
            from ringd.demo.workers import traffic

            return traffic.answer(comm, order)
        case "timing":
            from ringd.demo.workers import timing

            return timing.answer(comm, order)
        case "training":
            from ringd.demo.workers import training

            return training.answer(comm, order)
        case "fault":
            from ringd.demo.workers import fault

            return fault.answer(comm, order)
    raise ValueError(f"nobody knows how to do {order['do']!r}")


def _end_gloo() -> None:
    if "torch" in sys.modules:
        from ringd.demo.workers import gloo

        gloo.stop()


if __name__ == "__main__":
    main(sys.argv[1])
