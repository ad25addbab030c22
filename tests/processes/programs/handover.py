"""Calls that are cut short at one rank, when its daemon has their answers."""

from __future__ import annotations

import time
from typing import Any

import ringd_client
from ringd_client import Communicator, Reform
from tests.processes.trainer import Stage

UNLUCKY = 1


class Interrupted(Exception):
    """What a signal handler raises."""


def commit_one_step(stage: Stage) -> dict[str, Any]:
    """The unlucky rank's agree and reform are interrupted; how many steps each has in the end."""
    with ringd_client.connect() as comm:
        committed = 0
        unlucky = comm.rank == UNLUCKY
        if unlucky:
            answer = comm.agree_async(True)  # whose wait is interrupted
            while not answer.done():
                time.sleep(0.001)
        elif comm.agree(True):
            committed += 1
        change = _interrupted_reform(comm) if unlucky else comm.reform(timeout_s=30)
        told = comm.all_gather_object(committed + bool(change.agreed))
        return {"steps": told, "epoch": change.epoch, "agreed": change.agreed}


def _interrupted_reform(comm: Communicator) -> Reform:
    perform = comm._connection.perform

    def interrupted(operation: Any) -> None:
        perform(operation)
        raise Interrupted

    comm._connection.perform = interrupted  # type: ignore[method-assign]
    try:
        comm.reform(timeout_s=30)
    except Interrupted:
        comm._connection.perform = perform  # type: ignore[method-assign]
        return comm.reform(timeout_s=30)
    raise AssertionError("it was not interrupted")
