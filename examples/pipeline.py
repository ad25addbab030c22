"""A pipeline of two stages: activations go one way, as messages, and results come back.

The ranks form pairs by ``split``, and each pair is a pipeline of its own: its first rank computes
the first layer of a small network, the second rank the other one. Micro-batches overlap:
while the second stage works on one, the first stage computes and sends the next. All of a
stage's receives are posted before anything is waited for, so nobody waits in turns.

Run it with: ringd run -n 4 -- python examples/pipeline.py
"""

import numpy as np

import ringd_client

MICRO_BATCHES, ROWS, WIDTH = 8, 16, 32


def weights(stage: int) -> np.ndarray:
    """A layer that every rank could make, and only one uses."""
    return np.random.default_rng(stage).standard_normal((WIDTH, WIDTH)).astype(np.float32)


def batch(pair: int, number: int) -> np.ndarray:
    return np.random.default_rng([pair, number]).standard_normal((ROWS, WIDTH)).astype(np.float32)


def first_stage(pipe: ringd_client.Communicator, pair: int) -> list[np.ndarray]:
    """Compute, send on, compute the next; results arrive meanwhile, whenever they are ready."""
    layer = weights(0)
    results = [np.empty((ROWS, WIDTH), np.float32) for _ in range(MICRO_BATCHES)]
    arriving = [pipe.irecv(result, source=1, tag=i) for i, result in enumerate(results)]
    leaving = [
        pipe.isend(np.maximum(batch(pair, i) @ layer, 0), dest=1, tag=i)
        for i in range(MICRO_BATCHES)
    ]
    for handle in leaving + arriving:
        handle.wait()
    return results


def second_stage(pipe: ringd_client.Communicator) -> None:
    """The tag says which micro-batch a message is of."""
    layer = weights(1)
    inputs = [np.empty((ROWS, WIDTH), np.float32) for _ in range(MICRO_BATCHES)]
    arriving = [pipe.irecv(data, source=0, tag=i) for i, data in enumerate(inputs)]
    leaving = []
    for i, handle in enumerate(arriving):
        handle.wait()
        leaving.append(pipe.isend(inputs[i] @ layer, dest=0, tag=i))
    for handle in leaving:
        handle.wait()


def main() -> None:
    with ringd_client.connect() as comm:
        pair, stage = divmod(comm.rank, 2)
        has_partner = comm.rank ^ 1 < comm.world_size
        pipe = comm.split(color=pair if has_partner else None)
        if pipe is None:
            return
        if stage == 1:
            second_stage(pipe)
            return
        results = first_stage(pipe, pair)
        for i, result in enumerate(results):
            alone = np.maximum(batch(pair, i) @ weights(0), 0) @ weights(1)
            assert np.allclose(result, alone, rtol=1e-4, atol=1e-4)
        print(f"ranks {pipe.ranks}: {len(results)} micro-batches came back, the sums are right")


main()
