"""The daemon that programs start by themselves: told by a line, the same errors, less to import."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringd.config.loader import load
from ringd.config.values import HostPort, PortRange, Secret

MODULE = "ringd.cli.child_daemon"


def child(
    *more: str, parent: int | None = None, pass_fds: tuple[int, ...] = (), **variables: str
) -> subprocess.Popen[str]:
    """One of this process or another parent, which has not been told anything."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RINGD_")}
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, str(parent or os.getpid()), *more],
        env=env | variables,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=pass_fds,
        text=True,
    )


def line(folder: Path, **settings: object) -> str:
    """Settings of a daemon that would be a rendezvous, too."""
    place = {
        "rank": 0,
        "world_size": 1,
        "rendezvous": HostPort("127.0.0.1", 1),
        "embed_rendezvous": True,
        "secret": Secret("hush-hush-hush-hush"),
        "socket": folder / "0.sock",
        "log_level": "error",
    }
    return load({}, environ={}).placed(**(place | settings)).to_line().decode()


def test_an_error_is_one_line_and_the_exit_code_of_the_command(tmp_path: Path) -> None:
    ours, its = socket.socketpair()
    with ours, its, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = child(str(its.fileno()), pass_fds=(its.fileno(),), RINGD_SEGMNT_BYTES="1")
        _, err = done.communicate(line(tmp_path, port=PortRange(port, port)), timeout=60)
        assert done.returncode == 2
        assert err.startswith("ringd: ")
        assert err.count("\n") == 1
        assert f"127.0.0.1:{port}" in err
        assert "hush" not in err
        assert ours.recv(4096).decode() == err.removeprefix("ringd: ").rstrip()


def test_it_imports_nothing_that_it_can_do_without(tmp_path: Path) -> None:
    """Four of them start at once on two cores: each of these would be seen in a job's start."""
    heavy = ("typer", "rich", "pydantic", "torch", "tomllib", "numpy.testing", "ringd_client")
    heavy += ("ringd.rendezvous.service", "ringd.rendezvous.events", "ringd.rendezvous.verdicts")
    code = f"""
import os, sys
import ringd.daemon.main
def run_daemon(loaded):
    print(loaded.settings.rank, [m for m in {heavy} if m in sys.modules])
ringd.daemon.main.run_daemon = run_daemon
from {MODULE} import main
sys.argv = ["", str(os.getppid())]
main()
"""
    variables = {"RINGD_CONGESTION": "cubic", "RINGD_SEGMNT_BYTES": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        input=line(tmp_path, rank=0),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "0 []\n", done.stderr


def watches(pid: int) -> bool:
    """Whether it has a descriptor of a process."""
    with contextlib.suppress(OSError):  # one is closed while we look
        return any("pidfd" in str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.parametrize("part", [0, 0.5])
def test_it_ends_without_a_word_if_it_is_not_needed(part: float, tmp_path: Path) -> None:
    done = child()
    whole = line(tmp_path)
    _, err = done.communicate(whole[: int(part * len(whole))], timeout=60)
    assert (done.returncode, err) == (0, "")


def test_it_ends_with_its_parent_though_its_input_stays_open() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent:
        waiting = child(parent=parent.pid)
        while not watches(waiting.pid):
            assert waiting.poll() is None
            time.sleep(0.01)
        parent.kill()
        parent.wait()
        assert waiting.wait(60) == 0
        waiting.communicate()
