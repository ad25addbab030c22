"""The processes of a local job: who runs each rank, who is started anew or done without."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ringd.config import environment
from ringd.config.loader import Loaded
from ringd.config.values import HostPort
from ringd.errors import ConfigError
from ringd.launch.children import Child, Children
from ringd.launch.preloading import TRAINERS_DEFAULTS, Preloader
from ringd.launch.python import own_module
from ringd.transport.base import Address

log = logging.getLogger("ringd.run")
DAEMON_STEPS = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0))
_ORPHAN_STEPS = ((0, 3.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0))
"""For a trainer whose daemon is gone: it may say so and end by itself."""


@dataclass(frozen=True, slots=True)
class Job:
    """What the processes of one job share.

    Attributes:
        store_port: where rank 0 opens torch's store, if its script does.
    """

    loaded: Loaded
    world_size: int
    job_id: str
    folder: Path
    secret_file: Path
    log_level: str
    store_port: int

    def socket(self, rank: int) -> Path:
        """The Unix socket of a rank's daemon."""
        return self.folder / f"{rank}.sock"

    def placed(self, rank: int, rendezvous: Address) -> Loaded:
        """The settings of a rank's daemon: the launcher's own, and its place."""
        return self.loaded.placed(
            log_level=self.log_level,
            job_id=self.job_id,
            rank=rank,
            world_size=self.world_size,
            rendezvous=HostPort(rendezvous.host, rendezvous.port),
            socket=self.socket(rank),
            secret_file=self.secret_file,
            secret=None,
            embed_rendezvous=self.loaded.settings.embed_rendezvous and rank == 0,
        )

    def environment(self, rank: int, rendezvous: Address) -> dict[str, str]:
        """What a rank's daemon and trainer see: the settings of the daemon, for those that look
        for it.

        Their place also in torchrun's variables, so that a script that calls init_process_group
        runs.
        """
        settings = self.placed(rank, rendezvous).overrides()
        env = environment.for_child(environment.snapshot(), secret=None, **settings)
        env |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store_port),
        }
        return TRAINERS_DEFAULTS | env


@dataclass(slots=True)
class Crew:
    """One daemon and one trainer for each rank.

    Args:
        command: what each trainer runs.
        rendezvous: where it listens.
        restarts_left: how often, in all, a rank that failed is started anew.
        preloader: forks the trainers; None: each is started.
    """

    job: Job
    children: Children
    command: Sequence[str]
    rendezvous: Address = field(default_factory=lambda: Address("", 0))
    restarts_left: int = 0
    preloader: Preloader | None = None
    trainers: list[Child] = field(default_factory=list)
    daemons: list[Child] = field(default_factory=list)
    given_up: set[int] = field(default_factory=set)
    restarts: Counter[int] = field(default_factory=Counter)
    """How often each rank was started anew."""

    async def start(self) -> None:
        """Start them all.

        Raises:
            ConfigError: the command can't be run, or a module can't be preloaded.
        """
        ranks = range(self.job.world_size)
        if self.preloader is not None:
            await self.preloader.watched_by(self.children)
        self.daemons += [await self._daemon(rank) for rank in ranks]
        if self.preloader is not None:
            await self.preloader.ready()
        self.trainers += [await self._trainer(rank) for rank in ranks]
        self._describe()

    @property
    def needed(self) -> int:
        """How many ranks an epoch must have that follows on none."""
        return self.job.loaded.settings.min_size or self.job.world_size

    async def spares(self, child: Child, text: str) -> bool:
        """Whether the job goes on though ``child`` failed: its rank is started anew, or is one
        that is not needed."""
        rank = child.rank
        if self.preloader is not None and child is self.preloader.child:
            return False  # how its trainers end nobody could know
        if child not in (self.trainers[rank], self.daemons[rank]) or rank in self.given_up:
            return True  # what it was is replaced already
        if self.restarts_left:
            self.restarts_left -= 1
            self.restarts[rank] += 1
            log.warning("%s; starting rank %d anew (%d left)", text, rank, self.restarts_left)
            await self._replace(rank)
            return True
        needed = self.needed
        here = self.job.world_size - len(self.given_up) - 1
        if here < needed:
            return False
        self.given_up.add(rank)
        log.warning("%s; going on with %d ranks (at least %d)", text, here, needed)
        await self.children.end([self.trainers[rank]], _ORPHAN_STEPS)
        if not (rank == 0 and self.job.loaded.settings.embed_rendezvous):  # the others need it
            await self.children.end([self.daemons[rank]], DAEMON_STEPS)
        return True

    async def _replace(self, rank: int) -> None:
        """A new trainer for a rank, and a new daemon if the old one is gone."""
        if self.daemons[rank] not in self.children.running:
            await self.children.end([self.trainers[rank]], _ORPHAN_STEPS)
            self.job.socket(rank).unlink(missing_ok=True)
            self.daemons[rank] = await self._daemon(rank)
        self.trainers[rank] = await self._trainer(rank)
        self._describe()

    async def _daemon(self, rank: int) -> Child:
        command = own_module("ringd.cli.child_daemon", os.getpid())
        env = self.job.environment(rank, self.rendezvous)
        env.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's: threads that no daemon needs
        told = self.job.placed(rank, self.rendezvous).to_line()
        return await self.children.start(f"daemon {rank}", rank, command, env, told)

    async def _trainer(self, rank: int) -> Child:
        env = self.job.environment(rank, self.rendezvous)
        with self._runnable():
            if self.preloader is None:
                return await self.children.start(str(rank), rank, self.command, env)
            return await self.preloader.fork(self.children, rank, env)

    @contextlib.contextmanager
    def _runnable(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:  # no interpreter, no permission
            name = self.command[0]
            raise ConfigError(f"the command {name!r} can't be run: {exc.strerror or exc}") from None

    def _describe(self) -> None:
        """job.json: who is who, for ``ringd status`` and for people."""
        facts = {
            "job_id": self.job.job_id,
            "world_size": self.job.world_size,
            "rendezvous": str(self.rendezvous),
            "ranks": [
                {
                    "rank": rank,
                    "trainer_pid": self.trainers[rank].pid,
                    "daemon_pid": self.daemons[rank].pid,
                    "socket": str(self.job.socket(rank)),
                }
                for rank in range(self.job.world_size)
            ],
        }
        draft = self.job.folder / ".job.json"
        draft.write_text(json.dumps(facts, indent=1))
        draft.rename(self.job.folder / "job.json")
