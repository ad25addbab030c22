"""The process ``ringd daemon``: settings in, until told to end; and what its like share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from ringd import __version__
from ringd.config.loader import Loaded
from ringd.config.secret import load_secret
from ringd.config.settings import Settings
from ringd.daemon.continuity import Office
from ringd.daemon.mesh import Place
from ringd.daemon.node import Node
from ringd.daemon.server import ClientServer
from ringd.daemon.watch import ProcessWatch
from ringd.engine.engine import EngineOptions
from ringd.errors import ConfigError
from ringd.kernels import TorchLoader
from ringd.observe import dump_file, kept
from ringd.observe import log as logs
from ringd.observe.accounting import AccountingFile
from ringd.observe.dump_file import Dumper
from ringd.rendezvous.reach import AgentSettings
from ringd.rendezvous.service_settings import ServiceSettings
from ringd.transport.base import Address
from ringd.transport.handshaking import fresh_nonce
from ringd.transport.interfaces import interface_address, refused_host
from ringd.transport.tcp import TcpTransport, known_congestions, refused_congestion
from ringd.wire.handshake import DAEMON, Credentials

PARENT_GRACE_S = 1.0
"""From our parent's end to our own: peers are told of it first, and get what was sent."""
LOOK_EVERY_S = 0.1
_FAMILY = {"any": socket.AF_UNSPEC, "4": socket.AF_INET, "6": socket.AF_INET6}


def run_daemon(loaded: Loaded) -> None:
    """Run one rank's daemon until SIGTERM or SIGINT.

    Raises:
        RendezvousError: the group did not come together within ``join_timeout_s``.
        ConfigError, AddressInUseError: a setting can't be used.
    """
    check_congestion(loaded)
    if loaded.settings.bind:
        check_listening(loaded, "bind", loaded.settings.bind)
    log_as("daemon", loaded.settings)
    for text in loaded.warnings():
        logging.getLogger("ringd.daemon").warning("%s", text)
    torch = TorchLoader()
    uvloop.run(_daemon(loaded, torch), debug=loaded.settings.debug)
    torch.end_process()


def log_as(part: str, settings: Settings) -> None:
    rank = settings.rank if part == "daemon" else None
    logs.setup(part, rank=rank, level=settings.log_level, as_json=settings.log_json)


def engine_options(settings: Settings) -> EngineOptions:
    """What the engine takes of the settings."""
    return EngineOptions(
        segment_bytes=settings.segment_bytes,
        eager_bytes=settings.eager_bytes,
        timeout_s=settings.timeout_s,
        recv_timeout_s=settings.recv_timeout_ms / 1e3,
        max_in_flight=settings.max_in_flight,
        busy_poll_s=settings.busy_poll_us / 1e6,
    )


def service_settings(settings: Settings) -> ServiceSettings:
    """What a rendezvous of its own takes of the settings."""
    return ServiceSettings(
        dead_after_s=settings.dead_after_s,
        min_size=settings.min_size,
        last_call_s=settings.last_call_s,
        majority=settings.quorum == "majority",
    )


def office_of(settings: Settings) -> Office:
    """How a daemon is the rendezvous, if it is."""
    return Office(
        embed=settings.embed_rendezvous,
        settings=service_settings(settings),
        majority=None if settings.quorum == "auto" else settings.quorum == "majority",
    )


def transport_of(settings: Settings) -> TcpTransport:
    """TCP as the settings want it."""
    return TcpTransport(congestion=settings.congestion, family=_FAMILY[settings.ip_version])


def check_congestion(loaded: Loaded) -> None:
    """See that the kernel lets us have the congestion control that was asked for.

    Raises:
        ConfigError: it does not; names those that it has.
    """
    name = loaded.settings.congestion
    why = refused_congestion(name)
    if why:
        origin = loaded.origin["congestion"]
        raise ConfigError(
            f"congestion = {name!r} ({origin}): the kernel does not let us have it ({why}); "
            f"allowed: auto, system, or what the kernel has: {known_congestions()}",
            key="congestion",
            value=name,
            origin=origin,
        )


def check_rendezvous_listening(loaded: Loaded) -> None:
    """See that a rendezvous of its own can listen on its host, whichever setting names that.

    Raises:
        ConfigError: see :func:`check_listening`.
    """
    if not loaded.settings.interface:
        name = "bind" if loaded.settings.bind else "rendezvous"
        check_listening(loaded, name, loaded.settings.rendezvous_listen()[0])


def check_listening(loaded: Loaded, name: str, host: str) -> None:
    """See that this host has the address that it is to listen on; its ports are not looked at.

    Args:
        name: the setting that says so.

    Raises:
        ConfigError: it has not; names the setting's origin, and the addresses there are.
    """
    why = refused_host(host, _FAMILY[loaded.settings.ip_version])
    if why:
        origin = loaded.origin[name]
        raise ConfigError(
            f"{name} = {str(getattr(loaded.settings, name))!r} ({origin}): {why}",
            key=name,
            value=host,
            origin=origin,
        )


def place_of(settings: Settings) -> Place:
    """Where to listen and what to advertise."""
    bind = settings.bind
    if settings.interface:
        bind = interface_address(settings.interface, settings.ip_version)
    told = settings.advertise
    return Place(
        bind=bind,
        ports=tuple(settings.port),
        advertise_host=told.host if told else "",
        advertise_port=told.port if told else 0,
    )


