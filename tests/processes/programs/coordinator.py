"""What a rank does after the rendezvous was lost, or was found again."""

from __future__ import annotations

from typing import Any

from tests.processes.programs.basics import connect, outcome
from tests.processes.programs.faults import reduce_until_error
from tests.processes.trainer import Stage


def reform(stage: Stage, timeout_s: float = 30.0) -> dict[str, Any]:
    """Ask for the next epoch: how that ended, with its seats."""
    comm = stage.comm

    def ask() -> dict[str, Any]:
        change = comm.reform(timeout_s=timeout_s)
        return {"epoch": change.epoch, "ranks": list(change.ranks)}

    return outcome(ask)


def group_status(stage: Stage) -> dict[str, Any]:
    """What the rendezvous says, wherever it is."""
    status: dict[str, Any] = stage.comm.status("group")
    return status


def newcomers(stage: Stage) -> list[int]:
    """Ranks that wait to be let in."""
    return list(stage.comm.newcomers())


def connect_and_reduce(stage: Stage) -> dict[str, Any]:
    """Sum until there is an error: what it says."""
    connect(stage)
    return reduce_until_error(stage)
