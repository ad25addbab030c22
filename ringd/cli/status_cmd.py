"""``ringd status``: who is in the group, and what it is doing."""

from __future__ import annotations

from typing import Annotated

import typer

from ringd.cli import options

EXAMPLE = "Example: ringd status --job-id run-1a2b3c4d; ringd status --socket 0.sock --json"


def status(
    ctx: typer.Context,
    socket: options.Socket = None,
    rank: options.AskedRank = None,
    job_id: options.AskedJob = None,
    local: Annotated[
        bool, typer.Option("--local", help="Only what this daemon knows; ask no other.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    config: options.Config = None,
    debug: options.Debug = None,
) -> None:
    """Ask a daemon for its group: ranks, links, the current operation, bytes."""
    loaded = options.settings_from(ctx)

    from ringd.observe.status_view import show

    show(loaded, scope="daemon" if local else "group", as_json=as_json)
