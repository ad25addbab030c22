"""Who a process is, as its launcher tells it."""

from __future__ import annotations

from typing import Any

import pytest

from ringd.errors import ConfigError
from ringd_client._launch import LAUNCHERS, first_host, launch_of

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "2",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-n1-123@1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "job-0.svc"}
RUN = {"RINGD_RANK": "0", "RINGD_WORLD_SIZE": "2", "RINGD_JOB_ID": "run-1"}


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (RUN, {"launcher": "ringd run", "rank": 0, "world_size": 2, "job": "run-1"}),
        (
            TORCHRUN,
            {"launcher": "torchrun", "rank": 3, "world_size": 8, "local_rank": 1, "host": "n1",
             "port": 29500, "on_one_host": False},
        ),
        (
            SLURM,
            {"launcher": "Slurm", "rank": 5, "world_size": 8, "local_rank": 1, "host": "gpu03",
             "port": 24711, "on_one_host": False},
        ),
        (
            SLURM | {"SLURM_NNODES": "1"},
            {"host": "127.0.0.1", "local_world_size": 8, "on_one_host": True},
        ),
        (
            OPEN_MPI,
            {"launcher": "Open MPI", "rank": 2, "world_size": 4, "host": "127.0.0.1",
             "on_one_host": True},
        ),
        (MPICH, {"launcher": "MPICH", "rank": 1, "world_size": 2, "on_one_host": True}),
        (
            KUBERNETES,
            {"launcher": "Kubernetes", "rank": 2, "world_size": 3, "host": "job-0.svc",
             "on_one_host": False},
        ),
    ],
)  # fmt: skip
def test_each_launcher_is_understood(environ: dict[str, str], told: dict[str, Any]) -> None:
    launch = launch_of(environ)
    assert launch is not None
    assert {name: getattr(launch, name) for name in told} == told


def test_no_launcher() -> None:
    assert launch_of({}) is None
    assert launch_of({"RANK": "1"}) is None
    assert launch_of({"RANK": "", "WORLD_SIZE": ""}) is None


def test_the_innermost_launcher_counts() -> None:
    names = []
    environ = KUBERNETES | MPICH | OPEN_MPI | SLURM | TORCHRUN | RUN
    for needed, _ in LAUNCHERS:
        launch = launch_of(environ)
        assert launch is not None
        names.append(launch.launcher)
        environ = {k: v for k, v in environ.items() if k != needed[0]}
    assert names == ["ringd run", "torchrun", "Slurm", "Open MPI", "MPICH", "Kubernetes"]


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (TORCHRUN | {"RANK": "one"}, "RANK"),
        (TORCHRUN | {"RANK": "8"}, "rank 8 of 8"),
        (MPICH | {"PMI_SIZE": "-1"}, "of -1"),
    ],
)
def test_what_makes_no_sense_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        launch_of(environ)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[03-07,9],m1", "n03"),
        ("n[1,3]-ib", "n1-ib"),
        ("a,b[1-2]", "a"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
