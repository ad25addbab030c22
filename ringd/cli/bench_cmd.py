"""``ringd bench``: times of ringd and of others, by one method."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringd.cli import options
from ringd.errors import InvalidArgumentError, UnsupportedReductionError

if TYPE_CHECKING:
    from ringd.lab.spec import LabSpec

EXAMPLE = (
    "Example: ringd bench --op all_reduce --op all_gather --sizes 1K,1M -n 4 --peers gloo "
    "--json bench.json; ringd bench --faults --kinds kill-trainer,kill-daemon -n 3 --rounds 40; "
    "ringd bench --torch; ringd bench --startup -n 4"
)
PEERS = ("gloo", "none")
MEMORIES = ("ordinary", "arena")
DEFAULT_RANKS, DEFAULT_FAULT_RANKS, DEFAULT_TORCH_RANKS = [2, 4], [3], [2]
DEFAULT_STARTUP_RANKS = [4]
DEFAULT_SIZES = "1K,64K,1M,16M,64M"
DEFAULT_ROUNDS, DEFAULT_FAULT_ROUNDS = 5, 10


def bench(
    ctx: typer.Context,
    op: Annotated[
        list[str] | None,
        typer.Option(
            "--op",
            metavar="NAME,...",
            help="Collectives, sendrecv, or all. (default: all_reduce)",
        ),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--sizes",
            metavar="SIZE,...",
            help="Bytes of the larger tensor of a rank; 1K = 1024. (default: 1K,64K,1M,16M,64M)",
        ),
    ] = None,
    n: Annotated[
        list[str] | None,
        typer.Option(
            "-n",
            "--ranks",
            metavar="N,...",
            help="Numbers of ranks. (default: 2,4; faults: 3; torch: 2; startup: 4)",
        ),
    ] = None,
    peers: Annotated[
        list[str] | None,
        typer.Option(
            "--peers", metavar="NAME,...", help="Whom to compare with, or none. (default: gloo)"
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="Interleaved rounds. (default: 5; faults: 10 a kind)"),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Element type.")] = "float32",
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", metavar="NAME,...", help="Of ringd. (default: auto)"),
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            "--memory",
            metavar="KIND,...",
            help="Where ringd's tensors lie. (default: ordinary,arena)",
        ),
    ] = None,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Write the rows there.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer operations, for a look.")] = False,
    lab: Annotated[
        str | None,
        typer.Option(
            "--lab",
            metavar="HOSTSxRATE,...",
            help="Each rank on a host of its own, in a lab (root): 4x1gbit, "
            "8x1gbit,delay=1ms,loss=0.1%.",
            show_default=False,
        ),
    ] = None,
    faults: Annotated[
        bool,
        typer.Option(
            "--faults", help="Measure instead how soon ranks hear of faults (-n, --rounds, --json)."
        ),
    ] = False,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kinds", metavar="KIND,...", help="Of faults. (default: all)"),
    ] = None,
    torch: Annotated[
        bool,
        typer.Option(
            "--torch",
            help="Measure instead torch.distributed's backends: a small call, and a DDP training "
            "step (-n, --rounds, --json, --quick).",
        ),
    ] = False,
    startup: Annotated[
        bool,
        typer.Option(
            "--startup",
            help="Measure instead how long jobs of torch.distributed take to start and to end "
            "(-n, --rounds, --json).",
        ),
    ] = False,
    config: options.Config = None,
    debug: options.Debug = None,
) -> None:
    """Measure operations, ringd and its peers in turn, results checked.

    What is a list takes commas, and may be given more than once.
    """
    options.settings_from(ctx)
    world_sizes = _ranks(n)
    if faults:
        names, rounds = _words(kinds, "all"), rounds or DEFAULT_FAULT_ROUNDS
        raise typer.Exit(_faults(names, world_sizes or DEFAULT_FAULT_RANKS, rounds, json_path))
    rounds = rounds or DEFAULT_ROUNDS
    if torch:
        from ringd.bench.torch.main import run as run_torch

        world_sizes = world_sizes or DEFAULT_TORCH_RANKS
        raise typer.Exit(run_torch(world_sizes, rounds=rounds, json_path=json_path, quick=quick))
    if startup:
        from ringd.bench.startup.main import run as run_startup

        world_sizes = world_sizes or DEFAULT_STARTUP_RANKS
        raise typer.Exit(run_startup(world_sizes, rounds=rounds, json_path=json_path))

    from ringd.bench.main import run
    from ringd.bench.matrix import Matrix
    from ringd.vocabulary import DTYPES

    _known("--dtype", [dtype], DTYPES)
    spec = _lab(lab, world_sizes)
    world_sizes = [spec.hosts] if spec else world_sizes or DEFAULT_RANKS
    algorithms = _words(algorithm, "auto")
    known_peers = _known("--peers", _words(peers, "gloo"), PEERS)
    matrix = Matrix(
        ops=_ops(_words(op, "all_reduce"), dtype, algorithms, world_sizes),
        sizes_bytes=_sizes(_words(sizes, DEFAULT_SIZES)),
        world_sizes=world_sizes,
        peers=[name for name in known_peers if name != "none"],
        dtype=dtype,
        algorithms=algorithms,
        memory=_known("--memory", _words(memory, ",".join(MEMORIES)), MEMORIES),
        rate_bps=spec.rate_bps if spec else 0,
        own_hosts=spec is not None,
    )
    raise typer.Exit(run(matrix, rounds=rounds, json_path=json_path, quick=quick, lab=spec))


def _lab(text: str | None, world_sizes: list[int]) -> LabSpec | None:
    """``--lab``: a lab with a name of its own, so that it gets into nobody's way."""
    if text is None:
        return None
    from ringd.lab.spec import parse_lab
    from ringd.lab.tools import check_possible

    spec = parse_lab(text, name=f"bench_{os.getpid()}")
    if world_sizes not in ([], [spec.hosts]):
        raise InvalidArgumentError(f"--lab {text} has a rank on each host: leave -n out")
    check_possible()
    return spec


def _faults(kinds: list[str], world_sizes: list[int], rounds: int, json_path: Path | None) -> int:
    """``--faults``; the exit code."""
    from ringd.bench.faults.kinds import KINDS

    names = _known("--kinds", kinds, [*KINDS, "all"])
    if min(world_sizes) < 2:
        raise InvalidArgumentError("--faults needs survivors: two ranks at least, not -n 1")
    chosen = list(KINDS) if "all" in names else list(dict.fromkeys(names))

    from ringd.bench.faults.main import run

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


def _words(texts: list[str] | None, default: str) -> list[str]:
    """The words of an option that takes commas and may be given more than once."""
    given = texts or [default]
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def _ranks(texts: list[str] | None) -> list[int]:
    """Numbers of ranks; [] when none are given."""
    words = _words(texts, "")
    if texts and (not words or not all(word.isdecimal() and int(word) for word in words)):
        raise InvalidArgumentError(f"-n {','.join(texts)!r}: numbers of ranks from 1 on, like 2,4")
    return [int(word) for word in words]


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


def _sizes(words: list[str]) -> list[int]:
    from ringd.config.values import parse_size

    try:
        return [parse_size(word) for word in words or [""]]
    except ValueError as exc:
        raise InvalidArgumentError(f"--sizes {','.join(words)!r}: {exc}") from None
