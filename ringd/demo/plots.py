"""``--plot``: the timing and the bytes, drawn with matplotlib, without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]

WIDTH = 0.8
"""Of a group of bars that stand together."""


def draw(folder: Path, *, timing: Sequence[Row], traffic: Sequence[Row]) -> list[Path]:
    """Draw timing.png and bytes.png.

    Returns:
        What was written.

    Raises:
        OSError: it can't be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    paths = [folder / "timing.png", folder / "bytes.png"]
    _save(paths[0], _draw_timing, timing)
    _save(paths[1], _draw_bytes, traffic)
    return paths


def _save(path: Path, plot: Any, rows: Sequence[Row]) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    try:
        plot(axes, rows)
        figure.savefig(path, dpi=120)
    finally:
        plt.close(figure)


def _draw_timing(axes: Axes, rows: Sequence[Row]) -> None:
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        own = [row for row in rows if row["algorithm"] == algorithm]
        axes.plot(*_points(own), marker="o", label=algorithm)
    taken = [row for row in rows if row["auto"]]
    axes.plot(*_points(taken), "ko", markersize=12, fillstyle="none", label="auto takes")
    sizes = sorted({row["bytes"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [_size(size) for size in sizes])
    axes.set_xlabel("tensor")
    axes.set_ylabel("µs, median of the slowest rank")
    axes.set_title(f"all_reduce float32, N = {rows[0]['world_size']}, loopback TCP")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()


def _draw_bytes(axes: Axes, rows: Sequence[Row]) -> None:
    """float32 all_reduce: what the busiest rank sent, in units of T, with the formula as a mark."""
    own = [r for r in rows if r["collective"] == "all_reduce" and r["dtype"] == "float32"]
    algorithms = list(dict.fromkeys(row["algorithm"] for row in own))
    worlds = sorted({row["world_size"] for row in own})
    for i, algorithm in enumerate(algorithms):
        offset = WIDTH * ((i + 0.5) / len(algorithms) - 0.5)
        places = [x + offset for x in range(len(worlds))]
        busiest = [_busiest(own, algorithm, n) for n in worlds]
        measured = [row["measured_bytes"] / row["total_bytes"] for row in busiest]
        formula = [row["busiest_bytes"] / row["total_bytes"] for row in busiest]
        axes.bar(places, measured, WIDTH / len(algorithms) * 0.9, label=algorithm)
        label = "formula" if i == 0 else None
        axes.plot(places, formula, "k_", markersize=18, markeredgewidth=2, label=label)
    axes.set_xticks(range(len(worlds)), [f"N = {n}" for n in worlds])
    axes.set_ylabel("payload sent by the busiest rank / T")
    axes.set_title(f"all_reduce float32, T = {own[0]['total_bytes']:,} bytes, measured")
    axes.grid(True, axis="y", alpha=0.3)
    axes.legend()


def _points(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row["bytes"] for row in rows], [row["median_us"] for row in rows]


def _busiest(rows: Sequence[Row], algorithm: str, n: int) -> Row:
    own = [row for row in rows if row["algorithm"] == algorithm and row["world_size"] == n]
    return max(own, key=lambda row: int(row["measured_bytes"]))


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"
