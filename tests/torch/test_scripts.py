"""Unmodified scripts, as a shell starts them: torch finds the backend by itself."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringd.observe.dump_file import PATTERN
from ringd.observe.dumps import last_failure, read
from ringd.observe.explain import explain
from ringd.observe.kept import FAILURES, LAST_FAILURE
from tests.processes.harness import PATIENCE_S, ROOT, WIDER, environment, processes_of, until

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
Shell = Callable[..., str]


@pytest.fixture
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """``shell("-m", "ringd", …, VARIABLE="x")``: what a command of Python prints.

    The entry point is that of pyproject.toml, whether this checkout was installed since or not.
    """
    owner = f"{request.node.name}"
    info = tmp_path / "ringd_here-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ringd-here\nVersion: 0\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["torch.backends"]
    lines = "".join(f"{name} = {place}\n" for name, place in points.items())
    (info / "entry_points.txt").write_text(f"[torch.backends]\n{lines}")
    path = f"{ROOT}:{ROOT / 'client'}:{tmp_path}"

    def run(*command: object, **variables: object) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            env=environment(owner, PYTHONPATH=path, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_S,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    yield run
    until(lambda: not processes_of(owner), "nothing is left", 10 * WIDER)


def sums(output: str, n: int, backend: str = "ringd") -> bool:
    """Every rank has said its sum."""
    expected = [float(n * i + n * (n - 1) // 2) for i in range(4)]
    lines = [f"rank {rank} of {n}: {expected} by {backend} after" for rank in range(n)]
    return all(line in output for line in lines)


ANYHOW = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"
"""A command whatever its exit code is."""


def test_a_failure_is_explained_by_dumps_of_its_job_only(shell: Shell) -> None:
    with tempfile.TemporaryDirectory(prefix="ringd-test-") as folder:
        kept = Path(folder, "ringd", LAST_FAILURE)
        kept.mkdir(parents=True, mode=0o700)
        (kept / "flight-rank2-epoch1.json").write_text("of an older job")
        shell("-c", ANYHOW, *TORCHRUN, 2, SCRIPTS / "raises.py", XDG_RUNTIME_DIR=folder)
        until(lambda: len(list(kept.glob(PATTERN))) == 2, "both daemons have dumped")
        report = explain(read([last_failure(kept.parent)]))
    assert report.job_id.startswith("torch-")
    assert ([dump.rank for dump in report.dumps], report.missing) == ([0, 1], ())
    assert report.loss is not None
    assert (report.loss.rank, report.loss.case) == (1, "trainer raised")
    assert report.loss.place.endswith("raises.py:10")


INTERRUPTED = """
import os, signal, subprocess, sys
job = subprocess.Popen(
    [sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE, text=True, start_new_session=True
)
said = [job.stdout.readline() for _ in range(2)]
os.killpg(job.pid, signal.SIGINT)  # as a terminal does at Ctrl-C
job.communicate()
assert said == ["waits\\n"] * 2, said
"""


def test_an_interrupt_leaves_what_is_kept_of_the_last_failure(
    shell: Shell, request: pytest.FixtureRequest
) -> None:
    with tempfile.TemporaryDirectory(prefix="ringd-test-") as folder:
        kept = Path(folder, "ringd", LAST_FAILURE)
        kept.mkdir(parents=True, mode=0o700)
        (kept / "flight-rank2-epoch1.json").write_text("of an older job")
        shell("-c", INTERRUPTED, *TORCHRUN, 2, SCRIPTS / "waits.py", XDG_RUNTIME_DIR=folder)
        until(lambda: not processes_of(request.node.name), "the daemons have ended", 10 * WIDER)
        assert [path.read_text() for path in kept.iterdir()] == ["of an older job"]
        assert not (kept.parent / FAILURES).exists()


@pytest.mark.parametrize("backend", ["ringd", pytest.param("cpu:ringd", marks=pytest.mark.slow)])
def test_a_script_under_torchrun_starts_its_own_daemons(shell: Shell, backend: str) -> None:
    output = shell(*TORCHRUN, 2, SCRIPTS / "plain.py", backend)
    assert sums(output, 2, backend), output


def test_a_script_under_ringd_run_uses_its_daemons(shell: Shell) -> None:
    script = (sys.executable, SCRIPTS / "plain.py", "ringd")
    output = shell("-m", "ringd", "run", "-n", 2, "--", *script)
    assert sums(output, 2), output


@pytest.mark.parametrize(
    ("given", "times"), [([], "1800, 1800, 1800 s"), (["60"], "60, 1800, 60 s")]
)
def test_the_deadlines_of_a_script_are_torchs_whatever_ringd_run_says(
    shell: Shell, given: list[str], times: str
) -> None:
    script = (sys.executable, SCRIPTS / "times.py", *given)
    output = shell("-m", "ringd", "run", "-n", 2, "--timeout", 7, "--", *script)
    assert all(f"[{rank}] rank {rank}: {times}" in output for rank in range(2)), output


@pytest.mark.slow
def test_torchs_debug_mode_does_no_harm(shell: Shell) -> None:
    detail = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    output = shell(*TORCHRUN, 2, SCRIPTS / "plain.py", "ringd", **detail)
    assert sums(output, 2), output


@pytest.mark.slow
def test_without_autoload_an_import_does_it(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "imports.py"
    script.write_text("import ringd_client.torch\n" + (SCRIPTS / "plain.py").read_text())
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": 0}
    output = shell(*TORCHRUN, 2, script, "ringd", **off)
    assert sums(output, 2), output
    # Imported first, with autoload on: each of the two finds the other half-way.
    output = shell(*TORCHRUN, 2, script, "ringd")
    assert sums(output, 2), output


@pytest.mark.slow
def test_our_init_method_reads_any_launchers_variables(shell: Shell, tmp_path: Path) -> None:
    starter = tmp_path / "starter.py"
    starter.write_text(
        "import os, subprocess, sys\n"
        "ranks = [subprocess.Popen(sys.argv[1:], env=dict(os.environ, SLURM_PROCID=str(r)))"
        " for r in range(2)]\n"
        "sys.exit(max(rank.wait() for rank in ranks))\n"
    )
    slurm = {"SLURM_NTASKS": 2, "SLURM_NNODES": 1, "SLURM_JOB_ID": 4711}
    script = (sys.executable, SCRIPTS / "plain.py", "ringd")
    output = shell(starter, *script, INIT_METHOD="ringd://", **slurm)
    assert sums(output, 2), output


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_torchrun_restarts_a_killed_rank(shell: Shell, victim: int) -> None:
    restart = ("--max-restarts", 1, SCRIPTS / "restarted.py", victim)
    output = shell(*TORCHRUN, 3, *restart)
    for rank in {0, 1, 2} - {victim}:
        assert f"rank {rank} in life 0: rank {victim} is lost" in output
    for rank in range(3):
        assert f"rank {rank} in life 1: 3\n" in output
