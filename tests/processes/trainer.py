"""A trainer's process: runs the programs that a test names.

Without arguments it reads orders from its standard input, one JSON line each, and answers each
with one. With a program's name and its arguments as JSON it runs that one, prints the result,
and ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TextIO


class Stage:
    """What lasts from one program to the next.

    Attributes:
        comm: the communicator, once a program has connected.
        kept: anything that a later program may want.
    """

    def __init__(self) -> None:
        self.comm: Any = None
        self.kept: dict[str, Any] = {}


def find(name: str) -> Callable[..., Any]:
    """The program that "module:function" names."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def obey(replies: TextIO) -> None:
    """Run orders until there are no more."""
    stage = Stage()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            reply = {"result": find(order["program"])(stage, **order["with"])}
        except Exception:
            reply = {"failed": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main() -> None:
    """See the module."""
    if len(sys.argv) > 1:
        name, arguments = sys.argv[1:3]
        print(json.dumps(find(name)(Stage(), **json.loads(arguments))))
        return
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a program prints is not an answer
    obey(replies)


if __name__ == "__main__":
    main()
