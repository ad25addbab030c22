"""Reductions on flat memory. :func:`kernel_for` chooses; :class:`TorchLoader` brings torch late."""

from ringd.kernels.base import Array, Kernel
from ringd.kernels.choose import kernel_for
from ringd.kernels.loader import TorchLoader, torch_is_ready

__all__ = ["Array", "Kernel", "TorchLoader", "kernel_for", "torch_is_ready"]
