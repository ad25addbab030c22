"""The local launcher: a rendezvous, N daemons, N trainers.

The first failure ends them all, unless ranks may be started anew or done without (``crew``).
The rendezvous runs inside the launcher, or in rank 0's daemon if that is asked for. Every other
process stands in a group of its own, and a warden ends these groups when the launcher is killed, so
nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

from ringd.config.loader import Loaded
from ringd.config.secret import load_secret, make_secret_file
from ringd.daemon.main import check_congestion, check_listening, service_settings, transport_of
from ringd.errors import ConfigError, RingdError
from ringd.launch import folders
from ringd.launch.children import Child, Children
from ringd.launch.crew import DAEMON_STEPS, Crew, Job
from ringd.launch.preloading import Preloader
from ringd.launch.terminal import Terminal
from ringd.launch.writer import LogStream
from ringd.observe import log as logs
from ringd.observe.accounting import AccountingFile
from ringd.observe.kept import LAST_FAILURE
from ringd.observe.status_view import ask
from ringd.rendezvous.service import RendezvousService
from ringd.transport.base import Address
from ringd.vocabulary import ranks_text
from ringd.wire.handshake import RENDEZVOUS, Credentials
from ringd.wire.raised import Raised

log = logging.getLogger("ringd.run")
Status = Callable[[], Awaitable[dict[str, Any]]]
SURVIVOR_GRACE_S = 3.0
"""After a failure: how long the other trainers may take to see it and say so."""
LOOK_EVERY_S = 0.5
VERDICT_S, ASK_EVERY_S = 2.0, 0.02
"""How long, and how often, it is asked whose failure it was, before the end of the job is said."""
FAILURE, SURVIVED, BEFORE = "this failure", "a fault that was survived", "what failed before that"
NOT_FORMED = 3
DAEMON_FAILED = 4
_WAITING_STEPS: tuple[tuple[int, float], ...] = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0))
"""For trainers that wait for an epoch which can't come: they would say nothing of it."""
_FAILURE_STEPS = ((0, SURVIVOR_GRACE_S), *_WAITING_STEPS)
_INTERRUPT_STEPS = ((signal.SIGINT, 2.0), (signal.SIGTERM, 1.0), (signal.SIGKILL, 5.0))


def run(
    command: Sequence[str],
    n: int,
    loaded: Loaded,
    *,
    max_restarts: int = 0,
    preloader: Preloader | None = None,
) -> int:
    """Run ``command`` as N ranks on this machine.

    Args:
        preloader: of this command, if there is one.
        max_restarts: how often, in all, a rank that failed is started anew. After that the job
            goes on without ranks that fail, down to the setting ``min_size``.

    Returns:
        0 when all trainers ended well, but for those that it went on without; else the exit code of
        the first that failed (128 + the signal's number if one ended it), 4 if a daemon did, 130
        after Ctrl-C.

    Raises:
        ConfigError: the command can't be run, or a setting or the runtime folder can't be used.
    """
    if shutil.which(command[0]) is None:
        hint = f"; try: -- python {command[0]}" if Path(command[0]).is_file() else ""
        raise ConfigError(f"the command {command[0]!r} is not found{hint}")
    _enough_ports(n, loaded)
    check_congestion(loaded)
    if loaded.settings.bind:
        check_listening(loaded, "bind", loaded.settings.bind)
    _set_up_log(loaded)
    for text in loaded.warnings():
        log.warning("%s", text)
    if loaded.settings.accounting is not None:
        AccountingFile(loaded.settings.accounting, log).close()  # before anything is started
    job = _prepare(n, loaded)
    log.info("job %s begins, with %d rank%s", job.job_id, n, "" if n == 1 else "s")
    try:
        return asyncio.run(_run_and_tell(job, command, max_restarts, preloader))
    finally:
        shutil.rmtree(job.folder, ignore_errors=True)


def _enough_ports(n: int, loaded: Loaded) -> None:
    """Each daemon listens on a port of its own, and all are on one address here."""
    ports = loaded.settings.port
    here = len(list(ports))
    if not ports.any and here < n:
        origin = loaded.origin["port"]
        raise ConfigError(
            f"port = {ports} ({origin}): too few, as each of the {n} daemons here listens on one "
            f"of its own; allowed: 0 (any), or a range of {n} or more, like 7000-{7000 + n - 1}",
            key="port",
            value=str(ports),
            origin=origin,
        )


def _keep_dumps(folder: Path, what: str = FAILURE) -> None:
    """What the flight recorders wrote of a failure outlives the job, until the next one fails.

    Args:
        what: went wrong, for the log.
    """
    dumps = sorted(folder.glob("flight-rank*.json"))
    if not dumps:
        return
    kept = folder.parent / LAST_FAILURE
    try:
        folders.keep(dumps, kept)
    except OSError as exc:  # the job's own exit code matters more
        log.warning("flight recorders of %s can't be kept in %s: %s", what, kept, exc.strerror)
    else:
        log.info("flight recorders of %s: ringd explain %s/*.json", what, kept)


