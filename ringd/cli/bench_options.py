"""The flags of ``ringd bench``: what each is, which go together, and what their words mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ringd.errors import InvalidArgumentError

PEERS = ("gloo", "none")
MEMORIES = ("ordinary", "arena")
DEFAULT_SIZES = "1K,64K,1M,16M,64M"

_OPERATIONS, _OTHERS, _ALL = "Of operations", "Instead of operations", "Of every kind"


def _words_option(flag: str, metavar: str, text: str, panel: str = _OPERATIONS) -> Any:
    return typer.Option(flag, metavar=f"{metavar},...", help=text, rich_help_panel=panel)


def _kind_option(flag: str, text: str) -> Any:
    return typer.Option(flag, help=text, rich_help_panel=_OTHERS)


Words = list[str] | None
Op = Annotated[
    Words, _words_option("--op", "NAME", "Collectives, sendrecv, or all. (default: all_reduce)")
]
Sizes = Annotated[
    Words,
    _words_option(
        "--sizes",
        "SIZE",
        f"Bytes of the larger tensor of a rank; 1K = 1024. (default: {DEFAULT_SIZES})",
    ),
]
Peers = Annotated[
    Words, _words_option("--peers", "NAME", "Whom to compare with, or none. (default: gloo)")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="Element type. (default: float32)",
        rich_help_panel=_OPERATIONS,
    ),
]
Algorithm = Annotated[Words, _words_option("--algorithm", "NAME", "Of ringd. (default: auto)")]
Memory = Annotated[
    Words,
    _words_option("--memory", "KIND", "Where ringd's tensors lie. (default: ordinary,arena)"),
]
Lab = Annotated[
    str | None,
    typer.Option(
        "--lab",
        metavar="HOSTSxRATE,...",
        help="Each rank on a host of its own, in a lab (root): 4x1gbit, "
        "8x1gbit,delay=1ms,loss=0.1%.",
        show_default=False,
        rich_help_panel=_OPERATIONS,
    ),
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Fewer operations, for a look; with --torch and --stages, too.",
        rich_help_panel=_OPERATIONS,
    ),
]
Faults = Annotated[
    bool,
    _kind_option("--faults", "How soon ranks hear of faults (-n, --rounds, --json, --kinds)."),
]
Kinds = Annotated[
    Words, _words_option("--kinds", "KIND", "Of faults. (default: all)", panel=_OTHERS)
]
Torch = Annotated[
    bool,
    _kind_option(
        "--torch",
        "torch.distributed's backends: a small call, and a DDP training step (-n, --rounds, "
        "--json, --quick).",
    ),
]
Startup = Annotated[
    bool,
    _kind_option(
        "--startup",
        "How long jobs of torch.distributed take to start and to end (-n, --rounds, --json).",
    ),
]
Stages = Annotated[
    bool,
    _kind_option(
        "--stages",
        "Where the time of a blocking call goes, in stages, from trainer to daemon to peer and "
        "back (-n, --rounds, --json, --op, --sizes, --dtype, --algorithm, --memory, --quick). "
        "(default: --sizes 1K,64K --memory ordinary)",
    ),
]
Ranks = Annotated[
    Words,
    typer.Option(
        "-n",
        "--ranks",
        metavar="N,...",
        help="Numbers of ranks. (default: 2,4; faults: 3; torch, stages: 2; startup: 4)",
        rich_help_panel=_ALL,
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        min=1,
        help="Interleaved rounds. (default: 5; faults: 10 a kind)",
        rich_help_panel=_ALL,
    ),
]
JsonPath = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="PATH",
        help="Write the rows there.",
        show_default=False,
        rich_help_panel=_ALL,
    ),
]

_FLAGS = {
    "op": "--op",
    "sizes": "--sizes",
    "peers": "--peers",
    "dtype": "--dtype",
    "algorithm": "--algorithm",
    "memory": "--memory",
    "quick": "--quick",
    "lab": "--lab",
    "kinds": "--kinds",
}
"""Parameter → flag, of those that not every kind of bench has."""
_TAKEN = {
    "operations": frozenset(_FLAGS) - {"kinds"},
    "faults": frozenset({"kinds"}),
    "torch": frozenset({"quick"}),
    "startup": frozenset[str](),
    "stages": frozenset({"op", "sizes", "dtype", "algorithm", "memory", "quick"}),
}


def kind_of(params: Mapping[str, Any]) -> str:
    """What is to be measured: "operations", "faults", "torch", "startup" or "stages".

    Args:
        params: the command's parameters, by name.

    Raises:
        InvalidArgumentError: two kinds are asked for, or an option is of another kind.
    """
    asked = [kind for kind in _TAKEN if params.get(kind)]
    if len(asked) > 1:
        flags = " and ".join(f"--{kind}" for kind in asked)
        raise InvalidArgumentError(f"{flags} are measured one at a time: leave all out but one")
    kind = asked[0] if asked else "operations"
    for name, flag in _FLAGS.items():
        if params.get(name) not in (None, False, (), []) and name not in _TAKEN[kind]:
            *owners, last = [_said(other) for other, names in _TAKEN.items() if name in names]
            what = f"{', '.join(owners)} and {last}" if owners else last
            here = _said(kind)
            raise InvalidArgumentError(f"{flag} is for {what}, not for {here}: leave it out")
    return kind


def _said(kind: str) -> str:
    return "operations" if kind == "operations" else f"--{kind}"


def words(texts: list[str] | None, default: str) -> list[str]:
    """The words of an option that takes commas and may be given more than once."""
    given = texts or [default]
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def ranks(texts: list[str] | None, default: list[int]) -> list[int]:
    """Numbers of ranks."""
    if not texts:
        return default
    found = words(texts, "")
    if not found or not all(word.isdecimal() and int(word) for word in found):
        raise InvalidArgumentError(f"-n {','.join(texts)!r}: numbers of ranks from 1 on, like 2,4")
    return [int(word) for word in found]


def known(flag: str, given: list[str], names: Iterable[str]) -> list[str]:
    """The words, if all of them are known and there is one at least."""
    from ringd.config.suggest import did_you_mean

    names = list(names)
    for word in given or [""]:
        if word not in names:
            near = did_you_mean(word, names)
            raise InvalidArgumentError(
                f"{flag} {word!r} is unknown; known: {', '.join(names)}{near}"
            )
    return given


def sizes(given: list[str]) -> list[int]:
    """Sizes in bytes."""
    from ringd.config.values import parse_size

    try:
        return [parse_size(word) for word in given or [""]]
    except ValueError as exc:
        raise InvalidArgumentError(f"--sizes {','.join(given)!r}: {exc}") from None
