"""The local launcher: a rendezvous, N daemons, N trainers; the first failure ends them all.

The rendezvous runs inside the launcher. Every other process stands in a group of its own, and a
warden ends these groups when the launcher is killed, so nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringd.config import environment
from ringd.config.loader import Loaded
from ringd.config.secret import load_secret, make_secret_file
from ringd.daemon.main import transport_of
from ringd.errors import ConfigError
from ringd.launch.children import Child, Children
from ringd.observe import log as logs
from ringd.observe.accounting import AccountingFile
from ringd.rendezvous.service import RendezvousService
from ringd.transport.base import Address
from ringd.wire.handshake import RENDEZVOUS, Credentials

log = logging.getLogger("ringd.run")
KEPT_DUMPS = "last-failure"
SURVIVOR_GRACE_S = 3.0
"""After a failure: how long the other trainers may take to see it and say so."""
LOOK_EVERY_S = 0.5
NOT_FORMED = 3
DAEMON_FAILED = 4
_TRAINER_STEPS = ((0, SURVIVOR_GRACE_S), (signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0))
_INTERRUPT_STEPS = ((signal.SIGINT, 2.0), (signal.SIGTERM, 1.0), (signal.SIGKILL, 5.0))
_DAEMON_STEPS = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0))


@dataclass(frozen=True, slots=True)
class Job:
    """What the processes of one job share."""

    loaded: Loaded
    world_size: int
    job_id: str
    folder: Path
    secret_file: Path
    store_port: int

    def socket(self, rank: int) -> Path:
        """The Unix socket of a rank's daemon."""
        return self.folder / f"{rank}.sock"


def run(command: Sequence[str], n: int, loaded: Loaded) -> int:
    """Run ``command`` as N ranks on this machine.

    Returns:
        0 when all trainers ended well; else the exit code of the first that failed (128 + the
        signal's number if one ended it), 4 if a daemon did, 130 after Ctrl-C.

    Raises:
        ConfigError: the command can't be run.
    """
    if shutil.which(command[0]) is None:
        hint = f"; try: -- python {command[0]}" if Path(command[0]).is_file() else ""
        raise ConfigError(f"the command {command[0]!r} is not found{hint}")
    logs.setup("run", level=_log_level(loaded), as_json=loaded.settings.log_json)
    if loaded.settings.accounting is not None:
        AccountingFile(loaded.settings.accounting).close()  # before anything is started
    job = _prepare(n, loaded)
    try:
        return asyncio.run(_run(job, command))
    finally:
        _keep_dumps(job.folder)
        shutil.rmtree(job.folder, ignore_errors=True)


def _keep_dumps(folder: Path) -> None:
    """What the flight recorders wrote of a failure outlives the job, until the next one fails."""
    dumps = sorted(folder.glob("flight-rank*.json"))
    if dumps:
        kept = folder.parent / KEPT_DUMPS
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(mode=0o700)
        for dump in dumps:
            shutil.move(dump, kept / dump.name)
        log.info("flight recorders of this failure: ringd explain %s/*.json", kept)


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
        folder.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        raise ConfigError(
            f"the job {job_id!r} is running already ({folder} is there); choose another job id"
        ) from None
    secret_file = settings.secret_file
    if secret_file is None and settings.secret is None:
        secret_file = folder / "secret"
        make_secret_file(secret_file)
    elif secret_file is None:
        secret_file = folder / "secret"
        secret_file.touch(mode=0o600)
        secret_file.write_bytes(load_secret(settings))
    return Job(loaded, n, job_id, folder, secret_file, _free_port())


