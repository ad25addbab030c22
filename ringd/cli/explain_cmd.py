"""``ringd explain``: where the flight recorders of the ranks part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "Example: ringd dump --out dumps && ringd explain dumps"


def explain(
    dumps: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DUMPS...]",
            help="Files of ringd dump, or folders of them; of several jobs the newest counts. "
            "Without any: those of the last failure here.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Merge the ranks' dumps: the first operation at which they part, who waits, what to do."""
    from ringd.config import environment
    from ringd.observe.dumps import last_failure
    from ringd.observe.explain_view import show

    if not dumps:
        dumps = [last_failure(environment.runtime_dir(environment.snapshot()))]
        print(f"ringd: the last failure's, in {dumps[0]}", file=sys.stderr)
    show(dumps, as_json=as_json)
