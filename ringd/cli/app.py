"""The command ``ringd``: its sub-commands, and what becomes of an error that ends one.

Only typer is imported here; a command imports what it runs when it runs, so ``--help`` is quick.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ringd import __version__
from ringd.cli import (
    bench_cmd,
    config_cmd,
    daemon_cmd,
    demo_cmd,
    dump_cmd,
    explain_cmd,
    lab_cmd,
    rendezvous_cmd,
    run_cmd,
    status_cmd,
)
from ringd.cli.exit_codes import (
    FAILED,
    INTERRUPTED,
    MEANING,
    TERMINATED,
    USAGE,
    exit_code,
)
from ringd.cli.options import DEBUG
from ringd.errors import RingdError

_USAGE_ERROR: type[Exception] = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)
"""Base of the errors that typer itself reports; it has no public name in typer."""


class _Terminated(BaseException):
    """SIGTERM came: what a command has started ends with it, as after Ctrl-C."""


class RingdGroup(TyperGroup):
    """The root of the commands: errors become one line and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """As typer's, which takes a Ctrl-C before the command has begun without a word."""
        try:
            return super().main(*args, **kwargs)
        except SystemExit as ended:
            if isinstance(getattr(ended.__context__, "__cause__", None), KeyboardInterrupt):
                _say("interrupted")
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; see the module ``exit_codes`` for what it exits with."""
        try:
            with _sigterm_raises():
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError, _USAGE_ERROR):
            raise
        except KeyboardInterrupt:
            _say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except _Terminated:
            raise typer.Exit(TERMINATED) from None
        except RingdError as error:
            _report(str(error), debug=ctx.meta.get(DEBUG, False))
            raise typer.Exit(exit_code(error)) from None
        except Exception as error:
            debug = ctx.meta.get(DEBUG, False)
            hint = "" if debug else " (--debug shows where)"
            _report(f"unforeseen error: {type(error).__name__}: {error}{hint}", debug=debug)
            raise typer.Exit(FAILED) from None


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """As SIGINT does; daemons and launchers have handlers of their own."""

    def terminate(*_: object) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(text: str, *, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    _say(text)


def _say(text: str) -> None:
    print(f"ringd: {' '.join(text.split())}", file=sys.stderr)


app = typer.Typer(
    name="ringd",
    cls=RingdGroup,
    help="Collective communication for PyTorch and NumPy: daemons, launcher, checks.",
    epilog=f"Try: ringd demo, ringd run -n 2 -- python train.py. {MEANING}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(
    command: Callable[..., None], example: str, context: dict[str, object] | None = None
) -> None:
    """A sub-command of the function's name; its help is the docstring, by paragraphs, as the
    lines of a docstring are not those of a terminal."""
    paragraphs = (command.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    app.command(command.__name__, epilog=example, help=text, context_settings=context)(command)


_add(rendezvous_cmd.rendezvous, rendezvous_cmd.EXAMPLE)
_add(daemon_cmd.daemon, daemon_cmd.EXAMPLE)
_add(run_cmd.run, run_cmd.EXAMPLE, {**run_cmd.CONTEXT})
_add(status_cmd.status, status_cmd.EXAMPLE)
_add(dump_cmd.dump, dump_cmd.EXAMPLE)
_add(explain_cmd.explain, explain_cmd.EXAMPLE)
_add(bench_cmd.bench, bench_cmd.EXAMPLE)
_add(demo_cmd.demo, demo_cmd.EXAMPLE)
app.add_typer(lab_cmd.app, name="lab", epilog="Example: ringd lab up --hosts 4 --rate 1gbit")
app.add_typer(config_cmd.app, name="config", epilog="Example: ringd config show --json")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ringd {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Take the options that stand before a sub-command."""


def start() -> None:
    """Run what the command line says, and exit."""
    if not sys.platform.startswith("linux"):
        _say(f"ringd runs on Linux only; this is {sys.platform}")
        sys.exit(USAGE)
    try:
        app(prog_name="ringd")
    except KeyboardInterrupt:  # before the command has begun, or once it is over
        _say("interrupted")
        sys.exit(INTERRUPTED)
