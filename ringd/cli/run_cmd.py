"""``ringd run``: a whole job on this machine."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from ringd.cli import options
from ringd.config import environment
from ringd.config.values import MAX_WORLD_SIZE

EXAMPLE = "Example: ringd run -n 4 --accounting bytes.jsonl -- python train.py --epochs 3"
CONTEXT = {"allow_interspersed_args": False}
"""From the command's first word on, all belongs to it, options too."""


def run(
    ctx: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND [ARGS]...", help="What each rank runs.")
    ],
    n: Annotated[
        int,
        typer.Option(
            "-n", "--ranks", min=1, max=MAX_WORLD_SIZE, help="Number of ranks.", metavar="N"
        ),
    ],
    max_restarts: Annotated[
        int,
        typer.Option(
            "--max-restarts",
            min=0,
            help="How often a rank that failed is started anew, in all. (default: 0)",
            metavar="N",
            show_default=False,
        ),
    ] = 0,
    preload: Annotated[
        str,
        typer.Option(
            "--preload",
            help="Import these once, and fork each rank from there: torch for a torch script.",
            metavar="MODULE,...",
            show_default=False,
        ),
    ] = "",
    min_size: options.SpareSize = None,
    last_call_s: options.LastCall = None,
    job_id: options.OwnJobId = None,
    secret_file: options.SecretFile = None,
    join_timeout_s: options.JoinTimeout = None,
    timeout_s: options.Timeout = None,
    recv_timeout_ms: options.RecvTimeout = None,
    bind: options.Bind = None,
    port: options.DaemonPorts = None,
    interface: options.Interface = None,
    ip_version: options.IpVersion = None,
    segment_bytes: options.SegmentBytes = None,
    eager_bytes: options.EagerBytes = None,
    max_in_flight: options.MaxInFlight = None,
    congestion: options.Congestion = None,
    arena_limit_bytes: options.ArenaLimit = None,
    accounting: options.Accounting = None,
    dump_dir: options.DumpDir = None,
    embed_rendezvous: options.EmbedInFirst = None,
    quorum: options.Quorum = None,
    heartbeat_s: options.Heartbeat = None,
    dead_after_s: options.DeadAfter = None,
    config: options.Config = None,
    log_level: options.LauncherLogLevel = None,
    log_json: options.LogJson = None,
    debug: options.Debug = None,
) -> None:
    """Start a rendezvous, N daemons and N trainers; the first failure that is not made up for
    ends them all.

    With --max-restarts a rank that failed is started anew, and takes part again when the others
    call comm.reform(), or close and connect() again; when no restart is left, --min-size lets the
    job go on without it.
    """
    raise typer.Exit(_launch(ctx, command, n, max_restarts, preload))


def _launch(ctx: typer.Context, command: list[str], n: int, max_restarts: int, preload: str) -> int:
    with contextlib.ExitStack() as stack:
        preloader = None
        if preload:  # before all else: its imports take longest
            from ringd.launch.preloading import Preloader

            preloader = Preloader(preload.split(","), command, environment.snapshot())
            stack.enter_context(preloader)
        loaded = options.settings_from(ctx).placed("flag", world_size=n)

        from ringd.launch.run import run as launch

        return launch(command, n, loaded, max_restarts=max_restarts, preloader=preloader)
