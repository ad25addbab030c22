"""Part 5: a rank is killed in mid-operation; what the others see, and how soon."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ringd.demo.job import Job
from ringd.errors import RingdError
from ringd.observe.status_view import ask

Row = dict[str, Any]

VICTIM = 2
COUNT = 4 << 20
"""16 MiB of float32: an operation that takes long enough to be hit."""
FIRST_SEQ = 3
CALL_LIMIT_S = 20.0
SIGHT_LIMIT_S = 20.0
STEPS = 2
"""How often :func:`run` calls ``step``."""
BOUND_S = 1.0


def run(job: Job, step: Callable[[str], None]) -> Row:
    """Kill the trainer of rank 2 while bytes of an all_reduce move; ask the survivors.

    Raises:
        RingdError: a survivor ended, or no operation was seen on its way.
    """
    step("fault: watch an operation")
    job.tell({"do": "fault", "count": COUNT, "timeout_s": CALL_LIMIT_S})
    seen = catch(job.sockets[VICTIM])
    killed_ns = time.monotonic_ns()
    os.kill(job.pids[VICTIM], signal.SIGKILL)
    step(f"fault: rank {VICTIM} is killed")
    answers = {rank: job.hear(rank) for rank in range(job.n) if rank != VICTIM}
    return judge(seen, killed_ns, answers)


def catch(socket_path: Path) -> Row:
    """Watch a daemon until an operation from the fourth on is on its way; its state then.

    Some bytes have come in, and less than half of them: so it lasts until the kill.

    Raises:
        RingdError: none was seen within 20 s, or they failed with nobody killed.
    """
    deadline = time.monotonic() + SIGHT_LIMIT_S
    while time.monotonic() < deadline:
        state = ask(socket_path, "daemon")
        if state["broken"] is not None:
            raise RingdError(f"the operations failed with nobody killed: {state['broken']}")
        for op in state["operations"]:
            if op["seq"] >= FIRST_SEQ and 0 < op["bytes_done"] < op["bytes_total"] / 2:
                found: Row = op
                return found
    raise RingdError(f"no operation was seen on its way within {SIGHT_LIMIT_S:g} s")


def judge(seen: Row, killed_ns: int, answers: dict[int, Row]) -> Row:
    """All survivors must name the rank, in time, with their tensors as they were."""
    survivors = [_survivor(rank, killed_ns, answer) for rank, answer in answers.items()]
    return {
        "world_size": len(answers) + 1,
        "killed_rank": VICTIM,
        "signal": "SIGKILL",
        "seq": seen["seq"],
        "algorithm": seen["algorithm"],
        "bytes_done": seen["bytes_done"],
        "bytes_total": seen["bytes_total"],
        "bound_s": BOUND_S,
        "survivors": survivors,
        "slowest_s": _slowest(survivors),
        "ok": all(survivor["ok"] for survivor in survivors),
    }


def _survivor(rank: int, killed_ns: int, answer: Row) -> Row:
    seconds = (answer["raised_ns"] - killed_ns) / 1e9
    names_it = answer["error"] == "PeerLostError" and answer["fields"]["rank"] == VICTIM
    in_text = f"rank {VICTIM}" in answer["text"]
    return {
        "rank": rank,
        "error": answer["error"],
        "text": answer["text"],
        "seconds": round(seconds, 4),
        "seq": answer["fields"]["seq"],
        "bytes_done": answer["fields"]["bytes_done"],
        "bytes_total": answer["fields"]["bytes_total"],
        "untouched": answer["untouched"],
        "ok": names_it and in_text and 0 <= seconds <= BOUND_S and answer["untouched"],
    }


def _slowest(survivors: Sequence[Row]) -> float:
    return max(float(survivor["seconds"]) for survivor in survivors)
