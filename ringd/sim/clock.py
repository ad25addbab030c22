"""Virtual time: an asyncio event loop whose clock jumps to the next timer instead of waiting.

Unmodified asyncio code runs on it (tasks, timeouts, events, futures); nothing waits for real.
Two things no real loop can do: when nothing is ready and nothing is scheduled it says at once
who waits for ever and where (StandStill), and a run depends on its inputs alone. For the
latter, tasks and futures hash by their order of birth, so that sets of them, which asyncio
keeps and walks, have the same order in every run; by address they would not.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context
from pathlib import PurePath
from types import FrameType
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DEFAULT_TIME_LIMIT_S = 24 * 3600.0
DEFAULT_STEP_LIMIT = 20_000_000
_GRACE = 0.1
"""A limit that was told moves on by this part of itself, so that the run can be cleaned up."""
_MAX_TASKS_TOLD = 50
_MAX_FRAMES_TOLD = 4


class SimulationError(Exception):
    """A simulated run can't go on. Raised out of the loop, never into the code that it runs."""


class StandStill(SimulationError):
    """Nothing is ready and no timer is set, so nothing will ever happen: a deadlock."""


class LimitReached(SimulationError):
    """The bound on virtual time or on steps was passed: a run that turns for ever."""


class VirtualTask(asyncio.Task[T]):
    """A task that hashes by its order of birth."""

    def __init__(self, coro: Any, *, serial: int, **options: Any) -> None:
        self.serial = serial  # first: asyncio's own __init__ puts the task into a set
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.serial


class VirtualFuture(asyncio.Future[T]):
    """A future that hashes by its order of birth."""

    def __init__(self, *, serial: int, loop: asyncio.AbstractEventLoop) -> None:
        self.serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.serial


