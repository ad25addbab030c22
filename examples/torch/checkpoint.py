"""torch's distributed checkpoint: each rank writes its shards, and reads what it needs.

Trains a model of FSDP2, writes a checkpoint half-way, and goes on. Then it makes a new model and
a new optimizer, reads the checkpoint, and takes the second half of the steps again: ``run`` 0
and 1 have the same losses there. The folder can also be read by another number of ranks.

Run it with: torchrun --nproc-per-node 2 examples/torch/checkpoint.py --folder /tmp/digits
"""

from itertools import islice

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import RATE, digest, digits, network, parser, say
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


class Training:
    """A model, its optimizer, and their batches."""

    def __init__(self) -> None:
        self.model = network()
        for layer in self.model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9)

    def train(self, run: int, first: int, last: int) -> None:
        batches = islice(digits(dist.get_rank(), dist.get_world_size()), first, last)
        for step, (x, y) in enumerate(batches, first):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            say(run=run, step=step, loss=loss.item())

    def save(self, folder: str) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)

    def load(self, folder: str) -> None:
        """Read in place: the state dicts say which shards this rank has."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        set_state_dict(
            self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer
        )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--folder", required=True, help="for the checkpoint")
    arguments = options.parse_args()
    dist.init_process_group(arguments.backend)

    half, steps = arguments.steps // 2, arguments.steps
    for run in (0, 1):
        training = Training()
        if run == 0:
            training.train(run, 0, half)
            training.save(arguments.folder)
        else:
            training.load(arguments.folder)
        training.train(run, half, steps)
        parameters = [p.full_tensor() for p in training.model.parameters()]
        say(run=run, parameters=digest(parameters))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
