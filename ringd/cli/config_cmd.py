"""``ringd config``: which settings hold and why; a new secret."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringd.cli import options

if TYPE_CHECKING:
    from ringd.config.loader import Loaded

app = typer.Typer(help="Which settings hold, and where each came from.", no_args_is_help=True)


@app.command("show", epilog="Example: RINGD_TIMEOUT_S=30 ringd config show --config job.toml")
def show(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    config: options.Config = None,
    debug: options.Debug = None,
) -> None:
    """Print each setting, its value, and where the value came from."""
    loaded = options.settings_from(ctx)
    if as_json:
        print(json.dumps(_plain(loaded), indent=2))
    elif sys.stdout.isatty():
        _print_table(loaded)
    else:
        for name, row in _plain(loaded).items():
            print(name, _text(name, row["value"]), row["origin"], sep="\t")


@app.command("secret", epilog="Example: ringd config secret job.secret")
def secret(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(help="The file to make; it must not exist yet.")],
    debug: options.Debug = None,
) -> None:
    """Make a random job secret in a file that only its owner can read."""
    from ringd.config.secret import make_secret_file

    ctx.meta[options.DEBUG] = bool(debug)
    make_secret_file(path)


def _plain(loaded: Loaded) -> dict[str, dict[str, Any]]:
    return {
        name: {"value": _value(name, getattr(loaded.settings, name)), "origin": origin}
        for name, origin in loaded.origin.items()
    }


def _value(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return "***" if name == "secret" else str(value)


def _text(name: str, value: Any) -> str:
    """A value as a person would write it into a settings file."""
    from ringd.config.values import format_size

    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return format_size(value) if name.endswith("_bytes") else str(value)


def _print_table(loaded: Loaded) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from ringd.config.loader import DEFAULT

    table = Table("setting", "value", "from", box=None, header_style="bold")
    for name, row in _plain(loaded).items():
        style = "dim" if row["origin"] == DEFAULT else None
        table.add_row(name, escape(_text(name, row["value"])), escape(row["origin"]), style=style)
    Console().print(table)
