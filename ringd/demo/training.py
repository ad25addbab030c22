"""Part 4: a network learns to read digits, with gradients averaged by ringd, and by gloo."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ringd.demo.job import Job

Row = dict[str, Any]

EPOCHS = 20
BATCH = 32
RATE = 0.3
TEST_PART = 0.2
STEPS = 3
"""How often :func:`run` calls ``step``."""
ACCURACY_FLOOR = 0.9
TOLERANCE = 1e-5
"""Bound on a step's relative difference of losses: ringd and gloo add float32 gradients in
different orders, and what is rounded differently in one step enters the next."""


def save_digits(path: Path) -> None:
    """Scikit-learn's 1,797 scans of handwritten digits, shuffled and cut in two, as one file."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int64)
    cut = int(len(x) * TEST_PART)
    np.savez(path, test_x=x[:cut], test_y=y[:cut], train_x=x[cut:], train_y=y[cut:])


def run(job: Job, step: Callable[[str], None]) -> Row:
    """Train twice from the same start, on the same batches.

    Raises:
        RingdError: a rank ended.
    """
    step("training: load digits")
    data = job.folder / "digits.npz"
    save_digits(data)
    answers = {}
    for backend in ("ringd", "gloo"):
        step(f"training with {backend}")
        order = {"backend": backend, "epochs": EPOCHS, "batch": BATCH, "rate": RATE}
        answers[backend] = job.order("training", data=str(data), **order)
    return judge(answers["ringd"], answers["gloo"])


def judge(ringd: Sequence[Row], gloo: Sequence[Row]) -> Row:
    """What both runs say, by rank."""
    off = relative_difference(ringd[0]["losses"], gloo[0]["losses"])
    losses_agree = all(answer["losses"] == ringd[0]["losses"] for answer in ringd)
    bit_equal = len({answer["digest"] for answer in ringd}) == 1
    accuracy = ringd[0]["accuracy"]
    right = off <= TOLERANCE and losses_agree and bit_equal and accuracy > ACCURACY_FLOOR
    return {
        "data": "scikit-learn load_digits",
        "world_size": len(ringd),
        "parameters": ringd[0]["parameters"],
        "epochs": EPOCHS,
        "steps": len(ringd[0]["losses"]),
        "batch_per_rank": BATCH,
        "losses": ringd[0]["losses"],
        "losses_gloo": gloo[0]["losses"],
        "max_relative_difference": off,
        "tolerance": TOLERANCE,
        "bit_equal": bit_equal,
        "accuracy": accuracy,
        "accuracy_gloo": gloo[0]["accuracy"],
        "seconds": round(max(answer["seconds"] for answer in ringd), 3),
        "seconds_gloo": round(max(answer["seconds"] for answer in gloo), 3),
        "ok": right,
    }


def relative_difference(losses: Sequence[float], others: Sequence[float]) -> float:
    """The largest difference of a step's losses, relative to the loss; inf if one is no number.

    Raises:
        ValueError: different numbers of steps.
    """
    pairs = zip(losses, others, strict=True)
    off = [abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in pairs]
    return max(off) if all(map(math.isfinite, off)) else math.inf
