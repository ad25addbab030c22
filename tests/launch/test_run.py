"""``ringd run``: exit codes, output, and that nothing is left whatever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringd.observe.dumps import read
from ringd.observe.explain import explain
from ringd.observe.status_view import ask
from tests.processes.harness import environment, processes_of, until
from tests.processes.job import Job, command_for, run_job, start_job
from tests.processes.programs import elastic, jobs

ENDS_WITHIN_S = 30.0
FOR_EVER = "exec sleep 600"


@pytest.fixture
def start(folder: Path, owner: str) -> Callable[..., Job]:
    """Start a job of N ranks of a shell script, or of a command."""
    count = 0

    def begin(n: int, command: str | list[str], *flags: str) -> Job:
        nonlocal count
        count += 1
        words = ["sh", "-c", command] if isinstance(command, str) else command
        return start_job(n, words, folder / f"job{count}", owner, *flags)

    return begin


@pytest.fixture
def at_work(start: Callable[..., Job]) -> Job:
    """Two ranks in the middle of their collectives."""
    job = start(2, command_for(jobs.sum_for_ever))
    job.await_output("at work", times=2)
    return job


def nothing_is_left(owner: str, job: Job) -> None:
    until(lambda: not processes_of(owner), "no process is left", ENDS_WITHIN_S)
    assert not list(job.folder.glob("run/ringd/*/*.sock"))


def warden_of(job: Job, owner: str) -> int:
    return next(pid for pid, command in processes_of(owner).items() if "warden" in command)


def test_a_job_gets_ranks_and_results_and_accounts_for_its_bytes(folder: Path, owner: str) -> None:
    account = folder / "bytes.jsonl"
    results = run_job(3, jobs.one_sum, folder, owner, "--accounting", str(account), count=30_000)
    for rank, told in enumerate(results):
        assert told == {"rank": rank, "world_size": 3, "epoch": 1, "sums": [6]}
    lines = [json.loads(line) for line in account.read_text().splitlines()]
    assert sorted(line["rank"] for line in lines) == [0, 1, 2]
    for line in lines:
        sent = sum(peer["payload"] for peer in line["sent"].values())
        assert sent == 2 * 30_000 * 8 * 2 // 3, "2T(N-1)/N"
        assert line["error"] is None
        assert line["end_ns"] > line["start_ns"]


def test_a_job_ends_at_once_though_its_daemons_still_import_torch(
    start: Callable[..., Job],
) -> None:
    """Three ranks that sum 16-bit floats: torch converts them, once it is there."""
    script = """
        import numpy, ringd_client
        with ringd_client.connect() as comm:
            print(comm.all_reduce(numpy.ones(3, numpy.float16)).tolist())
    """
    job = start(3, [sys.executable, "-c", textwrap.dedent(script)])
    assert job.wait(ENDS_WITHIN_S) == 0
    assert job.of_rank(2) == ["[3.0, 3.0, 3.0]"]
    assert "not ended yet" not in job.err


def two_free_ports() -> str:
    """A range of two ports on which nobody listens."""
    for first in range(7160, 7960, 2):
        with contextlib.ExitStack() as socks, contextlib.suppress(OSError):
            for port in (first, first + 1):
                socks.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return f"{first}-{first + 1}"
    raise AssertionError("no two ports are free")


@pytest.mark.parametrize("flags", [(), ("--embed-rendezvous",)])
def test_each_daemon_listens_on_one_of_the_ports_that_were_given(
    folder: Path, owner: str, flags: tuple[str, ...]
) -> None:
    ports = two_free_ports()
    told = run_job(2, jobs.address, folder, owner, "--port", ports, *flags)
    assert sorted(told) == [f"127.0.0.1:{port}" for port in ports.split("-")]


@pytest.mark.parametrize("bind", ["127.0.0.2", "0.0.0.0"])
@pytest.mark.parametrize("flags", [(), ("--embed-rendezvous",)])
def test_the_daemons_listen_on_the_address_that_was_given_and_so_does_the_rendezvous(
    start: Callable[..., Job], bind: str, flags: tuple[str, ...]
) -> None:
    job = start(2, FOR_EVER, "--bind", bind, "--log-level", "info", *flags)
    place = re.compile(r"listening on ([\d.]+):\d+, advertised as ([\d.]+):")
    until(lambda: len(place.findall(job.err)) == 2, "the daemons listen")
    listening = place.findall(job.err)
    assert {host for host, _ in listening} == {bind}
    assert {host for _, host in listening} == {"127.0.0.1" if bind == "0.0.0.0" else bind}
    assert job.facts()["rendezvous"].startswith(f"{bind}:")
    job.process.send_signal(signal.SIGINT)
    assert job.wait(ENDS_WITHIN_S) == 130


@pytest.mark.parametrize(
    ("ending", "code"), [("exit 7", 7), ("exit 0", 0), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_the_exit_code_of_the_first_trainer_that_fails_is_kept(
    start: Callable[..., Job], ending: str, code: int
) -> None:
    job = start(2, f"[ $RINGD_RANK = 0 ] || {ending}; [ {code} = 0 ] || {FOR_EVER}")
    assert job.wait(ENDS_WITHIN_S) == code, job.err
    if code:
        assert "rank 1 failed" in job.err


def test_every_line_has_its_rank_in_front_and_streams_stay_apart(
    start: Callable[..., Job],
) -> None:
    script = "echo out of $RINGD_RANK; echo err of $RINGD_RANK >&2; printf 'no end of line'"
    job = start(2, script)
    assert job.wait() == 0
    for rank in range(2):
        assert job.of_rank(rank) == [f"out of {rank}", "no end of line"]
        assert f"[{rank}] err of {rank}" in job.err.splitlines()
    assert "err of" not in job.out


def test_a_trainer_that_prints_a_megabyte_without_a_line_end_is_copied_whole(
    start: Callable[..., Job],
) -> None:
    job = start(1, "head -c 1000000 /dev/zero | tr '\\0' x")
    assert job.wait() == 0
    assert job.out.count("x") == 1_000_000


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_to_the_launcher_ends_all_and_leaves_nothing(
    at_work: Job, owner: str, number: int, code: int
) -> None:
    kept = at_work.folder / "run/ringd/last-failure"
    kept.mkdir()
    (kept / "flight-rank0-epoch1.json").write_text("of a failure")
    at_work.process.send_signal(number)
    assert at_work.wait(ENDS_WITHIN_S) == code
    nothing_is_left(owner, at_work)
    assert at_work.err.count(f"interrupted ({signal.Signals(number).name})") == 1
    assert [path.read_text() for path in kept.iterdir()] == ["of a failure"]
    assert "flight recorders" not in at_work.err


def test_trainers_that_ignore_signals_end_as_well(start: Callable[..., Job], owner: str) -> None:
    job = start(2, "trap '' INT TERM; echo deaf; while :; do sleep 1; done")
    job.await_output("deaf", times=2)
    job.process.send_signal(signal.SIGINT)
    assert job.wait(ENDS_WITHIN_S) == 130
    assert "not ended yet: rank 0, rank 1: SIGTERM now; SIGKILL in 1 s" in job.err
    assert "not ended yet: rank 0, rank 1: SIGKILL now\n" in job.err
    nothing_is_left(owner, job)


def test_the_status_says_of_a_stopped_trainer_that_it_is(at_work: Job) -> None:
    facts = at_work.facts()["ranks"][1]
    state = lambda: ask(Path(facts["socket"]), "daemon")["trainer_state"]  # noqa: E731
    assert state() in ("running", "sleeping")
    os.kill(facts["trainer_pid"], signal.SIGSTOP)
    until(lambda: state() == "stopped", "it is seen to be stopped", ENDS_WITHIN_S)
    at_work.process.send_signal(signal.SIGINT)
    assert at_work.wait(ENDS_WITHIN_S) == 130


def test_variables_of_kubernetes_are_said_once_and_no_obstacle(folder: Path, owner: str) -> None:
    links = {"RINGD_PORT": "tcp://10.0.0.7:7000", "RINGD_SERVICE_HOST": "10.0.0.7"}
    words = ["run", "-n", "2", "--", "sh", "-c", "test -z $RINGD_PORT$RINGD_SERVICE_HOST"]
    job = subprocess.run(
        [sys.executable, "-m", "ringd", *words],
        env=environment(owner, XDG_RUNTIME_DIR=folder, **links),
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
    )
    assert job.returncode == 0, job.stderr
    assert job.stderr.count("ignored RINGD_PORT, RINGD_SERVICE_HOST in the environment") == 1


def test_what_a_trainer_has_started_ends_with_it(start: Callable[..., Job], owner: str) -> None:
    job = start(2, "sleep 600 & echo started; [ $RINGD_RANK = 0 ] || exit 3; wait")
    assert job.wait(ENDS_WITHIN_S) == 3
    nothing_is_left(owner, job)


@pytest.mark.parametrize("code", [0, 3])
def test_what_holds_the_output_of_a_trainer_that_ended_is_named_and_ended(
    start: Callable[..., Job], folder: Path, owner: str, code: int
) -> None:
    """It has a session of its own, so it is not in the trainer's process group."""
    os.mkfifo(up := folder / "up")
    left = f"setsid sh -c 'echo last words; echo >{up}; exec sleep 600' & echo $!; read x <{up}"
    job = start(2, f"[ $RINGD_RANK = 0 ] || {{ {left}; exit {code}; }}")
    assert job.wait(ENDS_WITHIN_S) == code, job.err
    pid, words = sorted(job.of_rank(1))
    assert words == "last words"
    assert f"rank 1 ended, but process {pid} (" in job.err
    assert "has its output open still; ended it" in job.err
    assert "Traceback" not in job.err
    nothing_is_left(owner, job)


