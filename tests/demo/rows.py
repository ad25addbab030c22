"""A small report whose rows all hold, for tests of what is shown."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def verify_row(**changes: Any) -> Row:
    row = {
        "collective": "all_reduce",
        "dtype": "float32",
        "reduce_op": "sum",
        "algorithm": "ring",
        "count": 1003,
        "root": -1,
        "form": "",
        "world_size": 4,
        "reference": "gloo",
        "max_error": 1e-7,
        "tolerance": 3e-7,
        "bit_equal": True,
        "repeat_equal": True,
        "failure": None,
        "ok": True,
    }
    return row | changes


def bytes_row(**changes: Any) -> Row:
    row = {
        "collective": "all_reduce",
        "algorithm": "ring",
        "dtype": "float32",
        "world_size": 2,
        "total_bytes": 48,
        "formula": "2T(N−1)/N",
        "busiest_bytes": 48.0,
        "rank": 0,
        "formula_bytes": 48,
        "measured_bytes": 48,
        "received_bytes": 48,
        "overhead_bytes": 90,
        "ok": True,
    }
    return row | changes


def timing_row(**changes: Any) -> Row:
    row = {
        "op": "all_reduce",
        "dtype": "float32",
        "world_size": 4,
        "bytes": 1024,
        "algorithm": "ring",
        "auto": False,
        "samples": 3,
        "min_us": 900.0,
        "median_us": 1000.0,
        "busbw": 0.001,
        "ok": True,
    }
    return row | changes


def training_row(**changes: Any) -> Row:
    row = {
        "data": "scikit-learn load_digits",
        "world_size": 4,
        "parameters": 4810,
        "epochs": 1,
        "steps": 2,
        "batch_per_rank": 32,
        "losses": [2.0, 1.0],
        "losses_gloo": [2.0, 1.000001],
        "max_relative_difference": 1e-6,
        "tolerance": 1e-5,
        "bit_equal": True,
        "accuracy": 0.957,
        "accuracy_gloo": 0.957,
        "seconds": 1.0,
        "seconds_gloo": 2.0,
        "ok": True,
    }
    return row | changes


def survivor_row(**changes: Any) -> Row:
    row = {
        "rank": 0,
        "error": "PeerLostError",
        "text": "rank 2 is lost: trainer died [process 7]",
        "seconds": 0.0213,
        "seq": 3,
        "bytes_done": 1,
        "bytes_total": 9,
        "untouched": True,
        "ok": True,
    }
    return row | changes


def fault_row(**changes: Any) -> Row:
    row = {
        "world_size": 4,
        "killed_rank": 2,
        "signal": "SIGKILL",
        "seq": 3,
        "algorithm": "direct",
        "bytes_done": 1,
        "bytes_total": 9,
        "bound_s": 1.0,
        "survivors": [survivor_row(), survivor_row(rank=1), survivor_row(rank=3)],
        "slowest_s": 0.0213,
        "ok": True,
    }
    return row | changes


def report(**changes: Any) -> Row:
    found = {
        "schema": 1,
        "verify": [verify_row()],
        "bytes": [bytes_row(), bytes_row(rank=1)],
        "timing": [timing_row(auto=True), timing_row(algorithm="tree", median_us=800.0)],
        "training": training_row(),
        "fault": fault_row(),
    }
    return found | changes
