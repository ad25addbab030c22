"""``ringd run --preload``: trainers forked from one process are like those that Python starts."""

from __future__ import annotations

import json
import os
import py_compile
import signal
import sys
import textwrap
import zipapp
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringd.errors import ConfigError
from ringd.launch.preloading import split
from tests.launch.test_run import ENDS_WITHIN_S, nothing_is_left
from tests.processes.harness import processes_of, until
from tests.processes.job import ROOT, Job, command_for, run_job, start_job
from tests.processes.programs import jobs

REPORT = """
import json, os, sys
print(json.dumps({
    "name": __name__, "file": globals().get("__file__"), "argv": sys.argv, "path": sys.path[0],
    "main": vars(sys.modules["__main__"]) is globals(), "annotations": str(__annotations__),
    "names": sorted(globals()),
    "dev": sys.flags.dev_mode, "stdin": sys.stdin.read(), "group": os.getpgrp() == os.getpid(),
    "env": sorted(name for name in os.environ if name.startswith(("RINGD", "RANK", "MASTER"))),
    "rank": os.environ["RANK"], "preloaded": "fractions" in sys.modules,
}))
"""
Begin = Callable[..., Job]


@pytest.fixture
def begin(folder: Path, owner: str) -> Begin:
    """Start a job of two ranks whose Python has these arguments, with modules preloaded or not."""
    count = 0

    def start(arguments: list[str], *flags: str, preload: str = "fractions") -> Job:
        nonlocal count
        count += 1
        flags = (*flags, *(["--preload", preload] if preload else []))
        return start_job(2, [sys.executable, *arguments], folder / f"job{count}", owner, *flags)

    return start


@pytest.fixture
def tree(folder: Path) -> Path:
    """A script, and the same as a package, in a folder of their own."""
    package = folder / "tree" / "package"
    package.mkdir(parents=True)
    for path in (folder / "tree" / "script.py", package / "__main__.py", package / "module.py"):
        path.write_text("x: int = 1" + REPORT)
    (package / "__init__.py").touch()
    return folder / "tree"


def preloader_of(owner: str) -> int:
    return next(p for p, command in processes_of(owner).items() if "preloader.py" in command)


def lines(job: Job) -> list[list[str]]:
    assert job.wait(ENDS_WITHIN_S) == 0, job.err
    return [job.of_rank(rank) for rank in range(2)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["{tree}/script.py", "--a", "-b"],
        ["-X", "dev", "-u", "{tree}/script.py"],
        ["-uXdev", "{tree}/package", "b"],
        ["-c", REPORT, "-m"],
        ["-P", "{tree}/script.py"],
        ["-m", "json.tool", "--help"],
    ],
)
def test_a_trainer_finds_what_it_would_find_without(
    begin: Begin, tree: Path, arguments: list[str]
) -> None:
    words = [word.replace("{tree}", str(tree)) for word in arguments]
    forked, plain = lines(begin(words)), lines(begin(words, preload=""))
    if "json.tool" in words:
        assert forked == plain
        assert forked[0]
        return
    for rank in range(2):
        told: dict[str, Any] = json.loads(forked[rank][0])
        expected = json.loads(plain[rank][0])
        assert told.pop("preloaded")
        assert not expected.pop("preloaded")
        assert told == expected
        assert told["rank"] == str(rank)
        assert told["main"]


def test_modules_of_packages_run_as_modules(
    begin: Begin, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tree))
    told = [json.loads(of_rank[0]) for of_rank in lines(begin(["-mpackage.module", "7"]))]
    for of_rank in told:
        assert of_rank["argv"] == [str(tree / "package" / "module.py"), "7"]
        assert (of_rank["name"], of_rank["path"]) == ("__main__", str(ROOT))


def test_what_is_preloaded_is_imported_once_and_before_the_ranks_are(
    begin: Begin, tree: Path
) -> None:
    (tree / "heavy.py").write_text("import os; by = os.getpid(); print('imported', flush=True)")
    (tree / "script.py").write_text("import heavy, os; print(heavy.by, os.getppid(), os.getpid())")
    job = begin([str(tree / "script.py")], preload="heavy,fractions")
    first, second = (of_rank[0].split() for of_rank in lines(job))
    assert job.out.count("imported") == 1
    assert "[preloader] imported" in job.out
    assert first[0] == second[0] == first[1] == second[1]
    assert len({first[0], first[2], second[2]}) == 3


def test_the_ranks_draw_numbers_of_their_own(begin: Begin) -> None:
    script = "import random, numpy; print(random.random(), numpy.random.rand())"
    first, second = lines(begin(["-c", script], preload="numpy"))
    assert not set(first[0].split()) & set(second[0].split())


def test_collectives_work(folder: Path, owner: str) -> None:
    results = run_job(3, jobs.one_sum, folder, owner, "--preload", "numpy", count=3_000)
    for rank, told in enumerate(results):
        assert told == {"rank": rank, "world_size": 3, "epoch": 1, "sums": [6]}


