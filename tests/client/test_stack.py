"""The stack file: what a client offers its daemon, and what it leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

import ringd_client
from ringd.errors import ConfigError
from ringd.wire import ipc
from ringd_client import _stack
from tests.client.stub_daemon import StubDaemon


def run(code: str, **environment: str) -> str:
    """The output of a program; its standard error counts as such."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment}
    head = "import faulthandler, os, signal, sys\nfrom ringd_client import _stack\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=True,
        env=env,
    )
    return done.stdout


def test_hello_offers_the_signal_and_the_file(daemon: StubDaemon) -> None:
    for _ in range(2):
        ringd_client.connect(socket=daemon.path, timeout_s=5).close()
    assert [m[1]["stack_signal"] for m in daemon.log if m[0] == ipc.HELLO] == [41, 41]


def test_turned_off_nothing_is_offered(daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGD_STACK_SIGNAL", "0")
    ringd_client.connect(socket=daemon.path, timeout_s=5).close()
    assert "stack_signal" not in daemon.log[0][1]


@pytest.mark.parametrize("text", ["9", "33", "65", "-1", "4.5", "SIGUSR1", "٤١"])
def test_what_is_no_real_time_signal_is_refused(
    daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("RINGD_STACK_SIGNAL", text)
    with pytest.raises(ConfigError, match="RINGD_STACK_SIGNAL = .* 34 to 64"):
        ringd_client.connect(socket=daemon.path, timeout_s=5)
    monkeypatch.setenv("RINGD_STACK_SIGNAL", "")
    ringd_client.connect(socket=daemon.path, timeout_s=5).close()


def test_on_the_signal_the_main_threads_stack_is_in_the_file() -> None:
    said = run(
        """
        import threading
        def main():
            stack = _stack.offered()
            assert stack is _stack.offered()
            for _ in range(2):
                os.kill(os.getpid(), stack.signal)
            print(os.pread(stack.fd, 10000, 0).decode())
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        main()
        """,
        RINGD_STACK_SIGNAL="50",
    )
    lines = [line for line in said.splitlines() if line]
    stack = ["Stack (most recent call first):", "in main", "in <module>"]
    assert len(lines) == 6, "the second is written after the first"
    assert all(line.endswith(words) for line, words in zip(lines, stack * 2, strict=True))


@pytest.mark.parametrize(
    "taken",
    [
        "signal.signal(41, lambda *_: print('mine'))",
        "signal.signal(41, signal.SIG_IGN)",
        "faulthandler.register(41, file=1)",
    ],
)
def test_a_signal_that_is_in_use_is_left_alone_and_that_is_said_once(taken: str) -> None:
    said = run(
        f"""
        {taken}
        print(_stack.offered(), _stack.offered(), flush=True)
        os.kill(os.getpid(), 41)
        """
    )
    assert "None None" in said
    assert said.count("signal 41 is in use by this program (RINGD_STACK_SIGNAL sets another)") == 1
    assert ("mine" in said) == ("mine" in taken)
    assert ("most recent call first" in said) == ("faulthandler" in taken)


def test_a_forked_child_has_a_file_of_its_own() -> None:
    said = run(
        """
        def written(stack):
            return os.fstat(stack.fd).st_size > 0
        parents = _stack.offered()
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), 41)  # harmless: it has the parent's file until it connects
            os.ftruncate(parents.fd, 0)
            ours = _stack.offered()
            os.kill(os.getpid(), 41)
            print(ours.pid == os.getpid(), written(ours), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print(written(parents))
        os.kill(os.getpid(), 41)
        print(written(parents))
        """
    )
    assert said.split() == ["True", "True", "False", "True"]


def test_nobody_can_make_the_file_unwritable() -> None:
    stack = _stack.offered()
    assert stack is not None
    assert stack.signal == signal.SIGRTMIN + 7
    with pytest.raises(PermissionError):
        _stack.fcntl.fcntl(stack.fd, _stack.fcntl.F_ADD_SEALS, _stack.fcntl.F_SEAL_WRITE)
    assert not os.get_inheritable(stack.fd)
