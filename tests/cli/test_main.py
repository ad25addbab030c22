"""Help, version, and what becomes of an error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from typer.testing import Result

from ringd import __version__, errors
from ringd.cli import app
from ringd.cli.exit_codes import exit_code

Invoke = Callable[..., Result]
StandIn = Callable[[str, str], Any]

COMMANDS = ("rendezvous", "daemon", "run", "status", "dump", "explain", "bench", "demo")
DAEMON = ("daemon", "--rank", "0", "--world-size", "1")


def test_help_names_every_command_and_the_exit_codes(ringd: Invoke) -> None:
    result = ringd("--help")
    assert result.exit_code == 0
    for command in (*COMMANDS, "config"):
        assert f" {command} " in result.output
    assert "130 interrupted" in result.output


@pytest.mark.parametrize(
    "command", [*((c,) for c in COMMANDS), ("config", "show"), ("config", "secret")]
)
def test_every_commands_help_has_an_example(ringd: Invoke, command: tuple[str, ...]) -> None:
    result = ringd(*command, "--help")
    assert result.exit_code == 0
    assert f"ringd {command[0]}" in result.output.partition("Example:")[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_no_line_breaks_within_a_paragraph(ringd: Invoke, command: str) -> None:
    said = ringd(command, "--help", COLUMNS="2000").output.partition("Usage:")[2]
    paragraphs = said.partition("╭")[0].split("\n")[1:]
    text = [line.strip() for line in paragraphs]
    assert all(not (line and after) for line, after in pairwise(text)), text


def test_a_jobs_default_name_is_told_as_it_is(ringd: Invoke) -> None:
    assert "(default: run-, and 8 random digits)" in ringd("run", "--help", COLUMNS="300").output


def test_the_version(ringd: Invoke) -> None:
    result = ringd("--version")
    assert (result.exit_code, result.output) == (0, f"ringd {__version__}\n")


def test_a_misspelt_command_gets_a_suggestion(ringd: Invoke) -> None:
    result = ringd("daemn")
    assert result.exit_code == 2
    assert "Did you mean 'daemon'" in result.stderr


def test_help_is_quick_because_it_loads_nothing_heavy() -> None:
    code = (
        "import sys; import ringd.cli.app; "
        "print([m for m in ('torch', 'numpy', 'pydantic', 'uvloop', 'msgpack', 'asyncio') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.AddressInUseError("x"), 2),
        (errors.UnsupportedPlatformError("x"), 2),
        (errors.InvalidArgumentError("x"), 2),
        (errors.RendezvousError("x"), 3),
        (errors.HandshakeRefusedError("x"), 3),
        (errors.PeerLostError("x"), 4),
        (errors.CollectiveTimeoutError("x"), 4),
        (errors.CollectiveMismatchError("x"), 4),
        (errors.DaemonLostError("x"), 4),
        (errors.RingdError("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    ringd: Invoke, stand_in: StandIn, error: errors.RingdError, code: int
) -> None:
    stand_in("ringd.daemon.main", "run_daemon").outcome = error
    result = ringd(*DAEMON)
    assert (result.exit_code, result.stderr) == (code, "ringd: x\n")
    assert exit_code(error) == code


def test_an_error_of_several_lines_is_told_in_one(ringd: Invoke, stand_in: StandIn) -> None:
    stand_in("ringd.daemon.main", "run_daemon").outcome = errors.RendezvousError("a\n  b")
    assert ringd(*DAEMON).stderr == "ringd: a b\n"


def test_an_unforeseen_error_has_no_traceback_but_says_how_to_get_it(
    ringd: Invoke, stand_in: StandIn
) -> None:
    stand_in("ringd.daemon.main", "run_daemon").outcome = KeyError("k")
    result = ringd(*DAEMON)
    assert result.exit_code == 1
    assert result.stderr == "ringd: unforeseen error: KeyError: 'k' (--debug shows where)\n"


@pytest.mark.parametrize(("flags", "environ"), [(["--debug"], {}), ([], {"RINGD_DEBUG": "1"})])
def test_debug_shows_the_traceback_and_keeps_the_exit_code(
    ringd: Invoke, stand_in: StandIn, flags: list[str], environ: dict[str, str]
) -> None:
    stand_in("ringd.daemon.main", "run_daemon").outcome = errors.PeerLostError("rank 1 is lost")
    result = ringd(*DAEMON, *flags, **environ)
    assert result.exit_code == 4
    assert "Traceback (most recent call last)" in result.stderr
    assert result.stderr.endswith("ringd: rank 1 is lost\n")


def test_ctrl_c_is_130(ringd: Invoke, stand_in: StandIn) -> None:
    stand_in("ringd.daemon.main", "run_daemon").outcome = KeyboardInterrupt()
    result = ringd(*DAEMON)
    assert (result.exit_code, result.stderr) == (130, "ringd: interrupted\n")


def test_elsewhere_than_on_linux_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SystemExit) as ended:
        app.start()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "ringd: ringd runs on Linux only; this is darwin\n"


def test_an_interrupt_before_the_command_has_begun_is_said(
    ringd: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(app.RingdGroup, "make_context", interrupted)
    result = ringd("run", "-n", "2", "--", "true")
    assert (result.exit_code, result.stderr) == (130, "ringd: interrupted\n")
