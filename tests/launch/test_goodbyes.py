"""How a program ends, and what its peers are told of it: with real processes, by ``ringd run``."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.processes.job import start_job

ENDS_WITHIN_S = 60.0
PROGRAM = """
    import json, os, signal, sys, threading, time
    import numpy
    import ringd_client

    def last_words():
    {last_words}

    comm = ringd_client.connect()
    if comm.rank == 1:
        comm.barrier()
        last_words()
    else:
        comm.barrier()
        try:
            comm.all_reduce(numpy.ones(10, "float32"), timeout_s=20)
        except ringd_client.RingdError as error:
            fields = {{**error.fields, "code": error.code, "text": str(error)}}
            print(json.dumps(fields, default=str), flush=True)
"""


def raised(type: str, message: str, line: int | None = 7) -> dict[str, Any]:
    found: dict[str, Any] = {"code": "peer_lost", "rank": 1, "case": "trainer raised"}
    found |= {"exception_type": type, "exception_message": message}
    return found if line is None else {**found, "line": line}


LEFT = {"code": "peer_lost", "rank": 1, "case": "it left the job"}
DIED = {"code": "peer_lost", "rank": 1, "case": "trainer died"}


@pytest.mark.parametrize(
    ("last_words", "told"),
    [
        ("raise ValueError('bad data')", raised("ValueError", "bad data")),
        ("sys.exit(3)", raised("SystemExit", "3")),
        ("exit('no data')", raised("SystemExit", "no data")),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
         raised("KeyboardInterrupt", "", None)),
        # Nobody sees a SystemExit that is raised by hand, outside of a with block.
        ("raise SystemExit(3)", LEFT),
        ("sys.exit(0)", LEFT),
        # These end a thread, and the program goes on to its end.
        ("threading.Thread(target=lambda: 1 / 0).start()", LEFT),
        ("threading.Thread(target=sys.exit, args=(3,)).start()", LEFT),
        ("os._exit(3)", DIED),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", DIED),
    ],
)  # fmt: skip
def test_the_peers_are_told_how_a_program_ended(
    folder: Path, owner: str, last_words: str, told: dict[str, Any]
) -> None:
    file = folder / "train.py"
    file.write_text(textwrap.dedent(PROGRAM).format(last_words="    " + last_words))
    job = start_job(2, [sys.executable, str(file)], folder / "job", owner)
    job.wait(ENDS_WITHIN_S)
    assert job.of_rank(0), job.err
    fields = json.loads(job.of_rank(0)[-1])
    assert {name: fields.get(name) for name in told} == told
    if told["case"] == "trainer raised":
        assert told["exception_type"] in fields["text"]
        assert "(train.py:" in fields["text"]
        assert fields["file"] == str(file)