def _set_up_log(loaded: Loaded, stream: TextIO | None = None) -> None:
    """The launcher's few lines on the job itself are shown unless a level was asked for that is
    quieter; those of its other parts (the rendezvous) are not."""
    logs.setup("run", level=_log_level(loaded), as_json=loaded.settings.log_json, stream=stream)
    by_default = loaded.origin["log_level"] == "default"
    log.setLevel(logging.INFO if by_default else logging.NOTSET)


def _log_level(loaded: Loaded) -> str:
    """Of the launcher and its daemons: quiet, unless somebody asked."""
    asked = loaded.origin["log_level"] != "default"
    return loaded.settings.log_level if asked else "warning"


def _prepare(n: int, loaded: Loaded) -> Job:
    """A folder of the user's own for the job: sockets, secret, and a file that describes it."""
    settings = loaded.settings
    given = loaded.origin["job_id"] != "default"
    job_id = settings.job_id if given else f"run-{secrets.token_hex(4)}"
    folder = loaded.runtime_dir / job_id
    try:
        folders.make_job_folder(folder, n)
    except FileExistsError:
        raise ConfigError(
            f"the job {job_id!r} is running already ({folder} is there); choose another job id"
        ) from None
    try:
        secret_file = settings.secret_file
        if secret_file is None and settings.secret is None:
            secret_file = folder / "secret"
            make_secret_file(secret_file)
        elif secret_file is None:
            secret_file = folder / "secret"
            secret_file.touch(mode=0o600)
            secret_file.write_bytes(load_secret(settings))
        store_port = _free_port("127.0.0.1")
        return Job(loaded, n, job_id, folder, secret_file, _log_level(loaded), store_port)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


async def _run_and_tell(
    job: Job, command: Sequence[str], max_restarts: int, preloader: Preloader | None
) -> int:
    """Run the job; all that is printed meanwhile is printed by writers, at the end too."""
    terminal = Terminal.taken()
    _set_up_log(job.loaded, cast(TextIO, LogStream(terminal.err)))
    children = Children(terminal.out, terminal.err)
    crew = Crew(job, children, command, restarts_left=max_restarts, preloader=preloader)
    try:
        return await _run(job, crew, terminal.told)
    finally:
        await terminal.close(log.warning)
        _set_up_log(job.loaded)


async def _run(job: Job, crew: Crew, told: asyncio.Queue[int]) -> int:
    """The exit code; ``told`` gets the signals that come."""
    children = crew.children
    settings = dataclasses.replace(
        job.loaded.settings, secret_file=job.secret_file, job_id=job.job_id
    )
    host, _ = settings.rendezvous_listen()
    service = None
    end = _End(1)  # an exception
    if settings.embed_rendezvous:
        address = Address(host, _free_port(host))
    else:
        service = RendezvousService(
            transport_of(settings),
            Credentials(job.job_id, -1, job.world_size, RENDEZVOUS, load_secret(settings)),
            log=logging.getLogger("ringd.rendezvous"),
            settings=service_settings(settings),
        )
        address = await service.start(Address(host, 0))
    try:
        await children.open(job.folder)
        crew.rendezvous = address
        end = await _start(crew, told) or await _watch(
            children, crew, told, partial(_status, job, service)
        )
        return end.code
    finally:
        await children.end(list(children.running), DAEMON_STEPS)
        try:
            if service is not None:
                await service.stop()
            if not end.interrupted:  # what our ending the trainers makes them write is no failure's
                _keep_dumps(job.folder, FAILURE if end.code else SURVIVED)
        finally:
            await children.close()  # last: the warden removes the folder when it ends


def _free_port(host: str) -> int:
    """A port for what rank 0 opens later, and all ranks are told before it listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((host, 0))
        port: int = sock.getsockname()[1]
        return port


async def _status(job: Job, service: RendezvousService | None) -> dict[str, Any]:
    """The membership's snapshot, from wherever the rendezvous is; {}: nobody says it."""
    if service is not None:
        return service.status()
    for rank in range(job.world_size):
        with contextlib.suppress(RingdError):
            status = await asyncio.to_thread(ask, job.socket(rank), "group")
            if "verdicts" in status:
                return status
    return {}


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """How a job ended: the launcher's exit code, and whether a signal told it to."""

    code: int
    interrupted: bool = False


async def _interrupted(number: int, crew: Crew) -> _End:
    """A signal came: end the trainers, and keep what was dumped of failures before that."""
    log.warning("interrupted (%s); ending the job", signal.Signals(number).name)
    _keep_dumps(crew.job.folder, BEFORE)
    await crew.children.end(crew.trainers, _INTERRUPT_STEPS)
    return _End(128 + number, interrupted=True)


async def _start(crew: Crew, told: asyncio.Queue[int]) -> _End | None:
    """Start the job; its end, if a signal comes meanwhile."""
    starting = asyncio.create_task(crew.start())
    signalled = asyncio.create_task(told.get())
    await asyncio.wait({starting, signalled}, return_when=asyncio.FIRST_COMPLETED)
    if not signalled.done():
        signalled.cancel()
        starting.result()
        return None
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return await _interrupted(signalled.result(), crew)


