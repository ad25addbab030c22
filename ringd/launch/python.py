"""How programs of ours start another one: by the Python and the ringd that run them."""

from __future__ import annotations

import sys


def own_module(name: str, *args: object) -> list[str]:
    """The command that runs one of our modules.

    -P: the working directory is the user's. A folder ``ringd`` there is another tree, and any file
    with a name of the standard library would come before it.
    """
    return [sys.executable, "-P", "-m", name, *map(str, args)]
