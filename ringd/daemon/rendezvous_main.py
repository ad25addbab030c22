"""The process ``ringd rendezvous``: settings in, until told to end, or until its job is over."""

from __future__ import annotations

import asyncio
import logging

import uvloop

from ringd import __version__
from ringd.config.loader import Loaded
from ringd.config.secret import load_secret
from ringd.config.settings import Settings
from ringd.daemon.main import (
    LOOK_EVERY_S,
    check_congestion,
    check_rendezvous_listening,
    log_as,
    service_settings,
    transport_of,
    until_told,
)
from ringd.errors import AddressInUseError
from ringd.rendezvous.service import RendezvousService
from ringd.transport.base import Address
from ringd.transport.interfaces import interface_address
from ringd.wire.handshake import RENDEZVOUS, Credentials


def run_rendezvous(loaded: Loaded) -> None:
    """Run the rendezvous service until SIGTERM or SIGINT, or as long as ``once`` says.

    Raises:
        ConfigError, AddressInUseError: a setting can't be used.
    """
    check_congestion(loaded)
    check_rendezvous_listening(loaded)
    log_as("rendezvous", loaded.settings)
    for text in loaded.warnings():
        logging.getLogger("ringd.rendezvous").warning("%s", text)
    uvloop.run(_rendezvous(loaded.settings), debug=loaded.settings.debug)


async def _rendezvous(settings: Settings) -> None:
    log = logging.getLogger("ringd.rendezvous")
    assert settings.world_size is not None
    service = RendezvousService(
        transport_of(settings),
        Credentials(settings.job_id, -1, settings.world_size, RENDEZVOUS, load_secret(settings)),
        log=log,
        settings=service_settings(settings),
    )
    host, ports = settings.rendezvous_listen()
    if settings.interface:
        host = interface_address(settings.interface, settings.ip_version)

    async def serve() -> None:
        log.info(
            "ringd %s rendezvous: job %s, %d ranks, transport tcp, security HMAC-SHA-256 job "
            "secret, no TLS",
            __version__,
            settings.job_id,
            settings.world_size,
        )
        await _start_on(service, host, list(ports))  # it says where
        if settings.once:
            await _job_over(service, settings.dead_after_s)
        else:
            await asyncio.Event().wait()

    try:
        await until_told(serve, settings, lambda: service.serves_others)
        log.info("the rendezvous of job %s ends", settings.job_id)
    finally:
        await service.stop()


async def _job_over(service: RendezvousService, dead_after_s: float) -> None:
    """Return when an epoch had begun and no daemon has been there for ``dead_after_s``: one that
    only lost its connection would be back by then."""
    loop = asyncio.get_running_loop()
    last_seen = loop.time()
    while loop.time() < last_seen + dead_after_s:
        if service.serves_others or not service.had_epoch:
            last_seen = loop.time()
        await asyncio.sleep(LOOK_EVERY_S)


async def _start_on(service: RendezvousService, host: str, ports: list[int]) -> Address:
    for port in ports[:-1]:
        try:
            return await service.start(Address(host, port))
        except AddressInUseError:
            continue
    return await service.start(Address(host, ports[-1]))
