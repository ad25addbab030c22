"""Several operations at once, from a program that runs on asyncio.

Run it with: ringd run -n 4 -- python examples/hello_asyncio.py
"""

import asyncio

import numpy as np

import ringd_client


async def main() -> None:
    async with await ringd_client.connect_async() as comm:
        # An operation begins when it is called, not when it is awaited. So these three are on
        # their way at once, and their order is that of the calls, which is the same on all ranks.
        tensors = [np.full(100_000, i + comm.rank, np.float32) for i in range(3)]
        handles = [comm.all_reduce(tensor) for tensor in tensors]
        await asyncio.sleep(0)  # the loop is free for other work meanwhile
        for i in (2, 0, 1):  # in any order
            total = await handles[i]
            print(f"rank {comm.rank} of {comm.world_size}: operation {i} gives {total[0]:g}")


asyncio.run(main())
