"""Elastic training: a rank may be killed at any moment, and a fresh one may join later.

The training goes on with those who are left, and no step is lost or counted twice. Four calls do
it, see ``train``:

- ``agree``: a step counts when all ranks have agreed that they have its gradients;
- ``reform``: after an error, those who live go on as a group, with those who wait to be let in;
  it says how the agreement ended in which this rank was interrupted;
- ``newcomers``: who waits;
- ``sync_state``: a newcomer gets the model, the optimizer and the number of the step.

A step's batch is the same whatever the size of the group; each rank takes a share of it. So the
losses are those of a run without failures, but for the order in which gradients are added.

Run it with: ringd run -n 3 -- python examples/elastic_digits.py

With ``--max-restarts 3`` the launcher starts ranks that failed anew; elastic_drill.py kills one.
"""

import argparse
import zlib

import torch
from sklearn.datasets import load_digits
from torch import nn

import ringd_client
from ringd_client import CollectiveTimeoutError, MembershipChangedError, PeerLostError

BATCH = 96
PRINT_EVERY = 10


def train(comm: ringd_client.Communicator, work: "Work", steps: int) -> None:
    """The loop that survives."""
    reduced, in_step = None, False
    while True:
        try:
            if not in_step:  # the group is new: does everybody have the state?
                if not comm.agree(work.is_current):
                    work.load(comm.sync_state(work.state()))
                in_step = True
            if work.step == steps:
                comm.barrier()  # nobody leaves before all have committed the last step
                return
            reduced = work.gradients(comm)
            if comm.agree(True):
                work.commit(reduced, comm)
            reduced = None
            if not comm.agree(bool(comm.newcomers())):
                continue
            reason = "newcomers"
        except (PeerLostError, MembershipChangedError, CollectiveTimeoutError) as error:
            reason = error.code
        change = comm.reform()
        print(f"{reason}; epoch {change.epoch} has ranks {change.ranks}", flush=True)
        if comm.ranks[comm.rank] in change.joined:  # an epoch went by without this rank
            work.is_current = False
        if reduced is not None and change.agreed:  # the others have committed this step
            work.commit(reduced, comm)
        reduced, in_step = None, False


class Work:
    """A model, its optimizer, and how far they are."""

    def __init__(self, comm: ringd_client.Communicator, print_every: int = PRINT_EVERY) -> None:
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.003)
        self.parameters = list(self.model.parameters())
        self.step = 0
        self.is_current = False
        self.print_every = print_every
        self.flat = comm.empty(sum(p.numel() for p in self.parameters) + 1)
        x, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        self.x, self.y = (x[order] / 16).float(), y[order]

    def state(self) -> dict:
        """What a newcomer needs."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }

    def load(self, state: dict) -> None:
        """Be where rank 0 is."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self.is_current = True

    def gradients(self, comm: ringd_client.Communicator) -> torch.Tensor:
        """The mean gradients of this step's batch, and its loss: the sum of all ranks' shares."""
        chance = torch.Generator().manual_seed(self.step)
        batch = 360 + torch.randperm(len(self.x) - 360, generator=chance)[:BATCH]
        share = batch[comm.rank :: comm.world_size]
        self.optimizer.zero_grad()
        outputs = self.model(self.x[share])
        loss = nn.functional.cross_entropy(outputs, self.y[share], reduction="sum")
        loss.backward()
        parts = [p.grad.flatten() for p in self.parameters]
        torch.cat([*parts, loss.detach().view(1)], out=self.flat)
        self.flat /= BATCH
        return comm.all_reduce(self.flat)

    def commit(self, reduced: torch.Tensor, comm: ringd_client.Communicator) -> None:
        """Take the step: all ranks do, or none."""
        sizes = [p.numel() for p in self.parameters]
        *parts, loss = reduced.split([*sizes, 1])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad.copy_(part.view_as(parameter))
        self.optimizer.step()
        if self.step % self.print_every == 0:
            weights = zlib.crc32(torch.cat([p.detach().flatten() for p in self.parameters]).numpy())
            ranks = " ".join(map(str, comm.ranks))
            print(f"step {self.step} loss {loss.item():.5f} weights {weights:08x} ranks {ranks}")
        self.step += 1

    def accuracy(self) -> float:
        """Of the digits that are in no batch."""
        with torch.no_grad():
            return (self.model(self.x[:360]).argmax(1) == self.y[:360]).float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    with ringd_client.connect() as communicator:
        task = Work(communicator)
        train(communicator, task, arguments.steps)
        print(f"accuracy {task.accuracy():.4f} after {task.step} steps")
