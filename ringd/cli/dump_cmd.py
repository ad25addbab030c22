"""``ringd dump``: the flight recorders of daemons that run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ringd.cli import options
from ringd.cli.exit_codes import COLLECTIVE

EXAMPLE = "Example: ringd dump --job-id run-1a2b3c4d --out dumps && ringd explain dumps"


def dump(
    ctx: typer.Context,
    socket: options.Socket = None,
    rank: options.AskedRank = None,
    job_id: options.AskedJob = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="Where the files go. (default: .)", metavar="DIR", show_default=False
        ),
    ] = Path(),
    config: options.Config = None,
    debug: options.Debug = None,
) -> None:
    """Write what the daemons on this machine remember: their last operations, a file per rank."""
    loaded = options.settings_from(ctx)

    from ringd.observe.dump_view import dump as write_dumps

    files, errors = write_dumps(loaded, out)
    if not files:
        raise errors[0]
    for path in files:
        print(path)
    for error in errors:
        print(f"ringd: {error}", file=sys.stderr)
    if errors:
        raise typer.Exit(COLLECTIVE)
