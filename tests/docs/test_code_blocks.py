"""The code of README.md, of the tutorial and of some other pages runs, and prints what they show.

A fence ``python NAME`` is a file of that name. A fence ``console`` is a session of bash: what
follows ``$`` is run, the other lines are what it prints, standard error included. Lines are
compared without regard to their order, as ranks print when they please, and what differs from
run to run (times, ports, process numbers) is masked. A session that shows commands only is run
for its exit code. Other fences (``sh``, ``text``) are for the eye.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

HANGS_S = 280
"""What takes longer hangs; a busy machine is slow to import torch."""
pytestmark = [pytest.mark.serial, pytest.mark.timeout(2 * HANGS_S)]

TOP = Path(__file__).resolve().parents[2]
TUTORIAL = sorted((TOP / "docs/tutorial").glob("[0-9]*.md"))
FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MASKS = [
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"run-[0-9a-f]{8}\b"), "JOB"),
    (re.compile(r"/\S*/last-failure/"), "last-failure/"),
    (re.compile(r"process \d+ [^)\n]*"), "PROCESS"),
    (re.compile(r"\d+\.\d+ (s|ms|µs)\b"), r"SOME \1"),
]


@dataclass(frozen=True)
class Session:
    """Commands, and the lines that they print; none are shown: none are compared."""

    commands: tuple[str, ...]
    output: tuple[str, ...]


def files_of(page: Path) -> dict[str, str]:
    return {name: code for kind, name, code in FENCE.findall(page.read_text()) if name}


def sessions_of(page: Path) -> list[Session]:
    found = []
    for kind, _, text in FENCE.findall(page.read_text()):
        if kind == "console":
            lines = text.splitlines()
            commands = tuple(line[2:] for line in lines if line.startswith("$ "))
            output = tuple(line for line in lines if not line.startswith("$ "))
            found.append(Session(commands, output))
    return found


def write(files: dict[str, str], folder: Path) -> Path:
    for name, code in files.items():
        (folder / name).write_text(code)
    return folder


def masked(lines: list[str] | tuple[str, ...]) -> Counter[str]:
    text = "\n".join(line.rstrip() for line in lines)
    for pattern, word in MASKS:
        text = pattern.sub(word, text)
    return Counter(text.split("\n"))


def run(session: Session, folder: Path) -> None:
    """Run the commands; the last one must end well, and the output be as shown."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RINGD_")}
    bin_dir = Path(sys.executable).parent
    process = subprocess.Popen(
        ["bash", "-c", "\n".join(session.commands)],
        cwd=folder,
        env=env | {"PATH": f"{bin_dir}:{env['PATH']}", "COLUMNS": "100", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=HANGS_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # the launcher, too, which ends its children
        printed, _ = process.communicate(timeout=HANGS_S / 4)
        pytest.fail(f"{session.commands} hangs:\n{printed}")
    assert process.returncode == 0, printed
    if session.output:
        assert masked(printed.splitlines()) == masked(session.output), printed


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder with the files of all pages."""
    files: dict[str, str] = {}
    for page in TUTORIAL:
        here = files_of(page)
        assert not files.keys() & here.keys(), f"{page.name} writes a file of an earlier page"
        files |= here
    return write(files, tmp_path_factory.mktemp("tutorial"))


@pytest.mark.parametrize("page", TUTORIAL, ids=lambda page: page.stem)
def test_a_page_of_the_tutorial_does_what_it_says(page: Path, tutorial: Path) -> None:
    sessions = sessions_of(page)
    assert sessions
    for session in sessions:
        run(session, tutorial)


@pytest.mark.timeout(4 * HANGS_S)
@pytest.mark.parametrize("name", ["README.md", "docs/elastic.md", "docs/torch.md"])
def test_a_page_does_what_it_says(name: str, tmp_path: Path) -> None:
    page = TOP / name
    write(files_of(page), tmp_path)
    sessions = sessions_of(page)
    assert sessions
    for session in sessions:
        run(session, tmp_path)


@pytest.mark.parametrize(
    "page",
    [TOP / "README.md", TOP / "docs/elastic.md", *TUTORIAL],
    ids=lambda page: str(page.relative_to(TOP)),
)
def test_every_fence_is_of_a_kind_that_is_known(page: Path) -> None:
    for kind, name, _ in FENCE.findall(page.read_text()):
        assert kind in {"python", "console", "sh", "text"}
        assert bool(name) == (kind == "python"), f"a python block without a file name: {page.name}"


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make (\w+)", (TOP / "README.md").read_text(), re.MULTILINE))
    assert named
    assert named <= targets


def test_the_readme_names_the_versions_that_are_tested() -> None:
    page = " ".join((TOP / "README.md").read_text().split())
    pins = dict(re.findall(r"^(\w+)==(\S+)$", (TOP / "constraints.txt").read_text(), re.MULTILINE))
    assert f"Tested with torch {pins['torch']} and numpy {pins['numpy']};" in page