async def _watch(children: Children, crew: Crew, told: asyncio.Queue[int], status: Status) -> _End:
    """Until all trainers ended well, one failed that is needed, or a signal came."""
    trainers, daemons = crew.trainers, crew.daemons
    signalled = asyncio.create_task(told.get())
    try:
        while any(t in children.running for t in trainers):
            ended = asyncio.create_task(children.wait_any())
            await asyncio.wait(
                {ended, signalled}, timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not ended.done():
                ended.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await ended
            if signalled.done():
                return await _interrupted(signalled.result(), crew)
            just_ended = [] if ended.cancelled() else ended.result()
            failure, steps = 0, _FAILURE_STEPS
            for child, code in just_ended:
                failed, text = _failure(child, code, crew)
                if not failed or failure:
                    continue
                if child is None or not await crew.spares(child, text):
                    log.error("%s", await _why_it_ends(child, text, crew, status))
                    failure = failed
            if not failure and await _missed(crew, status):
                failure, steps = NOT_FORMED, _WAITING_STEPS
            if failure:
                # What follows from our ending the others is no news.
                logging.getLogger("ringd.rendezvous").setLevel(logging.ERROR)
                await children.end(trainers, steps)
                by_trainer = all(child in trainers for child, _ in just_ended)
                return _End((by_trainer and await _first_to_fail(crew, status)) or failure)
        await children.end(daemons, DAEMON_STEPS)
        return _End(0)
    finally:
        signalled.cancel()


async def _missed(crew: Crew, status: Status) -> bool:
    """Whether some trainers wait for the start of an epoch that can't come any more: others have
    ended without connecting, or without letting those in that were started anew."""
    ended = [t.rank for t in crew.trainers if t not in crew.children.running]
    gone = [rank for rank in ended if crew.trainers[rank].code == 0]
    if not gone and not (ended and crew.restarts):
        return False
    now = await status()
    waiting = now.get("attached")
    if not waiting:
        return False
    if not now.get("epoch") and gone:
        log.error(
            "%s ended (exit code 0) without connecting, and others wait for it; ending the job",
            ranks_text(gone),
        )
        return True
    nobody_comes = len({*ended, *waiting}) == len(crew.trainers)
    if now.get("epoch") and not now["running"] and nobody_comes and len(waiting) < crew.needed:
        log.error(
            "%s waits to be let in%s, but %s ended without calling comm.reform(), which would have "
            "let it in; ending the job",
            ranks_text(waiting), _times(crew, waiting), ranks_text(ended),
        )  # fmt: skip
        return True
    return False


def _times(crew: Crew, ranks: Sequence[int]) -> str:
    """ " (started anew once)"; nothing for ranks that were not."""
    times = max(crew.restarts[rank] for rank in ranks)
    return f" (started anew {'once' if times == 1 else f'{times} times'})" if times else ""


async def _first_to_fail(crew: Crew, status: Status) -> int:
    """The exit code of the rank that the first verdict names, if it failed by itself: the
    others may have been quicker to end."""
    lost = _first_lost(await status())
    code = crew.trainers[lost["rank"]].code if lost else None
    return code if code is not None and code > 0 else 0


async def _why_it_ends(child: Child | None, text: str, crew: Crew, status: Status) -> str:
    """The line on the end of the job: the first verdict says whose failure it was, where another
    rank's trainer only was quicker to end. (What the job went on without is no reason.)"""
    lost = None
    if child in crew.trainers:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(VERDICT_S):
                lost = await _told_lost(child.rank, status)
    if child is None or not lost or lost["rank"] in {child.rank, *crew.given_up, *crew.restarts}:
        return f"{text}; {'no restart is left; ' if crew.restarts else ''}ending the job"
    raised = Raised.read(lost["exception"])
    why = f"{lost['case']} {raised}" if raised else lost["case"]
    if lost["detail"] and not raised:
        why += f" ({lost['detail']})"
    return f"rank {lost['rank']}: {why}; ending the job (first to exit: rank {child.rank})"


async def _told_lost(rank: int, status: Status) -> dict[str, Any] | None:
    """The first verdict on the current epoch, once there is one: we may see the end of a rank's
    trainer before its daemon does. None: there is none, and the rank is in no epoch."""
    while True:
        told = await status()
        lost = _first_lost(told)
        if lost is not None or rank not in told.get("running", ()):
            return lost
        await asyncio.sleep(ASK_EVERY_S)


def _first_lost(status: Mapping[str, Any]) -> dict[str, Any] | None:
    """The first verdict on the current epoch, if there is one."""
    of_epoch = (v for v in status.get("verdicts", ()) if v["epoch"] == status["epoch"])
    return next(of_epoch, None)


def _failure(child: Child | None, code: int, crew: Crew) -> tuple[int, str]:
    """What the launcher exits with for it, and why; 0: it is as it should be."""
    if child is None:
        return DAEMON_FAILED, "the warden process ended"
    if not child.name.isdecimal():
        return (code if code > 0 else DAEMON_FAILED), f"the {child.name} ended ({_ending(code)})"
    text = f"rank {child.name}{_times(crew, [child.rank])} failed ({_ending(code)})"
    return (code if code >= 0 else 128 - code), text


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}"
