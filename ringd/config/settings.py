"""What can be set, and the defaults. One flat, frozen dataclass.

A field is a key of ``ringd.toml``, a variable ``RINGD_<NAME>`` and, on the commands that use it,
a flag. Its type, in ``ringd.config.fields``, says what is allowed; ``ringd.config.checks`` holds
what users give against it. The types are names only here, so that to have settings takes no
import of pydantic.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ringd.config.values import KIB, MIB, PortRange

if TYPE_CHECKING:
    from ringd.config import fields

_ANY_PORT: Final = PortRange(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of daemons, rendezvous, launcher and client.

    Attributes:
        job_id: who does not name this job is refused at the handshake.
        rank: this daemon's or trainer's rank.
        world_size: number of ranks.
        min_size: the first epoch may begin with so many ranks; 0: with all.
        last_call_s: and does when no other came for so long.
        once: a rendezvous of its own ends by itself when the job is over: an epoch had begun, and
            no daemon has been there for ``dead_after_s``.
        rendezvous: where the rendezvous service listens (host:port).
        bind: local address to listen on. "": for a daemon the local address of the socket that
            reached the rendezvous; for the rendezvous see :meth:`rendezvous_listen`. Under
            ``ringd run`` both listen there.
        advertise: what others dial, where that differs from where we listen (NAT, containers).
        port: port or range to listen on; 0 is any free port. Under ``ringd run`` each daemon
            takes one of the range, and the rendezvous any that is free.
        interface: listen on this interface's address (instead of ``bind``).
        ip_version: address family to use where a name or interface has both.
        socket: the daemon's Unix socket, for its client.
        parent_pid: the process that started us; a second after its end we end as well (who is
            the rendezvous: once no other daemon is left). For what starts daemons by itself.
        secret_file: holds the job's secret; readable by its owner only.
        secret: the secret itself; from the environment only.
        join_timeout_s: until when all ranks must have come together.
        heartbeat_s: how often daemons and rendezvous say that they live.
        dead_after_s: how long a daemon or the rendezvous may be silent before it is taken for
            dead; more than twice ``heartbeat_s``.
        embed_rendezvous: this daemon is the rendezvous too, and listens at its address.
        quorum: whether only more than half of the last epoch's members may go on: "majority",
            "any", or "auto": majority where the rendezvous is embedded.
        timeout_s: default deadline of a collective call.
        recv_timeout_ms: longest silence of a peer whose bytes are waited for; 0 is off.
        segment_bytes: pipelining unit.
        eager_bytes: payloads up to this size need no credit of their receiver.
        max_in_flight: operations that a trainer may have posted and not finished.
        busy_poll_us: how long after a call of at most 64 KiB begins the daemon looks for its peers'
            bytes instead of sleeping (it yields the processor to whoever wants it); 0 is off.
        congestion: "auto" takes cubic within a host and a local network (a handshake of less than
            1 ms), else the system's; "system" leaves it alone; other words name the kernel's
            algorithm, and one that it refuses is an error at the start.
        arena_limit_bytes: cap on a trainer's shared memory; unset: 4 GiB, or a quarter of the
            machine's (or container's) memory when that is less.
        adopt_storages: the torch backend may move storages that recur into shared memory, so that
            they are not copied at each call.
        accounting: a file that gets one JSON line per operation and rank.
        dump_dir: where a daemon writes its flight recorder after a failure and on SIGUSR1; unset:
            beside its Unix socket, or if a program started it (parent_pid), in a folder of the job
            that ``last-failure`` shows.
        stack_signal: a real-time signal that the client takes, so that its daemon can say where
            its trainer is while others wait for it; 0 is off.
        log_level: the least severe level that is logged.
        log_json: log JSON lines.
        debug: tracebacks for errors, asyncio's debug mode.
    """

    job_id: fields.JobId = "default"
    rank: fields.Rank | None = None
    world_size: fields.WorldSize | None = None
    min_size: fields.MinSize = 0
    last_call_s: fields.Seconds = 3.0
    once: fields.Flag = False
    rendezvous: fields.ServiceAddress | None = None
    bind: fields.Host = ""
    advertise: fields.AdvertisedAddress | None = None
    port: fields.Ports = _ANY_PORT
    interface: fields.Interface = ""
    ip_version: fields.IpVersion = "any"
    socket: fields.SocketPath | None = None
    parent_pid: fields.ProcessId | None = None
    secret_file: fields.AnyPath | None = None
    secret: fields.SecretText | None = None
    join_timeout_s: fields.Seconds = 60.0
    heartbeat_s: fields.Seconds = 1.0
    dead_after_s: fields.Seconds = 3.0
    embed_rendezvous: fields.Flag = False
    quorum: fields.Quorum = "auto"
    timeout_s: fields.Seconds = 300.0
    recv_timeout_ms: fields.MillisecondsOrOff = 0
    segment_bytes: fields.SegmentSize = MIB
    eager_bytes: fields.EagerSize = 64 * KIB
    max_in_flight: fields.Operations = 1024
    busy_poll_us: fields.MicrosecondsOrOff = 1000
    congestion: fields.Congestion = "auto"
    arena_limit_bytes: fields.ArenaSize | None = None
    adopt_storages: fields.Flag = True
    accounting: fields.AnyPath | None = None
    dump_dir: fields.AnyPath | None = None
    stack_signal: fields.StackSignal = 41
    log_level: fields.LogLevel = "info"
    log_json: fields.Flag = False
    debug: fields.Flag = False

    def rendezvous_listen(self) -> tuple[str, PortRange]:
        """Where a rendezvous service listens: ``bind`` and ``port``, else what ``rendezvous`` says.

        Without any of them it is a free port of 127.0.0.1: nothing is open to others unasked.
        """
        host, port = self.bind, self.port
        if self.rendezvous is not None:
            host = host or self.rendezvous.host
            port = PortRange.parse(self.rendezvous.port) if port.any else port
        return host or "127.0.0.1", port


NAMES: Final = tuple(field.name for field in dataclasses.fields(Settings))
"""All settings, in their order."""
