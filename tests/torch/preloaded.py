"""What the server of ranks has imported before it forks."""

import numpy  # noqa: F401
import torch
import torch.distributed
import torch.distributed.fsdp
import torch.distributed.optim
import torch.nn.parallel

import ringd_client
import ringd_client.torch
import ringd_client.torch.creation  # noqa: F401

torch.set_num_threads(1)