def test_the_job_id_is_said_once_unless_quiet_was_asked_for(start: Callable[..., Job]) -> None:
    def said(*flags: str) -> list[str]:
        job = start(1, "true", "--job-id", "mine", *flags)
        assert job.wait(ENDS_WITHIN_S) == 0
        return [line for line in job.err.splitlines() if "mine" in line]

    (line,) = said()
    assert line.endswith(" ringd.run: job mine begins, with 1 rank")
    assert said("--log-level", "warning") == []


def kill(job: Job, owner: str, whom: str) -> None:
    facts = job.facts()["ranks"][1]
    pids: dict[str, Any] = {
        "launcher": job.process.pid,
        "trainer": facts["trainer_pid"],
        "daemon": facts["daemon_pid"],
    }
    os.kill(pids[whom] if whom in pids else warden_of(job, owner), signal.SIGKILL)


@pytest.mark.parametrize(
    ("whom", "code", "text"),
    [
        ("trainer", 137, "rank 1 failed (signal SIGKILL)"),
        ("daemon", 4, "the daemon 1 ended (signal SIGKILL)"),
        ("warden", 4, "the warden process ended"),
    ],
)
def test_a_killed_part_ends_the_job_by_name_and_leaves_nothing(
    at_work: Job, owner: str, whom: str, code: int, text: str
) -> None:
    kill(at_work, owner, whom)
    assert at_work.wait(ENDS_WITHIN_S) == code, at_work.err
    assert text in at_work.err
    if whom == "trainer":
        assert "PeerLostError: rank 1 is lost" in at_work.err
    nothing_is_left(owner, at_work)


