"""``ringd daemon``: one rank's daemon."""

from __future__ import annotations

import typer

from ringd.cli import options

EXAMPLE = (
    "Example: ringd daemon --rank 1 --world-size 4 --rendezvous 10.0.0.1:7000 "
    "--secret-file job.secret --socket ringd-1.sock"
)


def daemon(
    ctx: typer.Context,
    rank: options.Rank = None,
    world_size: options.WorldSize = None,
    rendezvous: options.Rendezvous = None,
    job_id: options.JobId = None,
    secret_file: options.SecretFile = None,
    join_timeout_s: options.JoinTimeout = None,
    timeout_s: options.Timeout = None,
    recv_timeout_ms: options.RecvTimeout = None,
    bind: options.Bind = None,
    advertise: options.Advertise = None,
    port: options.Port = None,
    interface: options.Interface = None,
    ip_version: options.IpVersion = None,
    socket: options.Socket = None,
    segment_bytes: options.SegmentBytes = None,
    eager_bytes: options.EagerBytes = None,
    max_in_flight: options.MaxInFlight = None,
    congestion: options.Congestion = None,
    arena_limit_bytes: options.ArenaLimit = None,
    accounting: options.Accounting = None,
    dump_dir: options.DumpDir = None,
    embed_rendezvous: options.EmbedRendezvous = None,
    quorum: options.Quorum = None,
    heartbeat_s: options.Heartbeat = None,
    dead_after_s: options.DeadAfter = None,
    config: options.Config = None,
    log_level: options.LogLevel = None,
    log_json: options.LogJson = None,
    debug: options.Debug = None,
) -> None:
    """Run the daemon of one rank: it joins its group, and serves the rank's trainer."""
    loaded = options.settings_from(ctx)
    loaded.require("rank", "world_size")

    from ringd.daemon.main import run_daemon

    run_daemon(loaded)
