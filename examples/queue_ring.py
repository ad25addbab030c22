"""The twin of data_parallel.py in one file, without ringd: a ring of multiprocessing queues.

The same network, the same batches, the same start. Losses agree with those of data_parallel.py to
a relative 1e-5: both add float32 gradients, in different orders with more than two ranks, and
what is rounded differently in one step enters all later ones. With two ranks they are equal.

There is no overlap here, and no deadline: when a rank dies, the others wait for ever.

Run it with: python examples/queue_ring.py -n 4
"""

import argparse
import multiprocessing

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

BATCH = 32
RATE = 0.2
PRINT_EVERY = 10

context = multiprocessing.get_context("fork")  # the ranks inherit the imports


class QueueRing:
    """One rank's place in a ring of queues; edge r leads from rank r to rank r+1."""

    def __init__(self, rank: int, edges: list) -> None:
        self.rank, self.world_size = rank, len(edges)
        self.right, self.left = edges[rank], edges[rank - 1]

    def swap(self, outgoing: np.ndarray) -> np.ndarray:
        """Send to the right, receive from the left. A copy, since the queue reads it later."""
        self.right.put(outgoing.copy())
        return self.left.get()

    def average(self, tensor: torch.Tensor) -> None:
        """All_reduce in two passes, in place, then one division."""
        n, r = self.world_size, self.rank
        chunks = np.array_split(tensor.numpy().reshape(-1), n)  # views of the tensor
        for s in range(n - 1):
            chunks[(r - s - 1) % n] += self.swap(chunks[(r - s) % n])
        for s in range(n - 1):
            chunks[(r - s) % n][:] = self.swap(chunks[(r + 1 - s) % n])
        tensor /= n

    def broadcast(self, tensor: torch.Tensor) -> None:
        """From rank 0 round the ring; the last rank does not pass it on."""
        flat = tensor.numpy().reshape(-1)
        if self.rank > 0:
            flat[:] = self.left.get()
        if self.rank < self.world_size - 1:
            self.right.put(flat.copy())


def load(rank: int, world_size: int) -> tuple[torch.Tensor, ...]:
    """This rank's share of the training digits, and all test digits."""
    x, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = (x[order] / 16).float(), y[order]
    share = slice(360 + rank, None, world_size)
    return x[share], y[share], x[:360], y[:360]


def batches(x: torch.Tensor, epoch: int, rank: int, steps: int) -> list[torch.Tensor]:
    """Indices of the batches of an epoch; every rank makes the same number of steps."""
    chance = torch.Generator().manual_seed(1000 * epoch + rank)
    order = torch.randperm(len(x), generator=chance)
    return list(order.split(BATCH)[:steps])


def train(ring: QueueRing, epochs: int) -> None:
    torch.set_num_threads(1)
    x, y, test_x, test_y = load(ring.rank, ring.world_size)
    steps_per_epoch = (1797 - 360) // ring.world_size // BATCH

    torch.manual_seed(ring.rank)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model.append(nn.Linear(64, 10))
    for parameter in model.parameters():
        ring.broadcast(parameter.data)

    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    step = 0
    for epoch in range(epochs):
        for batch in batches(x, epoch, ring.rank, steps_per_epoch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            for parameter in model.parameters():
                ring.average(parameter.grad)
            optimizer.step()
            if step % PRINT_EVERY == 0:
                mean = loss.detach()
                ring.average(mean)
                if ring.rank == 0:
                    print(f"step {step:>4}  loss {mean.item():.7f}", flush=True)
            step += 1

    with torch.no_grad():
        right = (model(test_x).argmax(1) == test_y).float().mean().item()
    if ring.rank == 0:
        print(f"accuracy {right:.4f} after {step} steps", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    edges = [context.Queue() for _ in range(arguments.ranks)]
    ranks = [
        context.Process(target=lambda r: train(QueueRing(r, edges), arguments.epochs), args=(r,))
        for r in range(arguments.ranks)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    raise SystemExit(max(process.exitcode != 0 for process in ranks))
