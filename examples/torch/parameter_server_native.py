"""The parameter server again, by ringd's own calls: no torch.distributed.

``comm.recv(source=None)`` takes a message from anybody, and returns whose it was. The parameters
and gradients lie in memory that the daemon sees (``comm.empty``), so none is copied on its way.

It prints the same losses as parameter_server.py, bit for bit.

Run it with: ringd run -n 3 -- python examples/torch/parameter_server_native.py
"""

import argparse
import json

import torch
from common import RATE, digest, digits, network
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import ringd_client

PARAMETERS, GRADIENTS = 1, 2
"""Tags."""


def serve(comm: ringd_client.Communicator, model: nn.Module, steps: int, way: str) -> None:
    start = parameters_to_vector(model.parameters()).detach()
    flat, row = comm.empty(len(start)), comm.empty(len(start))
    rows = comm.empty((comm.world_size, len(start)))
    flat.copy_(start)
    rows.zero_()
    workers = range(1, comm.world_size)
    for _ in range(steps):
        if way == "messages":
            sending = [comm.isend(flat, rank, tag=PARAMETERS) for rank in workers]
            for _ in workers:
                rank = comm.recv(row, source=None, tag=GRADIENTS)
                rows[rank] = row
            for handle in sending:
                handle.wait()
        else:
            comm.broadcast(flat, root=0)
            comm.gather(rows, torch.zeros_like(flat), root=0)
        flat -= RATE * rows[1:].mean(0)
    vector_to_parameters(flat, model.parameters())


def work(comm: ringd_client.Communicator, model: nn.Module, steps: int, way: str) -> None:
    size = sum(p.numel() for p in model.parameters())
    flat, gradients = comm.empty(size), comm.empty(size)
    batches = digits(comm.rank - 1, comm.world_size - 1)
    for step, (x, y) in zip(range(steps), batches, strict=False):
        if way == "messages":
            comm.recv(flat, source=0, tag=PARAMETERS)
        else:
            comm.broadcast(flat, root=0)
        vector_to_parameters(flat, model.parameters())
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.cat([p.grad.flatten() for p in model.parameters()], out=gradients)
        if way == "messages":
            comm.send(gradients, 0, tag=GRADIENTS)
        else:
            comm.gather(None, gradients, root=0)
        print(json.dumps({"rank": comm.rank, "step": step, "loss": loss.item()}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--way", choices=("messages", "gather"), default="messages")
    arguments = parser.parse_args()
    with ringd_client.connect() as communicator:
        model = network()
        if communicator.rank == 0:
            serve(communicator, model, arguments.steps, arguments.way)
            print(json.dumps({"rank": 0, "parameters": digest(model.parameters())}), flush=True)
        else:
            work(communicator, model, arguments.steps, arguments.way)
