"""``ringd bench``: times of ringd and of others, by one method."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from ringd.cli import options
from ringd.errors import InvalidArgumentError, UnsupportedReductionError

EXAMPLE = (
    "Examples: ringd bench --op all_reduce --op all_gather --sizes 1K,1M -n 4 --peers gloo "
    "--json bench.json; ringd bench --faults --kinds kill-trainer,kill-daemon -n 3 --rounds 40"
)
PEERS = ("gloo", "none")
MEMORIES = ("ordinary", "arena")
DEFAULT_RANKS, DEFAULT_FAULT_RANKS = [2, 4], [3]
DEFAULT_ROUNDS, DEFAULT_FAULT_ROUNDS = 5, 10


def bench(
    ctx: typer.Context,
    op: Annotated[
        list[str] | None,
        typer.Option(
            "--op",
            metavar="NAME",
            help="Repeatable: a collective, sendrecv, or all. (default: all_reduce)",
        ),
    ] = None,
    sizes: Annotated[
        str,
        typer.Option(
            "--sizes", metavar="SIZE,...", help="Bytes of the larger tensor of a rank; 1K = 1024."
        ),
    ] = "1K,64K,1M,16M,64M",
    n: Annotated[
        list[int] | None,
        typer.Option(
            "-n", "--ranks", min=1, metavar="N", help="Repeatable. (default: 2, 4; faults: 3)"
        ),
    ] = None,
    peers: Annotated[
        str, typer.Option("--peers", metavar="NAME,...", help="Whom to compare with, or none.")
    ] = "gloo",
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="Interleaved rounds. (default: 5; faults: 10 a kind)"),
    ] = None,
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
    faults: Annotated[
        bool,
        typer.Option(
            "--faults", help="Measure instead how soon ranks hear of faults (-n, --rounds, --json)."
        ),
    ] = False,
    kinds: Annotated[
        str,
        typer.Option("--kinds", metavar="KIND,...", help="Of faults, or all."),
    ] = "all",
    config: options.Config = None,
    debug: options.Debug = None,
) -> None:
    """Measure operations, ringd and its peers in turn, results checked."""
    options.settings_from(ctx)
    if faults:
        code = _faults(kinds, n or DEFAULT_FAULT_RANKS, rounds or DEFAULT_FAULT_ROUNDS, json_path)
        raise typer.Exit(code)

    from ringd.bench.main import run
    from ringd.bench.matrix import Matrix
    from ringd.vocabulary import DTYPES

    _known("--dtype", [dtype], DTYPES)
    matrix = Matrix(
        ops=_ops(op or ["all_reduce"], dtype, algorithm or ["auto"], n or DEFAULT_RANKS),
        sizes_bytes=_sizes(sizes),
        world_sizes=n or DEFAULT_RANKS,
        peers=[name for name in _known("--peers", _words(peers), PEERS) if name != "none"],
        dtype=dtype,
        algorithms=algorithm or ["auto"],
        memory=_known("--memory", _words(memory), MEMORIES),
    )
    rounds = rounds or DEFAULT_ROUNDS
    raise typer.Exit(run(matrix, rounds=rounds, json_path=json_path, quick=quick))


def _faults(kinds: str, world_sizes: list[int], rounds: int, json_path: Path | None) -> int:
    """``--faults``; the exit code."""
    from ringd.bench.faults.kinds import KINDS
    from ringd.bench.faults.main import run

    names = _known("--kinds", _words(kinds), [*KINDS, "all"])
    if min(world_sizes) < 2:
        raise InvalidArgumentError("--faults needs survivors: two ranks at least, not -n 1")
    chosen = list(KINDS) if "all" in names else list(dict.fromkeys(names))
    return run(chosen, world_sizes=world_sizes, rounds=rounds, json_path=json_path)


def _ops(names: list[str], dtype: str, algorithms: list[str], world_sizes: list[int]) -> list[str]:
    """The operations, each of which can be called like that."""
    from ringd.bench.ops import OPS, SENDRECV, is_reduction
    from ringd.bench.ops import algorithms as algorithms_of

    _known("--op", names, [*OPS, "all"])
    ops = list(OPS) if "all" in names else list(dict.fromkeys(names))
    for op in ops:
        _known(f"--op {op} --algorithm", algorithms, algorithms_of(op))
        if is_reduction(op):
            _summable(op, dtype)
    if SENDRECV in ops and 1 in world_sizes:
        raise InvalidArgumentError(f"--op {SENDRECV} needs two ranks at least, not -n 1")
    return ops


def _summable(op: str, dtype: str) -> None:
    from ringd.vocabulary import check_reduction

    try:
        check_reduction(dtype, "sum")
    except UnsupportedReductionError as exc:
        raise InvalidArgumentError(f"--op {op} --dtype {dtype}: {exc}") from None


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