def test_a_killed_launcher_leaves_no_process(at_work: Job, owner: str) -> None:
    kill(at_work, owner, "launcher")
    assert at_work.wait() == -signal.SIGKILL
    until(lambda: not processes_of(owner), "the warden has ended them", ENDS_WITHIN_S)


def test_two_jobs_at_once_do_not_disturb_each_other(start: Callable[..., Job]) -> None:
    both = [start(2, command_for(jobs.one_sum, count=1000)) for _ in range(2)]
    for job in both:
        assert job.wait() == 0, job.err
        assert [told["sums"] for told in job.results()] == [[3], [3]]


def test_a_job_id_that_runs_already_is_refused(folder: Path, owner: str) -> None:
    first = start_job(1, ["sh", "-c", f"echo up; {FOR_EVER}"], folder, owner, "--job-id", "mine")
    first.await_output("up")
    files = (folder / "out").read_bytes(), (folder / "run/ringd/mine/job.json").read_bytes()
    second = folder / "second"
    (second / "run").parent.mkdir()
    os.symlink(folder / "run", second / "run")
    again = start_job(1, ["true"], second, owner, "--job-id", "mine")
    assert again.wait() == 2
    assert "'mine' is running already" in again.err
    assert (folder / "run/ringd/mine/job.json").read_bytes() == files[1]
    first.process.send_signal(signal.SIGINT)
    assert first.wait(ENDS_WITHIN_S) == 130


