"""What the programs of this folder share: arguments, data, a small network, what they print.

They print JSON lines: ``{"rank": 0, "step": 3, "loss": 2.0312}`` for each step of each rank, and
``{"rank": 0, "parameters": "9f2c..."}`` at the end, a digest of the parameters' bytes. So two
runs, with two backends, can be compared step by step.
"""

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

BATCH = 32
RATE = 0.2


def parser(text: str, **choices: tuple[str, ...]) -> argparse.ArgumentParser:
    """Arguments ``--backend`` and ``--steps``, and one for each of ``choices``.

    Args:
        text: the docstring of the program.
        choices: name of an argument, and its values; the first one is the default.
    """
    made = argparse.ArgumentParser(description=text.splitlines()[0])
    made.add_argument("--backend", choices=("ringd", "gloo"), default="ringd")
    made.add_argument("--steps", type=int, default=20)
    for name, values in choices.items():
        made.add_argument(f"--{name}", choices=values, default=values[0])
    return made


def network() -> nn.Sequential:
    """Three layers for the digits; the same weights in every process."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def digits(share: int, shares: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of digits, without end: every ``shares``-th digit, from number ``share`` on.

    Yields:
        Images, float32 of shape (BATCH, 64), and labels, int64 of shape (BATCH,).
    """
    x, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    x, y = (x[share::shares] / 16).float(), y[share::shares]
    chance = torch.Generator().manual_seed(share)
    while True:
        order = torch.randperm(len(x), generator=chance)
        for batch in order.split(BATCH)[: len(x) // BATCH]:
            yield x[batch], y[batch]


def say(**fields: object) -> None:
    """Print a JSON line, in one write: the ranks share their standard output."""
    print(json.dumps({"rank": dist.get_rank(), **fields}) + "\n", end="", flush=True)


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Equal for tensors that are equal bit for bit."""
    found = hashlib.sha256()
    for tensor in tensors:
        # A copy: FSDP1 frees the storage, which could no longer be resized after .numpy().
        found.update(tensor.detach().clone().numpy().tobytes())
    return found.hexdigest()[:16]