def _free_port() -> int:
    """A port for torch's store, free when we looked."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _run(job: Job, command: Sequence[str]) -> int:
    settings = job.loaded.settings.model_copy(
        update={"secret_file": job.secret_file, "job_id": job.job_id}
    )
    service = RendezvousService(
        transport_of(settings),
        Credentials(job.job_id, -1, job.world_size, RENDEZVOUS, load_secret(settings)),
        log=logging.getLogger("ringd.rendezvous"),
    )
    host, _ = settings.rendezvous_listen()
    address = await service.start(Address(host, 0))
    children = Children()
    told: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, told.put_nowait, int(number))
    try:
        await children.open(job.folder)
        trainers, daemons = await _start_all(job, children, command, address)
        _describe(job, address, trainers, daemons)
        return await _watch(children, trainers, daemons, told, service)
    finally:
        await children.close()
        await service.stop()


async def _start_all(
    job: Job, children: Children, command: Sequence[str], address: Address
) -> tuple[list[Child], list[Child]]:
    daemons, trainers = [], []
    for rank in range(job.world_size):
        env = _environment(job, rank, address)
        daemon = [sys.executable, "-m", "ringd", "daemon"]
        daemons.append(await children.start(f"daemon {rank}", rank, daemon, env))
    for rank in range(job.world_size):
        env = _environment(job, rank, address)
        try:
            trainers.append(await children.start(str(rank), rank, command, env))
        except OSError as exc:  # no interpreter, no permission
            raise ConfigError(f"the command {command[0]!r} can't be run: {exc.strerror}") from None
    return trainers, daemons


def _environment(job: Job, rank: int, address: Address) -> dict[str, str]:
    """What a rank's daemon and trainer see: the launcher's own settings, and their place.

    Their place also in torchrun's variables, so that a script that calls init_process_group runs.
    """
    overrides = {k: v for k, v in job.loaded.overrides().items() if k not in ("bind", "port")}
    overrides["log_level"] = _log_level(job.loaded)
    overrides |= {
        "job_id": job.job_id,
        "rank": rank,
        "world_size": job.world_size,
        "rendezvous": str(address),
        "socket": job.socket(rank),
        "secret_file": job.secret_file,
        "secret": None,
    }
    env = environment.for_child(environment.snapshot(), **overrides)
    env |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(job.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(job.store_port),
    }
    # As many processes as ranks share the cores: more threads each would only fight for them.
    env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("PYTHONUNBUFFERED", "1")
    return env


def _describe(job: Job, address: Address, trainers: list[Child], daemons: list[Child]) -> None:
    """job.json: who is who, for ``ringd status`` and for people."""
    facts = {
        "job_id": job.job_id,
        "world_size": job.world_size,
        "rendezvous": str(address),
        "ranks": [
            {
                "rank": rank,
                "trainer_pid": trainers[rank].pid,
                "daemon_pid": daemons[rank].pid,
                "socket": str(job.socket(rank)),
            }
            for rank in range(job.world_size)
        ],
    }
    draft = job.folder / ".job.json"
    draft.write_text(json.dumps(facts, indent=1))
    draft.rename(job.folder / "job.json")


async def _watch(
    children: Children,
    trainers: list[Child],
    daemons: list[Child],
    told: asyncio.Queue[int],
    service: RendezvousService,
) -> int:
    """Until all trainers ended well, one failed, or a signal came."""
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
                await children.end(trainers, _INTERRUPT_STEPS)
                return 128 + signalled.result()
            just_ended = [] if ended.cancelled() else ended.result()
            failure = _missed(children, trainers, service)
            for child, code in just_ended:
                failure = failure or _failure(child, code, daemons)
            if failure:
                # What follows from our ending the others is no news.
                logging.getLogger("ringd.rendezvous").setLevel(logging.ERROR)
                await children.end(trainers, _TRAINER_STEPS)
                by_trainer = all(child in trainers for child, _ in just_ended)
                return (by_trainer and _first_to_fail(trainers, service)) or failure
        await children.end(daemons, _DAEMON_STEPS)
        return 0
    finally:
        signalled.cancel()


def _missed(children: Children, trainers: list[Child], service: RendezvousService) -> int:
    """Whether some trainers wait for one whose program has ended without connecting."""
    status = service.status()
    gone = [t.name for t in trainers if t.code == 0]
    if status["epoch"] or not status["attached"] or not gone:
        return 0
    log.error(
        "rank %s ended (exit code 0) without connecting, and others wait for it; ending the job",
        ", ".join(gone),
    )
    return NOT_FORMED


def _first_to_fail(trainers: list[Child], service: RendezvousService) -> int:
    """The exit code of the rank that the first verdict names, if it failed by itself: the
    others may have been quicker to end."""
    verdicts = service.status()["verdicts"]
    code = trainers[verdicts[0]["rank"]].code if verdicts else None
    return code if code is not None and code > 0 else 0


def _failure(child: Child | None, code: int, daemons: list[Child]) -> int:
    """0: as it should be; else what the launcher exits with."""
    if child is None:
        log.error("the warden process ended; ending the job")
        return DAEMON_FAILED
    if child in daemons:
        log.error("the %s ended (%s); ending the job", child.name, _ending(code))
        return code if code > 0 else DAEMON_FAILED
    if code:
        log.error("rank %s failed (%s); ending the job", child.name, _ending(code))
    return code if code >= 0 else 128 - code


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}"