async def _daemon(loaded: Loaded, torch: TorchLoader) -> None:
    settings = loaded.settings
    assert settings.rank is not None and settings.world_size is not None
    if settings.rendezvous is None:
        loaded.require("rendezvous")
    assert settings.rendezvous is not None
    loop = asyncio.get_running_loop()
    log = logging.getLogger(f"ringd.daemon[{settings.rank}]")
    deadline = loop.time() + settings.join_timeout_s
    _check_dumps(loaded, log)
    recorder = AccountingFile(settings.accounting, log) if settings.accounting else None
    dumper = Dumper(
        loop,
        lambda reason: node.snapshot(reason),
        log=log,
        setting=_dumps_setting(loaded),
        **_dump_place(loaded),
    )
    node = Node(
        loop=loop,
        transport=transport_of(settings),
        credentials=Credentials(
            settings.job_id, settings.rank, settings.world_size, DAEMON, load_secret(settings)
        ),
        rendezvous=Address(settings.rendezvous.host, settings.rendezvous.port),
        place=place_of(settings),
        options=engine_options(settings),
        rng=random.Random(secrets.randbits(64)),
        nonce=fresh_nonce,
        log=log,
        recorder=recorder,
        on_failure=dumper.on_failure,
        on_interrupt=dumper.on_interrupt,
        on_next_epoch=dumper.epoch_ends,
        bring_torch=torch.start,
        arena_limit_bytes=settings.arena_limit_bytes or 0,
        agent=AgentSettings(heartbeat_s=settings.heartbeat_s, dead_after_s=settings.dead_after_s),
        office=office_of(settings),
    )
    loop.add_signal_handler(signal.SIGUSR1, dumper.dump, "SIGUSR1")
    server = ClientServer(loop, node, loaded.socket_path)
    try:
        await until_told(
            lambda: _serve(node, server, settings, deadline, log),
            settings,
            lambda: node.serves_others,
        )
    finally:
        server.close()
        if settings.parent_pid is not None:  # it made the folder, and is gone
            with contextlib.suppress(OSError):
                loaded.socket_path.parent.rmdir()
        await node.stop()
        dumper.close()
        if recorder is not None:
            recorder.close()


def _check_dumps(loaded: Loaded, log: logging.Logger) -> None:
    """Warn at once where a failure could leave no dump; that forbids nobody to work."""
    folder = loaded.settings.dump_dir
    if folder is None:
        return
    try:
        dump_file.check(folder)
    except (OSError, ConfigError) as exc:
        log.warning("no flight recorder can be written: %s: %s", _dumps_setting(loaded), exc)


def _dumps_setting(loaded: Loaded) -> str:
    """What says where dumps go, and where it was set."""
    folder, origin = loaded.settings.dump_dir, loaded.origin["dump_dir"]
    if folder is None:
        return "dump_dir is not set"
    return f"dump_dir = {str(folder)!r}, {origin}"


def _dump_place(loaded: Loaded) -> dict[str, Any]:
    """Where a Dumper's files go: beside our socket, unless a setting says otherwise; for a parent
    that has no folder of its own into one of the job, which ``last-failure`` then shows."""
    settings = loaded.settings
    if settings.dump_dir is not None:
        return {"folder": settings.dump_dir}
    if settings.parent_pid is None:
        return {"folder": loaded.socket_path.parent}
    return {"folder": loaded.runtime_dir / kept.FAILURES / settings.job_id, "publish": kept.publish}


async def _serve(
    node: Node, server: ClientServer, settings: Settings, deadline: float, log: logging.Logger
) -> None:
    await node.start(deadline)
    log.info(
        "ringd %s daemon: rank %d of %d, job %s, listening on %s, advertised as %s, "
        "rendezvous %s, socket %s, transport tcp (congestion control %s), "
        "security HMAC-SHA-256 job secret, no TLS",
        __version__,
        node.rank,
        node.world_size,
        settings.job_id,
        node.listening,
        node.address,
        settings.rendezvous,
        server.path,
        settings.congestion,
    )
    try:
        async with asyncio.timeout_at(deadline):
            await node.formed.wait()
    except TimeoutError:
        raise node.incomplete(settings.join_timeout_s) from None
    await asyncio.Event().wait()


async def until_told(
    work: Callable[[], Awaitable[object]],
    settings: Settings,
    is_needed: Callable[[], bool] = lambda: False,
) -> None:
    """Run ``work`` until it fails, a signal asks us to end in order, or our parent has ended.

    Args:
        is_needed: whether somebody else than the parent still needs us.
    """
    loop = asyncio.get_running_loop()
    told = asyncio.Event()

    def orphaned() -> None:
        if is_needed():
            loop.call_later(LOOK_EVERY_S, orphaned)
        else:
            told.set()

    def parent_ended() -> None:
        loop.call_later(PARENT_GRACE_S, orphaned)

    watch = ProcessWatch(loop, settings.parent_pid or 0, parent_ended)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    task = asyncio.ensure_future(work())
    waiter = asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        watch.close()
        for pending in (task, waiter):
            pending.cancel()
        await asyncio.gather(task, waiter, return_exceptions=True)
