"""``ringd demo``: the main job on real input, shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringd.cli import options

EXAMPLE = "Example: ringd demo --json demo.json --plot plots/"


def demo(
    ctx: typer.Context,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Write the results there.", show_default=False),
    ] = None,
    plot_dir: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="DIR", help="Draw timing and bytes there.", show_default=False
        ),
    ] = None,
    config: options.Config = None,
    debug: options.Debug = None,
) -> None:
    """Check every collective against gloo, count bytes, time, train, and kill a rank."""
    options.settings_from(ctx)

    from ringd.demo.main import run

    raise typer.Exit(run(json_path=json_path, plot_dir=plot_dir))