@pytest.mark.parametrize(
    ("ending", "code", "text"),
    [
        ("sys.exit('a reason')", 1, "rank 1 failed (exit code 1)"),
        ("sys.exit(258)", 2, "rank 1 failed (exit code 2)"),
        ("raise SystemExit", 0, ""),
        ("sys.exit(7)", 7, "rank 1 failed (exit code 7)"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 failed (signal SIGKILL)"),
        ("os.kill(os.getpid(), 2)", 130, "rank 1 failed (signal SIGINT)"),
        ("1 / 0", 1, "rank 1 failed (exit code 1)"),
    ],
)
def test_the_exit_code_is_the_ranks_and_what_it_says_at_its_end_is_what_python_would(
    begin: Begin, tree: Path, ending: str, code: int, text: str
) -> None:
    (tree / "script.py").write_text(f"""
import atexit, os, sys, time
atexit.register(print, "at exit")
def end():
    {ending}
end() if os.environ["RANK"] == "1" else time.sleep({600 if code else 0})
""")
    errors = []
    for preload in ("", "fractions"):
        job = begin([str(tree / "script.py")], preload=preload)
        assert job.wait(ENDS_WITHIN_S) == code, job.err
        assert text in job.err
        assert job.of_rank(1) == ([] if code == 137 else ["at exit"])
        errors.append([line for line in job.err.splitlines() if line.startswith("[1]")])
    assert errors[0] == errors[1]
    assert bool(errors[0]) == (code in (1, 130))


ENDS = {
    "all at once": """
class Told:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        os.write(1, f"{self.name} goes\\n".encode())
kept, circle = Told("global"), Told("circle")
circle.itself = circle
unflushed = open(path, "w")
unflushed.write("all of it")
atexit.register(lambda: print("at exit, with", kept.name))
thread = threading.Thread(target=lambda: (time.sleep(0.2), print("the thread ends")))
thread.start()
sys.stdout.write("no end of line")
def f():
    local = Told("local")
    raise KeyError("x")
f()
""",
    "an exception holds a file": """
def f():
    file = open(path, "w")
    file.write("rows")
    raise ExceptionGroup("several", [ValueError("x")])
f()
""",
    "what was there before holds a file": """
import fractions
fractions.kept = open(path, "w")
fractions.kept.write("rows")
""",
    "logging and a daemon thread": """
import logging, math
logging.basicConfig()
threading.Thread(target=lambda: [math.sin(1) for _ in iter(int, 1)], daemon=True).start()
kept = list(range(1 << 16))
""",
    "output that can't be written": "sys.stdout = open('/dev/full', 'w'); print('x')",
    "a large number": "sys.exit(2**64)",
    "a hook that raises": """
def hook(*told):
    raise KeyError("of the hook")
sys.excepthook = hook
raise ValueError("x")
""",
    "a cause": """
try:
    1 / 0
except ZeroDivisionError as exc:
    raise ValueError("x") from exc
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_what_a_program_leaves_open_is_finished_as_python_does(
    begin: Begin, tree: Path, end: str
) -> None:
    imports = "import atexit, os, sys, threading, time\npath = sys.argv[1] + os.environ['RANK']\n"
    (tree / "script.py").write_text(imports + ENDS[end])
    ended = []
    for preload in ("", "fractions"):
        folder = tree / f"with-{preload}"
        folder.mkdir()
        job = begin([str(tree / "script.py"), f"{folder}/"], preload=preload)
        code = job.wait(ENDS_WITHIN_S)
        written = {path.read_text() for path in folder.iterdir()}
        # which of two ranks is the first to fail is chance
        said = {line.partition("] ")[2] for line in job.err.splitlines() if line[0] == "["}
        ended.append((code, written, sorted(job.of_rank(1)), sorted(said)))
    assert ended[0] == ended[1]


def test_an_archive_and_compiled_code_run(begin: Begin, tree: Path) -> None:
    zipapp.create_archive(tree / "package", tree / "app.pyz")
    py_compile.compile(str(tree / "script.py"), str(tree / "script.pyc"))
    for name in ("app.pyz", "script.pyc"):
        forked, plain = (
            lines(begin([str(tree / name), "a"], preload=p)) for p in ("fractions", "")
        )
        for told, expected in zip(forked, plain, strict=True):
            mine = json.loads(told[0]) | {"preloaded": False}
            assert mine == json.loads(expected[0])


def test_a_preloader_that_stands_still_does_not_keep_the_job_from_ending(
    begin: Begin, tree: Path, owner: str
) -> None:
    (tree / "slow.py").write_text("import time; print('imports', flush=True); time.sleep(600)")
    job = begin([str(tree / "script.py")], preload="slow")
    job.await_output("imports")
    preloader = preloader_of(owner)
    os.kill(preloader, signal.SIGSTOP)
    job.process.send_signal(signal.SIGINT)
    assert job.wait(ENDS_WITHIN_S) == 130
    assert "Traceback" not in job.err
    nothing_is_left(owner, job)


def test_a_rank_that_failed_is_started_anew_from_the_same_preloader(
    begin: Begin, folder: Path
) -> None:
    mark = folder / "failed"
    script = f"""
        import os, pathlib, sys
        mark = pathlib.Path({str(mark)!r})
        print(os.getppid())
        if os.environ["RANK"] == "1" and not mark.exists():
            mark.touch()
            sys.exit(3)
    """
    job = begin(["-c", textwrap.dedent(script)], "--max-restarts", "1")
    assert job.wait(ENDS_WITHIN_S) == 0, job.err
    assert "starting rank 1 anew" in job.err
    assert len(job.of_rank(1)) == 2
    assert len({*job.of_rank(0), *job.of_rank(1)}) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher_ends_all(
    folder: Path, owner: str, number: int, code: int
) -> None:
    job = start_job(2, command_for(jobs.sum_for_ever), folder, owner, "--preload", "numpy")
    job.await_output("at work", times=2)
    job.process.send_signal(number)
    assert job.wait(ENDS_WITHIN_S) == code
    nothing_is_left(owner, job)


def test_a_signal_while_modules_are_imported_ends_the_job(
    begin: Begin, tree: Path, owner: str
) -> None:
    (tree / "slow.py").write_text("import time; print('imports', flush=True); time.sleep(600)")
    job = begin([str(tree / "script.py")], preload="slow")
    job.await_output("imports")
    job.process.send_signal(signal.SIGINT)
    assert job.wait(ENDS_WITHIN_S) == 130
    assert "interrupted (SIGINT)" in job.err
    nothing_is_left(owner, job)


@pytest.mark.parametrize("killed", ["launcher", "preloader"])
def test_nothing_is_left_when_the_launcher_or_the_preloader_is_killed(
    folder: Path, owner: str, killed: str
) -> None:
    job = start_job(2, command_for(jobs.sum_for_ever), folder, owner, "--preload", "numpy")
    job.await_output("at work", times=2)
    preloader = preloader_of(owner)
    os.kill(job.process.pid if killed == "launcher" else preloader, signal.SIGKILL)
    code = job.wait(ENDS_WITHIN_S)
    if killed == "preloader":
        assert code == 4
        assert "the preloader ended (signal SIGKILL); ending the job" in job.err
    until(lambda: not processes_of(owner), "no process is left", ENDS_WITHIN_S)


@pytest.mark.parametrize(
    ("preload", "text"),
    [
        ("no_such_module", "'no_such_module' can't be imported: ModuleNotFoundError"),
        ("broken", "'broken' can't be imported: ZeroDivisionError"),
        ("leaves", "'leaves' can't be imported: SystemExit: 5"),
        ("threads", "to import them started 1 threads"),
        ("dies", "the preloader has ended"),
    ],
)
def test_modules_that_can_not_be_preloaded_are_named(
    begin: Begin, tree: Path, preload: str, text: str, owner: str
) -> None:
    (tree / "broken.py").write_text("1 / 0")
    (tree / "leaves.py").write_text("import sys; sys.exit(5)")
    (tree / "dies.py").write_text("import os; os.kill(os.getpid(), 9)")
    (tree / "threads.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=[600], daemon=True).start()"
    )
    job = begin([str(tree / "script.py")], preload=preload)
    assert job.wait(ENDS_WITHIN_S) == 2, job.err
    assert f"ringd: --preload {preload}: {text}" in job.err
    nothing_is_left(owner, job)


@pytest.mark.parametrize(
    ("command", "python", "program"),
    [
        ("python a.py -m", "python", "a.py -m"),
        ("/usr/bin/python3.13t -u -Wignore a.py", "/usr/bin/python3.13t -u -Wignore", "a.py"),
        ("python3 -W ignore -X dev a b", "python3 -W ignore -X dev", "a b"),
        ("python -um a b", "python -u", "-m a b"),
        ("python -Pma b", "python -P", "-m a b"),
        ("python -uXdev -c pass", "python -uXdev", "-c pass"),
        ("python --check-hash-based-pycs never a", "python --check-hash-based-pycs never", "a"),
    ],
)
def test_a_command_is_split_as_python_reads_it(command: str, python: str, program: str) -> None:
    assert split(command.split()) == (python.split(), program.split())


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("torchrun a.py", "it starts with 'torchrun'"),
        ("./a.py", "it starts with './a.py'"),
        ("python", "it has no script"),
        ("python -u", "it has no script"),
        ("python -", "it has no script"),
        ("python -W", "it has no script"),
        ("python -x a.py", "it has -x"),
        ("python -ui a.py", "it has -i"),
        ("python -V", "it has -V"),
        ("python -m", "nothing follows -m"),
    ],
)
def test_a_command_that_is_no_program_of_pythons_is_refused(command: str, why: str) -> None:
    with pytest.raises(ConfigError, match="like `python train.py`; ") as caught:
        split(command.split())
    assert caught.value.message.endswith(why)
