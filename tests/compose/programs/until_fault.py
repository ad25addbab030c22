"""All_reduces without end, each checked, until one fails; prints how, as a line of JSON."""

import json
import os
import sys
import time

import numpy as np

import ringd_client
from ringd_client import CollectiveError

COUNT = int(os.environ.get("COUNT", 1 << 20))
TIMEOUT_S = float(os.environ.get("CALL_TIMEOUT_S", 60))
LATE_RANK = int(os.environ.get("LATE_RANK", -1))
"""This rank makes one call, and then sleeps."""


def main() -> None:
    comm = ringd_client.connect(timeout_s=90)
    n = comm.world_size
    position = np.arange(COUNT, dtype=np.float32) % 1000
    expected = n * (n + 1) / 2 * position
    step = 0
    while True:
        data = (comm.rank + 1) * position
        began = time.monotonic()
        try:
            comm.all_reduce(data, timeout_s=TIMEOUT_S)
        except CollectiveError as error:
            told = {
                "rank": comm.rank,
                "code": error.code,
                "fields": error.fields,
                "text": str(error),
                "elapsed_s": time.monotonic() - began,
            }
            print("VERDICT", json.dumps(told, default=str), flush=True)
            return
        if not np.array_equal(data, expected):
            sys.exit(f"rank {comm.rank}, step {step}: a wrong sum")
        if step == 2:
            print("IN FULL SWING", flush=True)
        step += 1
        if comm.rank == LATE_RANK and step == 3:
            wait_for_ever()


def wait_for_ever() -> None:
    while True:
        time.sleep(1)


main()
