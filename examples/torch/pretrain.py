"""A whole job: data parallel times pipeline parallel, checkpoints, and a restart.

Four ranks are a mesh: two pipelines of two stages. A stage's ranks in both pipelines average
their gradients; activations and their gradients move along each pipeline. The network predicts the
next character of a short text. Every ``--save-every`` steps each stage is written to the folder,
and a run that finds a checkpoint there goes on from it.

``--lose-rank R --lose-step S`` kills a rank before a step, once. The others get an error
that names it, and end; torchrun starts all anew, and they go on from the last checkpoint. The
losses are those of a run that nobody disturbed, bit for bit.

Run it with: torchrun --nproc-per-node 4 --max-restarts 1 examples/torch/pretrain.py --folder job
"""

import argparse
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from common import digest, parser, say
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

TEXT = Path(__file__).parent / "data" / "lighthouse.txt"
CONTEXT, WIDTH, BATCH, MICRO_BATCHES = 16, 32, 32, 4


def characters(share: int, shares: int, first: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches of contexts and of the characters that follow them; the same for each step.

    Yields:
        int64 of shape (BATCH, CONTEXT), and of shape (BATCH,).
    """
    text = TEXT.read_text()
    known = sorted(set(text))
    codes = torch.tensor([known.index(character) for character in text])
    windows = codes.unfold(0, CONTEXT + 1, 1)
    step = first
    while True:
        chance = torch.Generator().manual_seed(step * shares + share)
        rows = windows[torch.randint(len(windows), (BATCH,), generator=chance)]
        yield rows[:, :-1], rows[:, -1]
        step += 1


def stage_of(number: int) -> nn.Module:
    """A stage's layers; the same weights in every process."""
    torch.manual_seed(number)
    if number == 0:
        embedding = nn.Embedding(len(set(TEXT.read_text())), WIDTH)
        return nn.Sequential(embedding, nn.Flatten(), nn.Linear(CONTEXT * WIDTH, 128), nn.GELU())
    head = nn.Linear(128, len(set(TEXT.read_text())))
    return nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128), head)


class Job:
    """This rank's stage, and its place in the mesh."""

    def __init__(self, folder: Path) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipe"))
        self.replicas = mesh["data"].get_group()
        self.replica, self.stage = mesh.get_local_rank("data"), mesh.get_local_rank("pipe")
        self.folder = folder
        self.model = stage_of(self.stage)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.003)
        stage = PipelineStage(
            self.model, self.stage, 2, torch.device("cpu"), group=mesh["pipe"].get_group()
        )
        self.schedule = Schedule1F1B(stage, MICRO_BATCHES, nn.functional.cross_entropy)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float | None:
        """One step of both pipelines; the loss, on the last stage."""
        losses: list[torch.Tensor] = []
        self.optimizer.zero_grad()
        if self.stage == 0:
            self.schedule.step(x)
        else:
            self.schedule.step(target=y, losses=losses)
        works = [
            dist.all_reduce(p.grad, group=self.replicas, async_op=True)
            for p in self.model.parameters()
        ]
        for parameter, work in zip(self.model.parameters(), works, strict=True):
            work.wait()
            parameter.grad /= dist.get_world_size(self.replicas)
        self.optimizer.step()
        return torch.stack(losses).mean().item() if losses else None

    def save(self, step: int) -> None:
        """Write this stage; ``last`` names the checkpoint only when all stages have it."""
        if self.replica == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, self.folder / f"step-{step}-stage-{self.stage}.pt")
        dist.barrier()
        if dist.get_rank() == 0:
            (self.folder / "new").write_text(str(step))
            (self.folder / "new").replace(self.folder / "last")

    def load(self) -> int:
        """Read the last checkpoint, if there is one; the number of steps that it has behind it."""
        found = [(self.folder / "last").exists()]
        dist.broadcast_object_list(found, src=0)  # so that all do the same
        if not found[0]:
            return 0
        step = int((self.folder / "last").read_text())
        state = torch.load(self.folder / f"step-{step}-stage-{self.stage}.pt")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return step


def lose_this_rank(folder: Path) -> None:
    """Once: the next run finds the mark."""
    mark = folder / "lost"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: argparse.Namespace) -> None:
    arguments.folder.mkdir(exist_ok=True)
    dist.init_process_group(arguments.backend)
    job = Job(arguments.folder)
    first = job.load()
    batches = characters(job.replica, 2, first)
    for step, (x, y) in zip(range(first, arguments.steps), batches, strict=False):
        if (dist.get_rank(), step) == (arguments.lose_rank, arguments.lose_step):
            lose_this_rank(arguments.folder)
        loss = job.step(x, y)
        if loss is not None:
            say(step=step, loss=loss)
        if (step + 1) % arguments.save_every == 0:
            job.save(step + 1)
    say(stage=job.stage, parameters=digest(job.model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--folder", type=Path, required=True, help="for checkpoints")
    options.add_argument("--save-every", type=int, default=5)
    options.add_argument("--lose-rank", type=int)
    options.add_argument("--lose-step", type=int)
    main(options.parse_args())
