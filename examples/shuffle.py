"""A shuffle: every rank has records with keys, and afterwards all records of one key are together.

How many records go where differs between all pairs of ranks, so the ranks first tell each other
the numbers by an all_to_all with equal parts, and then move the records by one with uneven splits.
What needs no speed, like the most frequent key of each rank, is simply gathered as an object.

Run it with: ringd run -n 4 -- python examples/shuffle.py
"""

from collections import Counter

import numpy as np

import ringd_client

RECORDS, KEYS = 10_000, 100


def exchange(comm: ringd_client.Communicator, records: np.ndarray) -> np.ndarray:
    """Give each record (a row: key, value) to the rank that its key belongs to."""
    owners = records[:, 0] % comm.world_size
    records = records[np.argsort(owners, kind="stable")]
    sent = np.bincount(owners, minlength=comm.world_size)
    got = comm.all_to_all(np.empty_like(sent), sent)  # one number from each rank
    mine = np.empty((got.sum(), 2), records.dtype)
    return comm.all_to_all(mine, records, input_splits=sent, output_splits=got)


with ringd_client.connect() as comm:
    chance = np.random.default_rng(comm.rank)
    records = chance.integers((KEYS, 1000), size=(RECORDS, 2))
    mine = exchange(comm, records)
    assert (mine[:, 0] % comm.world_size == comm.rank).all()

    total = comm.reduce(records.sum(axis=0), root=0)  # nothing may get lost
    there = comm.reduce(mine.sum(axis=0), root=0)
    counts = Counter(mine[:, 0].tolist())
    most = comm.gather_object(counts.most_common(1)[0], root=0)
    if comm.rank == 0:
        key, times = max(most, key=lambda pair: pair[1])
        print(f"all moved: {total.tolist() == there.tolist()}; key {key} is in {times} records")
