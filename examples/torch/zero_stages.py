"""ZeRO's three stages, written out: what is cut up among the ranks, and what moves for it.

Adam keeps two numbers for each parameter; with gradients and the parameters themselves that makes
four. Each stage cuts more of them into one part for each rank:

- 1: the optimizer's state. Gradients are averaged whole; each rank updates its part of the
  parameters, and all_gather makes them whole again.
- 2: gradients too. A layer's gradients leave by reduce_scatter as soon as they are there, in the
  midst of the backward pass, and only this rank's part of the average stays.
- 3: parameters too. A layer is gathered right before it is used, forward and backward, and
  dropped after it.

All stages print the same losses; ``kept`` is how many numbers a rank has between two steps.

Run it with: torchrun --nproc-per-node 2 examples/torch/zero_stages.py --stage 3
"""

import torch
import torch.distributed as dist
from common import digest, digits, network, parser, say
from torch import nn


class Layer:
    """A layer whose parameters are views into one flat tensor, and this rank's part of that."""

    def __init__(self, module: nn.Module, stage: int) -> None:
        self.stage = stage
        self.parameters = list(module.parameters())
        rank, size = dist.get_rank(), dist.get_world_size()
        flat = torch.cat([p.detach().flatten() for p in self.parameters])
        self.whole = nn.functional.pad(flat, (0, -len(flat) % size))  # equal parts for all
        self.part = nn.Parameter(self.whole.chunk(size)[rank].clone())
        self.missing = len(self.parameters)
        sizes = [p.numel() for p in self.parameters]
        for parameter, view in zip(self.parameters, flat_views(self.whole, sizes), strict=True):
            parameter.data = view.view_as(parameter)
            parameter.register_post_accumulate_grad_hook(self.gradient_is_there)
        if stage == 3:
            module.register_forward_pre_hook(lambda *_: self.gather())
            module.register_forward_hook(self.forward_is_over)
            self.drop()

    def gather(self) -> None:
        """Make the parameters whole, from the parts of all ranks."""
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        parts = list(self.whole.chunk(dist.get_world_size()))
        dist.all_gather(parts, self.part.detach())

    def drop(self) -> None:
        """Free the memory of the whole; the views stay, for the next :meth:`gather`."""
        self.whole.untyped_storage().resize_(0)

    def forward_is_over(self, module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        """Drop the whole until the gradient of the output is there, where backward begins."""
        self.drop()
        output.register_hook(lambda _: self.gather())

    def gradient_is_there(self, _: torch.Tensor) -> None:
        """Called by autograd for each parameter; with the last one the layer is done."""
        self.missing -= 1
        if self.missing == 0:
            self.missing = len(self.parameters)
            if self.stage > 1:
                self.average_gradients()
            if self.stage == 3:
                self.drop()

    def average_gradients(self) -> None:
        """Give this rank's part its part of the average."""
        rank, size = dist.get_rank(), dist.get_world_size()
        gradients = torch.cat([p.grad.flatten() for p in self.parameters])
        gradients = nn.functional.pad(gradients, (0, -len(gradients) % size))
        if self.stage == 1:
            dist.all_reduce(gradients)
            self.part.grad = gradients.chunk(size)[rank] / size
            return
        self.part.grad = torch.empty_like(self.part)
        dist.reduce_scatter(self.part.grad, list(gradients.chunk(size)))
        self.part.grad /= size
        for parameter in self.parameters:
            parameter.grad = None

    def kept(self) -> int:
        """How many numbers there are between steps: parameters, gradients, and Adam's two.

        Where the whole is kept, the copy of our part of it is not counted.
        """
        parameters = self.whole.untyped_storage().nbytes() // self.whole.itemsize
        gradients = sum(p.grad.numel() for p in self.parameters if p.grad is not None)
        part = self.part.numel()
        return (parameters or part) + (gradients or part) + 2 * part


def flat_views(flat: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, ...]:
    return flat[: sum(sizes)].split(sizes)


def main() -> None:
    arguments = parser(__doc__, stage=("1", "2", "3")).parse_args()
    dist.init_process_group(arguments.backend)

    model, stage = network(), int(arguments.stage)
    layers = [Layer(module, stage) for module in model if list(module.parameters())]
    optimizer = torch.optim.Adam([layer.part for layer in layers], lr=0.01)
    batches = digits(dist.get_rank(), dist.get_world_size())
    for step, (x, y) in zip(range(arguments.steps), batches, strict=False):
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if stage == 1:
            for layer in layers:
                layer.average_gradients()
        optimizer.step()
        if stage < 3:
            for layer in layers:
                layer.gather()
        say(step=step, loss=loss.item())

    kept = sum(layer.kept() for layer in layers)
    if stage == 3:
        for layer in layers:
            layer.gather()
    say(parameters=digest(model.parameters()), kept=kept)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
