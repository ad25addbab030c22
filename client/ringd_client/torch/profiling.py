"""Calls as events of torch's profiler, like those of backends in C++: "ringd:all_reduce".

An event begins with the call and ends when the operation does. Only if another thread ends it does
the profiler call it asynchronous, and keep it out of the time of the thread that made the call.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch._C._autograd import _profiler_enabled, _record_function_with_args_enter

from ringd_client.torch.autoload import NAME
from ringd_client.torch.pool import POOL

Find: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], list[torch.Tensor]]

is_on: Callable[[], bool] = _profiler_enabled
"""Whether a profiler runs on this thread."""


class Recording:
    """The event of a call, from now on.

    Args:
        name: of the event, after "ringd:".
        inputs: whose shapes the event is to show.
    """

    __slots__ = ("_ended", "_lock", "_operation", "_over", "_thread")

    def __init__(self, name: str, inputs: Sequence[torch.Tensor]) -> None:
        self._lock = threading.Lock()
        self._over = False
        self._thread = threading.get_ident()
        event = _record_function_with_args_enter(f"{NAME}:{name}", *inputs)
        # The profiler belongs to this thread; a future takes that to the thread that completes it.
        self._operation: torch.futures.Future[None] = torch.futures.Future()
        profiler: Any = torch.ops.profiler
        end = profiler._call_end_callbacks_on_jit_fut._RecordFunction
        self._ended: torch.futures.Future[None] = end(event, self._operation)

    def end(self) -> None:
        """End the event, the first time; later and simultaneous calls see it ended."""
        with self._lock:
            if self._over:
                return
            self._over = True
            if threading.get_ident() != self._thread:
                self._operation.set_result(None)
            else:
                POOL.run(lambda: self._operation.set_result(None))
                self._ended.wait()


def inputs_of(function: Callable[..., object]) -> Find:
    """What finds the input tensors in the arguments of a method of a process group."""
    names = list(inspect.signature(function).parameters)[1:]
    place = next((i for i, name in enumerate(names) if name.startswith("input")), 0)

    def find(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        return list(_flat(args[place] if place < len(args) else kwargs.get(names[place])))

    return find


def _flat(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for part in given:
            yield from _flat(part)
