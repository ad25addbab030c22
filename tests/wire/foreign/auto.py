"""What `auto` is, written from docs/wire-protocol.md alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True)
class Ask:
    """What a rule looks at; sizes in bytes.

    ``largest`` is the largest part, of an all_to_all the row.
    """

    collective: str
    n: int
    total: int
    largest: int = 0
    deterministic: bool = False
    reduces_16_bit: bool = False
    one_host: bool = False

    @property
    def in_order(self) -> bool:
        return self.deterministic and self.collective in ("all_reduce", "reduce", "reduce_scatter")

    @property
    def few(self) -> bool:
        return self.n <= (32 if self.reduces_16_bit else 16)

    @property
    def large(self) -> bool:
        plain = not self.in_order and not self.reduces_16_bit and not self.one_host
        return plain and self.n > 2 and self.total >= self.n * 256 * KIB

    @property
    def chain_pays(self) -> bool:
        k, s = (self.n - 1).bit_length(), self.total // (512 * KIB)
        return self.n > 2 and self.n - 2 + s < k * s


def resolve(ask: Ask) -> str:
    """The algorithm that `auto` is."""
    first = _on_one_host(ask) if ask.one_host and ask.n > 2 else ""
    if first:
        return first
    rules: dict[str, Callable[[Ask], str]] = {
        "all_reduce": _all_reduce,
        "reduce": _reduce,
        "reduce_scatter": lambda a: "direct" if not a.large and (a.in_order or a.few) else "ring",
        "all_gather": lambda a: "direct" if not a.large and a.n <= 16 else "ring",
        "gather": _through_root,
        "scatter": _through_root,
        "all_to_all": _all_to_all,
        "broadcast": lambda a: "chain" if a.chain_pays else "tree",
        "barrier": lambda a: "exchange" if a.n <= 16 else "tree",
        "agree": lambda a: "exchange" if a.n <= 16 else "tree",
        "new_group": lambda a: "exchange" if a.n <= 16 else "tree",
    }
    return rules[ask.collective](ask)


def _on_one_host(ask: Ask) -> str:
    if ask.collective in ("barrier", "agree"):
        return "tree"
    if ask.collective == "all_reduce" and not ask.in_order and ask.total <= 256 * KIB:
        return "tree"
    large = ask.total >= 512 * KIB and not ask.in_order and not ask.reduces_16_bit
    return (
        "ring" if large and ask.collective in ("all_reduce", "all_gather", "reduce_scatter") else ""
    )


def _all_reduce(ask: Ask) -> str:
    if ask.total <= min(64 * KIB, 64 * KIB // max(1, ask.n - 1)):
        return "exchange"
    if ask.large:
        return "ring"
    if ask.few:
        return "direct"
    if ask.in_order:
        return "chain"
    if ask.one_host:
        return "ring"
    if ask.total <= 32 * KIB:
        return "recursive_doubling"
    return "halving_doubling" if ask.total <= 1024 * KIB else "ring"


def _reduce(ask: Ask) -> str:
    if ask.chain_pays:
        return "chain"
    if ask.n > 2 and not ask.in_order:
        return "tree"
    return "direct" if ask.few else "chain"


def _through_root(ask: Ask) -> str:
    return "tree" if ask.n >= 5 and ask.largest <= 32 * KIB else "direct"


def _all_to_all(ask: Ask) -> str:
    small = ask.n <= 16 and ask.largest <= 32 * KIB
    return "direct" if ask.n <= 4 or small else "pairwise"
