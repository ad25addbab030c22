"""``ringd explain``: where the flight recorders of the ranks part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example: ringd dump --out dumps && ringd explain dumps"


def explain(
    dumps: Annotated[
        list[Path],
        typer.Argument(metavar="DUMPS...", help="Files of ringd dump, or folders of them."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Merge the ranks' dumps: the first operation at which they part, who waits, what to do."""
    from ringd.observe.explain_view import show

    show(dumps, as_json=as_json)