def test_a_command_that_is_not_found_is_said_at_once(start: Callable[..., Job]) -> None:
    job = start(2, ["no-such-command", "--flag"])
    assert job.wait() == 2
    assert "the command 'no-such-command' is not found" in job.err
    assert "Traceback" not in job.err


def test_a_file_that_cannot_be_run_is_an_error_that_leaves_nothing(
    start: Callable[..., Job], folder: Path, owner: str
) -> None:
    script = folder / "bad"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    job = start(2, [str(script)])
    assert job.wait(ENDS_WITHIN_S) == 2, job.err
    assert "Traceback" not in job.err
    nothing_is_left(owner, job)


def test_the_secret_is_in_a_private_file_and_on_no_command_line(at_work: Job, owner: str) -> None:
    folder = next(at_work.folder.glob("run/ringd/*/job.json")).parent
    secret = (folder / "secret").read_bytes().strip()
    assert len(secret) >= 16
    assert stat.S_IMODE((folder / "secret").stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    pids = processes_of(owner)
    assert len(pids) >= 6
    for pid in pids:
        assert secret not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert secret not in Path(f"/proc/{pid}/environ").read_bytes()
    assert secret.decode() not in at_work.out + at_work.err
    at_work.process.send_signal(signal.SIGINT)
    at_work.wait(ENDS_WITHIN_S)
    assert not folder.exists()


def script(folder: Path, text: str) -> list[str]:
    """A trainer with this program."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return [sys.executable, str(path)]


def test_a_rank_that_leaves_early_is_blamed_and_not_who_fell_over_it(
    start: Callable[..., Job], folder: Path
) -> None:
    program = """
        import sys, time, numpy, ringd_client
        comm = ringd_client.connect()
        if comm.rank == 0:
            comm.close()
            sys.exit(0)
        try:
            comm.all_reduce(numpy.ones(10, "float32"))
        except ringd_client.PeerLostError as error:
            print("lost", error.rank, flush=True)
            if comm.rank == 1:
                raise
            time.sleep(0.3)
            try:
                comm.barrier()
            except ringd_client.PeerLostError as error:
                print("still", error.rank, flush=True)
    """
    job = start(3, script(folder, program))
    assert job.wait(ENDS_WITHIN_S) == 1
    assert job.of_rank(1) == ["lost 0"]
    assert job.of_rank(2) == ["lost 0", "still 0"]


def test_a_rank_whose_program_ends_without_connecting_ends_the_job_at_once(
    start: Callable[..., Job], folder: Path
) -> None:
    program = """
        import os, ringd_client
        if os.environ["RINGD_RANK"] != "1":
            ringd_client.connect()
    """
    job = start(3, script(folder, program))
    assert job.wait(ENDS_WITHIN_S) == 3
    assert "rank 1 ended (exit code 0) without connecting" in job.err


def test_the_code_is_that_of_the_rank_which_failed_first_however_long_it_takes_to_end(
    start: Callable[..., Job], folder: Path
) -> None:
    program = """
        import atexit, sys, time, numpy, ringd_client
        with ringd_client.connect() as comm:
            if comm.rank == 1:
                atexit.register(time.sleep, 0.5)
                sys.exit(3)
            comm.all_reduce(numpy.ones(10, "float32"))
    """
    job = start(3, script(folder, program))
    assert job.wait(ENDS_WITHIN_S) == 3


@pytest.mark.parametrize("flags", [(), ("--embed-rendezvous",)])
def test_the_last_word_is_on_the_rank_that_raised_and_not_on_who_was_quicker_to_end(
    start: Callable[..., Job], folder: Path, flags: tuple[str, ...]
) -> None:
    program = """
        import atexit, time, numpy, ringd_client
        with ringd_client.connect() as comm:
            comm.barrier()
            if comm.rank == 1:
                atexit.register(time.sleep, 1.0)
                raise ValueError("the loss is gone")
            comm.all_reduce(numpy.ones(10, "float32"))
    """
    job = start(2, script(folder, program), *flags)
    assert job.wait(ENDS_WITHIN_S) == 1
    why = "rank 1: trainer raised ValueError: the loss is gone (program.py:7)"
    assert f"{why}; ending the job (first to exit: rank 0)" in job.err
    assert "rank 0 failed" not in job.err


def test_a_failure_that_was_made_up_for_is_not_why_the_job_ends(
    start: Callable[..., Job], folder: Path
) -> None:
    program = """
        import os, signal, sys, numpy, ringd_client
        with ringd_client.connect() as comm:
            comm.barrier()
            if comm.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                comm.barrier()
            except ringd_client.PeerLostError:
                sys.exit(7)
    """
    job = start(2, script(folder, program), "--max-restarts", "1", "--min-size", "2")
    job.wait(ENDS_WITHIN_S)
    assert "starting rank" in job.err
    assert "first to exit" not in job.err


def test_an_account_that_cannot_be_written_is_refused_before_anything_starts(
    start: Callable[..., Job],
) -> None:
    job = start(2, "echo started", "--accounting", "/nonexistent/bytes.jsonl")
    assert job.wait(ENDS_WITHIN_S) == 2
    assert "accounting = '/nonexistent/bytes.jsonl' can't be written" in job.err
    assert "started" not in job.out


def test_a_killed_launcher_leaves_no_folder_behind(at_work: Job, owner: str) -> None:
    assert list(at_work.folder.glob("run/ringd/*/secret"))
    kill(at_work, owner, "launcher")
    at_work.wait(ENDS_WITHIN_S)
    until(lambda: not list(at_work.folder.glob("run/ringd/*/*")), "the folder is gone")
    nothing_is_left(owner, at_work)


def steps_of(results: list[Any]) -> dict[int, list[tuple[int, list[int]]]]:
    return {r["seat"]: [(step, members) for step, members in r["committed"]] for r in results}


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_dies_is_started_anew_and_joins_those_who_went_on(
    start: Callable[..., Job], victim: int
) -> None:
    program = command_for(elastic.sums, victim=victim, dies_at=5, ends_at=12, again=True)
    job = start(3, program, "--max-restarts", "1")
    assert job.wait() == 0, job.out + job.err
    assert f"rank {victim} failed (signal SIGKILL); starting rank {victim} anew" in job.err
    results = job.results()
    survivors = [seat for seat in range(3) if seat != victim]
    assert {r["epoch"] for r in results} == {3}
    steps = steps_of(results)
    assert steps[survivors[0]] == steps[survivors[1]], "the same steps, with the same members"
    numbers = [step for step, _ in steps[survivors[0]]]
    assert numbers == list(range(len(numbers))), "none is lost, none counted twice"
    sizes = [len(members) for _, members in steps[survivors[0]]]
    assert sizes[:5] == [3] * 5
    assert 2 in sizes
    assert sizes[-1] == 3
    late = steps[victim]
    assert late == steps[survivors[0]][-len(late) :]
    assert late[0][1] == [*survivors, victim], "an old member leads"


def test_a_job_goes_on_without_a_rank_that_fails_down_to_its_smallest_size(
    start: Callable[..., Job],
) -> None:
    program = command_for(elastic.sums, victim=1, dies_at=3, ends_at=6, again=False)
    job = start(3, program, "--min-size", "2")
    assert job.wait() == 0, job.out + job.err
    assert "going on with 2 ranks (at least 2)" in job.err
    assert "flight recorders of a fault that was survived: ringd explain" in job.err
    found = explain(read([job.folder / "run/ringd/last-failure"]))
    assert found.loss is not None
    assert (found.epoch, found.loss.rank, found.loss.case) == (1, 1, "trainer died")
    dumps = sorted(path.name for path in job.folder.glob("run/ringd/last-failure/*.json"))
    assert [name.split("-")[1] for name in dumps] == ["rank0", "rank1", "rank2"]
    steps = steps_of([json.loads(job.of_rank(rank)[-1]) for rank in (0, 2)])
    assert steps[0] == steps[2]
    assert [len(members) for _, members in steps[0]] == [3, 3, 3, 2, 2, 2]


def test_when_restarts_and_spare_ranks_are_used_up_the_failure_ends_the_job(
    start: Callable[..., Job],
) -> None:
    program = command_for(
        elastic.sums, victim=1, dies_at=2, ends_at=10, again=True, dies_once=False
    )
    job = start(3, program, "--max-restarts", "1")
    assert job.wait() == 137, job.out + job.err
    assert "starting rank 1 anew (0 left)" in job.err
    assert (
        "rank 1 (started anew once) failed (signal SIGKILL); no restart is left; ending" in job.err
    )


LETS_NOBODY_IN = """
    import os, signal, time, numpy, ringd_client
    with ringd_client.connect(timeout_s={timeout_s}) as comm:
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.barrier()
        except ringd_client.CollectiveError:
            change = comm.reform()
        {then}
"""


def test_a_rank_that_nobody_lets_in_hears_why(start: Callable[..., Job], folder: Path) -> None:
    program = LETS_NOBODY_IN.format(timeout_s=5, then="time.sleep(60)")
    job = start(3, script(folder, program), "--max-restarts", "1")
    assert job.wait(ENDS_WITHIN_S) == 1
    assert "rank 1 was not let in within" in job.err
    assert "ranks 0 and 2 are in epoch 2, and who comes later takes part from the next" in job.err
    assert "comm.reform()" in job.err
    assert "rank 1 (started anew once) failed (exit code 1); no restart is left; ending" in job.err


def test_when_all_others_have_ended_nobody_waits_any_longer_to_be_let_in(
    start: Callable[..., Job], folder: Path
) -> None:
    program = LETS_NOBODY_IN.format(timeout_s=600, then="")
    job = start(3, script(folder, program), "--max-restarts", "1")
    assert job.wait(ENDS_WITHIN_S) == 3
    assert "rank 1 waits to be let in (started anew once), but ranks 0 and 2 ended" in job.err


def test_a_daemon_that_dies_is_started_anew_with_its_trainer(start: Callable[..., Job]) -> None:
    program = command_for(elastic.sums, victim=-1, dies_at=0, ends_at=400, again=True)
    job = start(3, program, "--max-restarts", "1")
    job.await_output("at work", times=3)
    os.kill(job.facts()["ranks"][1]["daemon_pid"], signal.SIGKILL)
    assert job.wait() == 0, job.out + job.err
    assert "the daemon 1 ended (signal SIGKILL); starting rank 1 anew" in job.err
    results = job.results()
    assert {r["epoch"] for r in results} == {3}