class _Clock:
    """The loop's selector: instead of waiting for files, it moves the time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        """Asked before each iteration; ``None``: nothing is ready and no timer is set."""
        if timeout is None:
            self._loop.stand_still()
        self._loop.step(jump=timeout > 0)
        return []


class VirtualLoop(base_events.BaseEventLoop):
    """An event loop with virtual time, without files, threads or signals.

    Args:
        start_s: the first value of ``time()``. Not zero by default, so that code which takes
            a time for a flag shows.
        time_limit_s: how much virtual time may pass.
        step_limit: how many callbacks may run.

    Attributes:
        steps: callbacks run so far.
        unhandled: one line for each exception that reached the loop's exception handler
            (a callback raised, a failed task was never awaited); a sound run has none.
        diagnose: functions whose text is added to StandStill and LimitReached.
        on_step: told the time and how many callbacks are ready, at each iteration.
    """

    _scheduled: list[asyncio.TimerHandle]
    _ready: deque[asyncio.Handle]
    _thread_id: int | None

    def __init__(
        self,
        *,
        start_s: float = 1000.0,
        time_limit_s: float = DEFAULT_TIME_LIMIT_S,
        step_limit: int = DEFAULT_STEP_LIMIT,
    ) -> None:
        self._now = start_s
        self._end_s = start_s + time_limit_s
        self._grace_s = time_limit_s * _GRACE
        self._step_limit = step_limit
        self._serial = 0
        self.steps = 0
        self.unhandled: list[str] = []
        self.diagnose: list[Callable[[], str]] = []
        self.on_step: Callable[[float, int], None] | None = None
        super().__init__()
        self._selector = _Clock(self)
        self._set_time(start_s)

    def time(self) -> float:
        """The virtual time in seconds; it stands while callbacks run."""
        return self._now

    def _set_time(self, now: float) -> None:
        self._now = now
        # asyncio runs timers due before now + resolution. With one ulp that is "at now or
        # before" exactly: none fires early, and time + resolution never rounds back to time.
        self._clock_resolution = math.ulp(now)

    def step(self, *, jump: bool) -> None:
        """One iteration of the loop begins: count its callbacks and move the clock.

        Raises:
            LimitReached: a bound is passed.
        """
        self.steps += max(1, len(self._ready))
        if self.steps > self._step_limit:
            told, self._step_limit = self._step_limit, self.steps + int(self._step_limit * _GRACE)
            raise LimitReached(f"more than {told} steps\n{self.report()}")
        if jump:
            self._jump(self._scheduled[0].when())
        if self.on_step is not None:
            self.on_step(self._now, len(self._ready))

    def _jump(self, when: float) -> None:
        if when > self._end_s:
            told_s, self._end_s = self._end_s, max(self._end_s, self._now) + self._grace_s
            raise LimitReached(
                f"the next timer, at {when:.6f} s, is past the limit of {told_s:.6f} s"
                f"\n{self.report()}"
            )
        self._set_time(when)

    def stand_still(self) -> NoReturn:
        """Raise StandStill with what waits and where."""
        raise StandStill(f"nothing is ready and no timer is set\n{self.report()}")

    def timers(self) -> list[str]:
        """What is set to run at a later time, as text."""
        return [repr(handle) for handle in self._scheduled if not handle.cancelled()]

    def report(self) -> str:
        """The time, the pending tasks with the place where each waits, and what else is known."""
        tasks = sorted(asyncio.all_tasks(self), key=hash)
        lines = [f"at {self._now:.6f} s, step {self.steps}, {len(tasks)} tasks pending:"]
        lines += [f"  {task.get_name()}: {where(task)}" for task in tasks[:_MAX_TASKS_TOLD]]
        if len(tasks) > _MAX_TASKS_TOLD:
            lines.append(f"  and {len(tasks) - _MAX_TASKS_TOLD} more")
        lines += [f"  unhandled: {text}" for text in self.unhandled]
        lines += [text for text in (say() for say in self.diagnose) if text]
        return "\n".join(lines)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        self._serial += 1
        return VirtualFuture(serial=self._serial, loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        """A task of this loop; without a name it is numbered within the loop."""
        if self.get_task_factory() is not None:
            return super().create_task(coro, name=name, context=context, **options)
        if self.is_closed():
            coro.close()
            raise RuntimeError("the loop is closed")
        self._serial += 1
        name = f"task-{self._serial}" if name is None else str(name)
        return VirtualTask(
            coro, serial=self._serial, loop=self, name=name, context=context, **options
        )

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep one line in ``unhandled``, then do as every loop does."""
        error = context.get("exception")
        # Text only: the context may hold a task that is just being collected.
        self.unhandled.append(f"{context.get('message')}: {error!r}")
        super().call_exception_handler(context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As ``call_soon``; another thread is refused, as its timing can't be repeated."""
        if self._thread_id is not None and self._thread_id != threading.get_ident():
            raise SimulationError("another thread may not call into a loop with virtual time")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], object], *args: *Ts
    ) -> NoReturn:
        """Refused: a thread runs in real time (``getaddrinfo`` and ``to_thread`` need one)."""
        raise SimulationError(f"a loop with virtual time has no threads to run {func!r}")

    def add_reader(self, fd: Any, callback: Callable[[*Ts], object], *args: *Ts) -> NoReturn:
        """Refused: files are ready in real time."""
        raise SimulationError(f"a loop with virtual time can't watch file {fd!r}")

    def add_writer(self, fd: Any, callback: Callable[[*Ts], object], *args: *Ts) -> NoReturn:
        """Refused: files are ready in real time."""
        raise SimulationError(f"a loop with virtual time can't watch file {fd!r}")

    def add_signal_handler(
        self, sig: int, callback: Callable[[*Ts], object], *args: *Ts
    ) -> NoReturn:
        """Refused: signals come in real time."""
        raise SimulationError(f"a loop with virtual time takes no {signal.Signals(sig).name}")

    def _process_events(self, event_list: list[Any]) -> None:
        """BaseEventLoop hands over what ``select`` returned: never anything."""


def run(main: Coroutine[Any, Any, T], *, loop: VirtualLoop | None = None) -> T:
    """Run ``main`` to its end on ``loop`` (a fresh one by default), clean up, close the loop.

    Raises:
        StandStill, LimitReached: see there; tasks that still run are cancelled first.
    """
    with asyncio.Runner(loop_factory=lambda: loop or VirtualLoop()) as runner:
        return runner.run(main)


def where(task: asyncio.Task[Any]) -> str:
    """Where a task waits: its innermost frames, outermost of them first."""
    frames: list[FrameType] = []
    awaited: object = task.get_coro()
    while awaited is not None:
        frame = _attribute(awaited, "cr_frame", "gi_frame", "ag_frame")
        if isinstance(frame, FrameType):
            frames.append(frame)
        awaited = _attribute(awaited, "cr_await", "gi_yieldfrom", "ag_await")
    told = [_place(frame) for frame in frames[-_MAX_FRAMES_TOLD:]]
    return " > ".join(told) or "not in Python code"


def _attribute(awaited: object, *names: str) -> object:
    """Coroutines, generators and async generators name the same thing differently."""
    for name in names:
        if hasattr(awaited, name):
            return getattr(awaited, name)
    return None


def _place(frame: FrameType) -> str:
    # The end of the path only: the same text wherever the checkout lies.
    path = PurePath(*PurePath(frame.f_code.co_filename).parts[-3:])
    return f"{path}:{frame.f_lineno} in {frame.f_code.co_name}"
