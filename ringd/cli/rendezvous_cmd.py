"""``ringd rendezvous``: the service at which daemons meet."""

from __future__ import annotations

import typer

from ringd.cli import options

EXAMPLE = (
    "Example: ringd rendezvous --world-size 4 --bind 10.0.0.1 --port 7000 --secret-file job.secret"
)


def rendezvous(
    ctx: typer.Context,
    world_size: options.WorldSize = None,
    min_size: options.MinSize = None,
    last_call_s: options.LastCall = None,
    once: options.Once = None,
    job_id: options.JobId = None,
    secret_file: options.SecretFile = None,
    join_timeout_s: options.JoinTimeout = None,
    rendezvous: options.Rendezvous = None,
    bind: options.Bind = None,
    port: options.Port = None,
    interface: options.Interface = None,
    ip_version: options.IpVersion = None,
    quorum: options.Quorum = None,
    heartbeat_s: options.Heartbeat = None,
    dead_after_s: options.DeadAfter = None,
    config: options.Config = None,
    log_level: options.LogLevel = None,
    log_json: options.LogJson = None,
    debug: options.Debug = None,
) -> None:
    """Run the rendezvous service of a job until it is told to end, or with --once its job ends."""
    loaded = options.settings_from(ctx)
    loaded.require("world_size")

    from ringd.daemon.rendezvous_main import run_rendezvous

    run_rendezvous(loaded)
