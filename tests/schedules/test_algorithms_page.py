"""The tables of docs/algorithms.md say what formula.py and select.py do."""

import re
from fractions import Fraction
from pathlib import Path

import pytest

from ringd.schedules.formula import payload_bytes_per_rank, steps
from ringd.schedules.select import DEFAULT_THRESHOLDS
from ringd.vocabulary import ALGORITHMS, DETERMINISTIC_ALGORITHMS, REDUCING

PAGE = (Path(__file__).resolve().parents[2] / "docs/algorithms.md").read_text()
WORLD_SIZES = range(3, 34)


def table(heading: str) -> list[list[str]]:
    """The rows of the table under a heading that begins so, without their Markdown."""
    lines = PAGE.partition(f"| {heading} |")[2].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


def costs() -> dict[tuple[str, str], list[str]]:
    found, collective = {}, ""
    for name, algorithm, *cells in table("collective | algorithm"):
        collective = name or collective
        found[collective, algorithm] = cells
    return found


COSTS = costs()


def value(cell: str, n: int, total_bytes: int) -> Fraction:
    """What a formula as the page writes it comes to; words after it are for the reader."""
    formula = re.split(r", | \(|up to ", cell.removeprefix("up to "))[0]
    formula = formula.replace("−", "-").replace("·", "*")
    formula = re.sub(r"(?<=[\dA-Za-z)])(?=[A-Za-z(])", "*", formula)
    levels = n.bit_length() - 1
    names = {
        "N": Fraction(n),
        "K": (n - 1).bit_length(),
        "L": levels,
        "P": Fraction(1 << levels),
        "e": n != 1 << levels,
        "T": Fraction(total_bytes),
    }
    return Fraction(eval(formula, {"__builtins__": {}}, names))


def test_the_page_has_every_algorithm_and_no_other() -> None:
    assert COSTS.keys() == {
        (collective, algorithm)
        for collective, algorithms in ALGORITHMS.items()
        for algorithm in algorithms
        if algorithm != "auto"
    }
    for _, algorithm in COSTS:
        assert f"\n## {algorithm}\n" in PAGE


@pytest.mark.parametrize(("collective", "algorithm"), COSTS)
def test_the_pages_steps_are_the_formulas(collective: str, algorithm: str) -> None:
    cell = COSTS[collective, algorithm][0]
    for n in WORLD_SIZES:
        assert value(cell, n, 0) == steps(collective, algorithm, n)


@pytest.mark.parametrize("widened", [False, True])
@pytest.mark.parametrize(("collective", "algorithm"), COSTS)
def test_the_pages_bytes_are_the_formulas(collective: str, algorithm: str, widened: bool) -> None:
    _, plain, wide, _ = COSTS[collective, algorithm]
    if collective == "barrier":
        assert plain.startswith("0 ")
        return
    cell = wide if widened and wide != "same" else plain
    for n in WORLD_SIZES:
        total_bytes = 64 * n
        stated = value(cell, n, total_bytes)
        paid = payload_bytes_per_rank(
            collective, algorithm, world_size=n, total_bytes=total_bytes, widened=widened
        )
        assert paid <= stated if cell.startswith("up to") else paid == stated


@pytest.mark.parametrize(("collective", "algorithm"), COSTS)
def test_the_page_says_which_fold_in_rank_order(collective: str, algorithm: str) -> None:
    in_order = COSTS[collective, algorithm][3]
    if collective in REDUCING:
        assert in_order == ("yes" if algorithm in DETERMINISTIC_ALGORITHMS else "no")
    else:
        assert in_order in ("nothing is reduced", "")


def test_the_rules_of_auto_have_the_defaults() -> None:
    rules = {
        name: rule
        for names, rule in table("collective | first rule that fits")
        for name in names.split(", ")
    }
    assert rules.keys() == ALGORITHMS.keys()
    t, kib = DEFAULT_THRESHOLDS, 1024
    assert (
        f"T ≤ {t.exchange_bytes // kib} KiB and (N−1)T ≤ {t.exchange_total_bytes // kib} KiB"
        in (rules["all_reduce"])
    )
    assert (
        f"N ≤ {t.direct_max_world} (16-bit floats: N ≤ {t.direct_max_world_widened})"
        in (rules["all_reduce"])
    )
    assert (
        f"`recursive_doubling` if T ≤ {t.recursive_doubling_bytes // kib} KiB"
        in (rules["all_reduce"])
    )
    assert (
        f"`halving_doubling` if T ≤ {t.halving_doubling_bytes // kib**2} MiB"
        in (rules["all_reduce"])
    )
    assert f"S = ⌊T / {t.chain_piece_bytes // kib} KiB⌋" in PAGE
    assert (
        f"N ≥ {t.tree_min_world} and the largest part is at most {t.tree_part_bytes // kib} KiB"
        in (rules["gather"])
    )
    assert f"N ≤ {t.pairwise_min_world - 1}, " in rules["all_to_all"]
    assert f"a row is at most {t.pairwise_row_bytes // kib} KiB" in rules["all_to_all"]
