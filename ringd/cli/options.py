"""The flags that carry settings, each written once, and their way into ``load``.

A command lists those it takes as parameters, named like the setting, and calls
:func:`settings_from`, which reads them from the context.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ringd.config.loader import Loaded

DEBUG = "ringd.debug"
"""Where the context tells the outermost handler whether a traceback is wanted."""

_JOB, _NETWORK, _TUNING, _GENERAL = "Job", "Network", "Tuning", "Settings and logs"


def _option(name: str, text: str, panel: str, metavar: str | None = None) -> object:
    return typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar, show_default=False)


JobId = Annotated[
    str | None, _option("--job-id", "Name of the job. (default: default)", _JOB, "NAME")
]
OwnJobId = Annotated[
    str | None,
    _option("--job-id", "Name of the job. (default: run-, and 8 random digits)", _JOB, "NAME"),
]
AskedJob = Annotated[
    str | None,
    _option("--job-id", "Whose daemons to ask, where several jobs run here.", _JOB, "NAME"),
]
Rank = Annotated[int | None, _option("--rank", "Our rank.", _JOB, "R")]
AskedRank = Annotated[int | None, _option("--rank", "Whose daemon to ask.", _JOB, "R")]
WorldSize = Annotated[int | None, _option("--world-size", "Number of ranks.", _JOB, "N")]
Rendezvous = Annotated[
    str | None,
    _option("--rendezvous", "Where the rendezvous service listens.", _JOB, "HOST:PORT"),
]
SecretFile = Annotated[
    Path | None,
    _option("--secret-file", "Holds the job's secret; else RINGD_SECRET.", _JOB, "PATH"),
]
MinSize = Annotated[
    int | None,
    _option(
        "--min-size", "The first epoch may begin with N ranks; 0: all. (default: 0)", _JOB, "N"
    ),
]
SpareSize = Annotated[
    int | None,
    _option(
        "--min-size",
        "Begin, and go on, without ranks that do not come or fail, down to N; 0: all are needed. "
        "(default: 0)",
        _JOB,
        "N",
    ),
]
LastCall = Annotated[
    float | None,
    _option(
        "--last-call",
        "With --min-size: how long to wait for another rank. (default: 3)",
        _JOB,
        "SECONDS",
    ),
]
Once = Annotated[
    bool | None,
    _option("--once", "End when the job has run, and no daemon is left.", _JOB),
]
JoinTimeout = Annotated[
    float | None,
    _option("--join-timeout", "Until all have joined. (default: 60)", _JOB, "SECONDS"),
]
Timeout = Annotated[
    float | None,
    _option(
        "--timeout",
        "Deadline of a collective; torch scripts have torch's. (default: 300)",
        _JOB,
        "SECONDS",
    ),
]
RecvTimeout = Annotated[
    int | None,
    _option(
        "--recv-timeout-ms", "Longest silence of a peer that owes bytes. (default: 0)", _JOB, "MS"
    ),
]
Bind = Annotated[str | None, _option("--bind", "Local address to listen on.", _NETWORK, "HOST")]
Advertise = Annotated[
    str | None,
    _option("--advertise", "What others dial, if not where we listen.", _NETWORK, "HOST[:PORT]"),
]
EmbedRendezvous = Annotated[
    bool | None,
    _option("--embed-rendezvous", "This daemon is the rendezvous too, at that address.", _NETWORK),
]
EmbedInFirst = Annotated[
    bool | None,
    _option("--embed-rendezvous", "Rank 0's daemon is the rendezvous too.", _NETWORK),
]
Quorum = Annotated[
    str | None,
    _option("--quorum", "Who may go on: auto, majority, any. (default: auto)", _NETWORK, "RULE"),
]
Heartbeat = Annotated[
    float | None,
    _option("--heartbeat", "Seconds between two signs of life. (default: 1)", _TUNING, "SECONDS"),
]
DeadAfter = Annotated[
    float | None,
    _option("--dead-after", "Silence that is taken for death. (default: 3)", _TUNING, "SECONDS"),
]
Port = Annotated[
    str | None,
    _option(
        "--port", "Port, or range like 7000-7010; 0 is any. (default: 0)", _NETWORK, "PORT[-PORT]"
    ),
]
DaemonPorts = Annotated[
    str | None,
    _option(
        "--port",
        "Ports of the daemons, one for each, like 7000-7010; 0 is any; the rendezvous takes a "
        "free one. (default: 0)",
        _NETWORK,
        "PORT-PORT",
    ),
]
Interface = Annotated[
    str | None,
    _option("--interface", "Listen on this interface's address.", _NETWORK, "NAME"),
]
IpVersion = Annotated[
    str | None, _option("--ip-version", "any, 4 or 6. (default: any)", _NETWORK, "VERSION")
]
Socket = Annotated[
    Path | None,
    _option("--socket", "The daemon's Unix socket, for its client.", _NETWORK, "PATH"),
]
SegmentBytes = Annotated[
    str | None,
    _option("--segment-bytes", "Pipelining unit. (default: 1M)", _TUNING, "SIZE"),
]
EagerBytes = Annotated[
    str | None,
    _option("--eager-bytes", "Payloads that need no credit. (default: 64K)", _TUNING, "SIZE"),
]
MaxInFlight = Annotated[
    int | None,
    _option("--max-in-flight", "Unfinished operations at once. (default: 1024)", _TUNING, "N"),
]
Congestion = Annotated[
    str | None,
    _option(
        "--congestion", "auto, system, or a kernel algorithm. (default: auto)", _TUNING, "NAME"
    ),
]
ArenaLimit = Annotated[
    str | None,
    _option("--arena-limit-bytes", "Cap on a trainer's shared memory.", _TUNING, "SIZE"),
]
Accounting = Annotated[
    Path | None,
    _option("--accounting", "Write a JSON line per operation and rank.", _GENERAL, "PATH"),
]
DumpDir = Annotated[
    Path | None,
    _option("--dump-dir", "Where flight recorders go after a failure.", _GENERAL, "DIR"),
]
Config = Annotated[
    Path | None,
    _option("--config", "Settings file. (default: RINGD_CONFIG or ringd.toml)", _GENERAL, "PATH"),
]
LauncherLogLevel = Annotated[
    str | None,
    _option("--log-level", "debug, info, warning, error. (default: warning)", _GENERAL, "LEVEL"),
]
LogLevel = Annotated[
    str | None,
    _option("--log-level", "debug, info, warning, error. (default: info)", _GENERAL, "LEVEL"),
]
LogJson = Annotated[bool | None, _option("--log-json", "Log JSON lines.", _GENERAL)]
Debug = Annotated[bool | None, _option("--debug", "Show tracebacks of errors.", _GENERAL)]


def settings_from(ctx: typer.Context, **more: object) -> Loaded:
    """The settings that hold for this command, its flags included.

    Args:
        ctx: the command's context; parameters that are named like a setting are its flags.
        more: settings that the command sets by other means.

    Raises:
        ConfigError: see ``load``.
    """
    from ringd.config import environment
    from ringd.config.loader import load
    from ringd.config.settings import NAMES

    ctx.meta[DEBUG] = bool(ctx.params.get("debug"))
    flags = {name: value for name, value in ctx.params.items() if name in NAMES}
    loaded = load(
        {**flags, **more}, environ=environment.snapshot(), config_path=ctx.params.get("config")
    )
    ctx.meta[DEBUG] = loaded.settings.debug
    return loaded
