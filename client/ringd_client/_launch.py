"""Who we are, as the launcher says it: rank, number of ranks, where they meet.

Launchers are looked for in the order of ``LAUNCHERS``; the first whose variables are all there
counts. torchrun stands before Slurm and MPI, as it may run inside of their jobs, and ``ringd run``
before torchrun. Pure: the environment is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ringd.errors import ConfigError

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launcher told this process.

    Attributes:
        launcher: its name.
        rank, world_size: our number among so many.
        local_rank, local_world_size: the same on this host; 0 of 0: it did not say.
        host: where rank 0 runs, as the others reach it; "": it did not say.
        port: one that is free for us to meet there; 0: it did not say.
        job: what tells this job from others of this user; "": nothing does.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int = 0
    local_world_size: int = 0
    host: str = ""
    port: int = 0
    job: str = ""

    @property
    def on_one_host(self) -> bool:
        """All ranks are known to run on this host."""
        return self.local_world_size == self.world_size or self.host in _LOOPBACK


_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def launch_of(environ: Environ) -> Launch | None:
    """What the launcher of this process told; None: there was none that we know.

    Raises:
        ConfigError: a launcher's variable is no number, or the rank is none of the world's.
    """
    for needed, read in LAUNCHERS:
        if all(environ.get(name) for name in needed):
            return _checked(read(environ))
    return None


def _checked(launch: Launch) -> Launch:
    if not 0 <= launch.rank < launch.world_size:
        raise ConfigError(
            f"{launch.launcher} says that this is rank {launch.rank} of {launch.world_size}; put "
            "one of them right: ranks are numbered from 0 on"
        )
    return launch


def _number(environ: Environ, name: str, default: int = 0) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} is to be a whole number, not {text!r}") from None


def _meeting(environ: Environ) -> tuple[str, int]:
    return environ.get("MASTER_ADDR", ""), _number(environ, "MASTER_PORT")


def _ringd(environ: Environ) -> Launch:
    host, port = _meeting(environ)
    return Launch(
        "ringd run",
        _number(environ, "RINGD_RANK"),
        _number(environ, "RINGD_WORLD_SIZE"),
        host=host,
        port=port,
        job=environ.get("RINGD_JOB_ID", ""),
    )


def _torchrun(environ: Environ) -> Launch:
    host, port = _meeting(environ)
    return Launch(
        "torchrun",
        _number(environ, "RANK"),
        _number(environ, "WORLD_SIZE"),
        _number(environ, "LOCAL_RANK"),
        _number(environ, "LOCAL_WORLD_SIZE"),
        host,
        port,
        f"torchrun-{environ.get('TORCHELASTIC_RUN_ID', '')}-{port}"
        f"-{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
    )


def _slurm(environ: Environ) -> Launch:
    size = _number(environ, "SLURM_NTASKS")
    here = environ.get("SLURM_TASKS_PER_NODE", "")  # "4", "4(x2)", "4,3"
    one_host = _number(environ, "SLURM_NNODES", 0) == 1
    local_size = size if one_host else int(here) if here.isdecimal() else 0
    job = environ.get("SLURM_JOB_ID", "")
    host, port = _meeting(environ)
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    return Launch(
        "Slurm",
        _number(environ, "SLURM_PROCID"),
        size,
        _number(environ, "SLURM_LOCALID"),
        local_size,
        host or ("127.0.0.1" if one_host else first_host(nodes)),
        port or _port_of(job),
        f"slurm-{job}-{environ.get('SLURM_STEP_ID', '0')}",
    )


def _open_mpi(environ: Environ) -> Launch:
    rank, size = _number(environ, "OMPI_COMM_WORLD_RANK"), _number(environ, "OMPI_COMM_WORLD_SIZE")
    local_size = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid", "")
    host, port = _meeting(environ)
    return Launch(
        "Open MPI",
        rank,
        size,
        _number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size,
        host or ("127.0.0.1" if local_size == size else ""),
        port or _port_of(job),
        f"ompi-{job}" if job else "",
    )


def _mpich(environ: Environ) -> Launch:
    size = _number(environ, "PMI_SIZE")
    local_size = _number(environ, "MPI_LOCALNRANKS")
    host, port = _meeting(environ)
    return Launch(
        "MPICH",
        _number(environ, "PMI_RANK"),
        size,
        _number(environ, "MPI_LOCALRANKID"),
        local_size,
        host or ("127.0.0.1" if local_size == size else ""),
        port,
        "",
    )


def _kubernetes(environ: Environ) -> Launch:
    """An indexed Job: the index is given, the number of pods has to be set beside it."""
    host, port = _meeting(environ)
    return Launch(
        "Kubernetes",
        _number(environ, "JOB_COMPLETION_INDEX"),
        _number(environ, "WORLD_SIZE"),
        0,
        1,
        host,
        port,
    )


LAUNCHERS: Final[tuple[tuple[tuple[str, ...], Callable[[Environ], Launch]], ...]] = (
    (("RINGD_RANK", "RINGD_WORLD_SIZE"), _ringd),
    (("RANK", "WORLD_SIZE"), _torchrun),
    (("SLURM_PROCID", "SLURM_NTASKS"), _slurm),
    (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), _open_mpi),
    (("PMI_RANK", "PMI_SIZE"), _mpich),
    (("JOB_COMPLETION_INDEX", "WORLD_SIZE"), _kubernetes),
)
"""Which variables a launcher sets at least, and how they are read, in the order of precedence."""


def first_host(nodes: str) -> str:
    """The first host of a node list as Slurm writes it: "n[03-07,9],m1" begins with n03."""
    head, bracket, rest = nodes.partition("[")
    comma = head.find(",")
    if comma >= 0 or not bracket:
        return head[:comma] if comma >= 0 else head
    inside, _, tail = rest.partition("]")
    first = inside.partition(",")[0].partition("-")[0]
    return head + first + tail.partition(",")[0]


def _port_of(job: str) -> int:
    """A port that all ranks of a job come to by themselves: its number decides; 0: it has none."""
    digits = "".join(c for c in job if c.isdecimal())
    return 20000 + int(digits) % 20000 if digits else 0
