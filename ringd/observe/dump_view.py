"""``ringd dump``: asks daemons for their flight recorders, and writes a file for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ringd.config.loader import Loaded
from ringd.errors import ConfigError, RingdError
from ringd.observe import dump_file
from ringd.observe.asking import asking, check_rank, find_all
from ringd.wire import ipc


def dump(loaded: Loaded, folder: Path) -> tuple[list[Path], list[RingdError]]:
    """Write the flight recorders of a job's daemons on this machine into ``folder``.

    Returns:
        The files, and the errors of daemons that did not answer.

    Raises:
        DaemonLostError: no daemon was found.
        InvalidArgumentError: there are several jobs here; names them. Or the socket that was
            given is another rank's.
        ConfigError: the folder can't be written to.
    """
    files, errors = [], []
    for path in find_all(loaded):
        try:
            document = ask(path)
        except RingdError as exc:
            errors.append(exc)
            continue
        check_rank(loaded, path, document["rank"])
        try:
            files.append(dump_file.write(document, folder))
        except OSError as exc:
            raise ConfigError(
                f"no dump can be written to {folder}: {exc.strerror}; name another folder "
                "with --out"
            ) from None
    return files, errors


def ask(path: Path) -> dict[str, Any]:
    """The flight recorder of the daemon at ``path``.

    Raises:
        DaemonLostError: it is not there, or does not answer within 5 s.
    """
    pieces, more = [], True
    with asking(path) as daemon:
        daemon.say(ipc.DUMP, 1)
        while more:
            _, _, more, piece = daemon.take(ipc.DUMP_REPLY)
            pieces.append(piece)
    document: dict[str, Any] = json.loads(b"".join(pieces))
    return document
