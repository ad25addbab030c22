"""``ringd bench``: times of ringd and of others, by one method."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from ringd.cli import options
from ringd.errors import InvalidArgumentError

EXAMPLE = (
    "Example: ringd bench --op all_reduce --sizes 1K,1M,64M -n 2 -n 4 --peers gloo "
    "--json bench.json"
)
PEERS = ("gloo", "none")
MEMORIES = ("ordinary", "arena")


def bench(
    ctx: typer.Context,
    op: Annotated[str, typer.Option("--op", help="The collective.")] = "all_reduce",
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="SIZE,...", help="Bytes per tensor; 1K = 1024.")
    ] = "1K,64K,1M,16M,64M",
    n: Annotated[
        list[int] | None,
        typer.Option("-n", "--ranks", min=1, metavar="N", help="Repeatable. (default: 2, 4)"),
    ] = None,
    peers: Annotated[
        str, typer.Option("--peers", metavar="NAME,...", help="Whom to compare with, or none.")
    ] = "gloo",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Interleaved rounds.")] = 5,
    dtype: Annotated[str, typer.Option("--dtype", help="Element type.")] = "float32",
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", metavar="NAME", help="Repeatable. (default: auto)"),
    ] = None,
    memory: Annotated[
        str, typer.Option("--memory", metavar="KIND,...", help="Where ringd's tensors lie.")
    ] = "ordinary,arena",
    json_path: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Write the rows there.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer operations, for a look.")] = False,
    config: options.Config = None,
    debug: options.Debug = None,
) -> None:
    """Measure a collective, ringd and its peers in turn, results checked."""
    options.settings_from(ctx)

    from ringd.vocabulary import ALGORITHMS, DTYPES

    _known("--op", [op], ALGORITHMS)
    _known("--dtype", [dtype], DTYPES)
    algorithms = _known("--algorithm", algorithm or ["auto"], ALGORITHMS[op])
    others = [name for name in _known("--peers", _words(peers), PEERS) if name != "none"]
    memories = _known("--memory", _words(memory), MEMORIES)
    sizes_bytes = _sizes(sizes)

    from ringd.bench.main import run

    code = run(
        op=op,
        sizes_bytes=sizes_bytes,
        world_sizes=n or [2, 4],
        peers=others,
        rounds=rounds,
        dtype=dtype,
        algorithms=algorithms,
        memory=memories,
        json_path=json_path,
        quick=quick,
    )
    raise typer.Exit(code)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _known(flag: str, words: list[str], known: Iterable[str]) -> list[str]:
    """The words, if all of them are known and there is one at least."""
    from ringd.config.suggest import did_you_mean

    known = list(known)
    for word in words or [""]:
        if word not in known:
            near = did_you_mean(word, known)
            raise InvalidArgumentError(
                f"{flag} {word!r} is unknown; known: {', '.join(known)}{near}"
            )
    return words


def _sizes(text: str) -> list[int]:
    from ringd.config.values import parse_size

    try:
        return [parse_size(word) for word in _words(text)]
    except ValueError as exc:
        raise InvalidArgumentError(f"--sizes {text!r}: {exc}") from None
