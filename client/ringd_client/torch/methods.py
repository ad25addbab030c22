"""What all methods of a process group have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import CodeType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from torch._C._dynamo import eval_frame
from torch.distributed import DistBackendError

from ringd.errors import RingdError
from ringd_client._calls import unreadable
from ringd_client.torch.errors import for_torch, is_misuse, leaves_place
from ringd_client.torch.identity import Identity
from ringd_client.torch.profiling import Recording, inputs_of, is_on

P = ParamSpec("P")
R = TypeVar("R")
G = TypeVar("G", bound=Identity)


def method(
    collective: str, event: str = ""
) -> Callable[[Callable[Concatenate[G, P], R]], Callable[Concatenate[G, P], R]]:
    """A method that makes a call.

    What it refuses itself takes its place in the order of calls, as with the client: peers that
    called properly are told instead of waiting. An asynchronous call raises only what is wrong with
    its arguments; all else its work does, for torch's reducer has no way back from an error in the
    middle of a backward pass. torch.compile does not look inside.

    Args:
        collective: what it calls, for the poison.
        event: its name in the profiler; default: the same.
    """

    def decorate(function: Callable[Concatenate[G, P], R]) -> Callable[Concatenate[G, P], R]:
        find_inputs = inputs_of(function)
        is_asynchronous = _asynchronous(function)

        def record(self: G, /, *args: P.args, **kwargs: P.kwargs) -> R:
            recording = Recording(event or collective, find_inputs(args, kwargs))
            try:
                work: Any = function(self, *args, **kwargs)
            except BaseException:
                recording.end()
                raise
            work.recorded_by(recording)
            return work  # type: ignore[no-any-return]

        @wraps(function)
        def call(self: G, /, *args: P.args, **kwargs: P.kwargs) -> R:
            compiler = eval_frame.get_eval_frame_callback()
            if compiler is not None:
                eval_frame.set_eval_frame(None)
            try:
                return (record if is_on() else function)(self, *args, **kwargs)
            except Exception as exc:
                error = exc if isinstance(exc, RingdError) else unreadable(exc)
                later = not is_misuse(error) and is_asynchronous(self, args, kwargs)
                if isinstance(exc, DistBackendError):  # of the client, which has seen to it
                    if not later:
                        raise
                elif not (later and leaves_place(error)):
                    self.comm._refuse(collective, error)
                if not later:
                    raise for_torch(error) from exc
                return cast("R", self._failed((collective,), error))
            finally:
                if compiler is not None:
                    eval_frame.set_eval_frame(compiler)

        made: Any = call
        leave_alone(made.__code__)
        made._torchdynamo_disable = True
        return call

    return decorate


def _asynchronous(function: Callable[..., object]) -> Callable[[Identity, Any, Any], bool]:
    """What tells from its arguments whether a call is asynchronous.

    Messages always are, and so is what has no options: theirs say so by default.
    """
    names = list(inspect.signature(function).parameters)[1:]
    place = names.index("opts") if "opts" in names else None

    def is_asynchronous(group: Identity, args: Any, kwargs: Any) -> bool:
        if place is None or group._collected is not None:
            return True
        opts = args[place] if place < len(args) else kwargs.get("opts")
        return bool(getattr(opts, "asyncOp", True))

    return is_asynchronous


def leave_alone(code: CodeType) -> None:
    """Have torch.compile run this code as it is; what it calls is up to :func:`method`."""
    frames: Any = eval_frame
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    frames.set_code_exec_strategy(code, strategy)
