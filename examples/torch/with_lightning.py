"""Lightning: the backend is one argument of its strategy.

Needs the package ``lightning``.

Run it with: torchrun --nproc-per-node 2 examples/torch/with_lightning.py
"""

import os
from collections.abc import Iterator

import lightning
import torch
import torch.distributed as dist
from common import RATE, digest, digits, network, parser, say
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Digits(IterableDataset):
    """This rank's batches."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return digits(dist.get_rank(), dist.get_world_size())


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: tuple[torch.Tensor, ...], number: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.network(x), y)
        say(step=number, loss=loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE, momentum=0.9)


def main() -> None:
    arguments = parser(__doc__).parse_args()
    model = Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),  # noqa: TID251  as torchrun says it
        strategy=DDPStrategy(process_group_backend=arguments.backend),
        max_steps=arguments.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(Digits(), batch_size=None))
    say(parameters=digest(model.parameters()))


if __name__ == "__main__":
    main()
