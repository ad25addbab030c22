"""The other collectives, with numpy arrays. Nothing here imports torch, so it starts at once.

Run it with: ringd run -n 4 -- python examples/hello_numpy.py
"""

import numpy as np

import ringd_client

with ringd_client.connect() as comm:
    n, rank = comm.world_size, comm.rank

    config = np.array([7, 42] if rank == 0 else [0, 0])
    comm.broadcast(config, root=0)

    everybody = np.empty((n, 1), np.int64)
    comm.all_gather(everybody, np.array([rank * 10]))

    part = np.empty(2, np.float32)
    comm.reduce_scatter(part, np.arange(2 * n, dtype=np.float32))  # 2 elements for each rank

    total = comm.all_reduce(np.array([1.5]))  # in place, and returned

    comm.barrier()
    print(
        f"rank {rank} of {n}: broadcast {config.tolist()}, all_gather {everybody[:, 0].tolist()}, "
        f"reduce_scatter {part.tolist()}, all_reduce {total.tolist()}"
    )
