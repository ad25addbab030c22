"""Errors that are both ours and torch's.

Each class of ``ringd.errors`` has a twin that is a ``torch.distributed.DistBackendError`` too: a
script that never heard of us catches it as it would catch gloo's or NCCL's, and the fields of a
verdict (``fields``, ``retry``, ``rank``, ...) are there for who wants them. A limit that the text
names has torch's name for it, and what to do after a loss is what torch.distributed has for it.

A twin is found here by the name of its class, so it can be pickled: torch's RPC sends the class of
what a callee raised, multiprocessing the error itself.
"""

from __future__ import annotations

from typing import Any, Final

from torch.distributed import DistBackendError

from ringd import errors  # none of its names here: they are those of the twins
from ringd.config import environment
from ringd.wire import advice
from ringd.wire.bounds import words
from ringd_client._operation import NOT_POSTED

_LIMITS: Final = (
    (words("default_timeout_s"), "the timeout of the group"),
    (words("timeout_s"), "the timeout of the call"),
)

_VOID: Final = "(it is void on all ranks)"

_twins: dict[type[errors.RingdError], type[errors.RingdError]] = {}


def for_torch(error: errors.RingdError) -> errors.RingdError:
    """The same error in its class's twin."""
    cls = type(error)
    if issubclass(cls, DistBackendError):
        return error.copy()
    message = advice.for_torch(error.message, error.fields, _launcher())
    if isinstance(error, errors.CollectiveTimeoutError):
        for ours, torchs in _LIMITS:
            message = message.replace(ours, torchs)
    made = _twin_of(cls)(message, **error.fields)
    made.__cause__ = error.__cause__
    return made


def is_misuse(error: BaseException) -> bool:
    """Whether the script has to be changed: wrong arguments, or a call where none may be made.

    Such an error is raised by the call, asynchronous or not.
    """
    return isinstance(error, (ValueError, TypeError, errors.ReentrantCallError))


def leaves_place(error: BaseException) -> bool:
    """Whether the client, which raised it, left the call's place in the order to the next one."""
    return isinstance(
        error, (errors.MemoryInUseError, errors.ArenaFullError, errors.TooManyOperationsError)
    )


def void(error: errors.RingdError) -> errors.RingdError:
    """The same error of a call that takes its place in the order all the same."""
    twin = for_torch(error)
    made = type(twin)(twin.message.replace(NOT_POSTED, _VOID), **twin.fields)
    made.__cause__ = error.__cause__
    return made


def _launcher() -> str:
    """Who starts ranks anew here; torchrun's may run inside of ringd's."""
    given = environment.snapshot()
    ours = environment.variable("rank") in given and "TORCHELASTIC_RUN_ID" not in given
    return "ringd run" if ours else "torchrun"


def _twin_of(cls: type[errors.RingdError]) -> type[errors.RingdError]:
    """Always the same one for a class, whichever thread asks first."""
    twin = _twins.get(cls)
    if twin is None:
        told = {"__module__": __name__, "__doc__": cls.__doc__, "__reduce__": _reduced}
        twin = _twins.setdefault(cls, type(cls.__name__, (cls, DistBackendError), told))
    return twin


def _reduced(error: errors.RingdError) -> tuple[Any, ...]:
    """For pickle: as the plain class does it, and its twin made of it."""
    return (_rebuilt, (error.to_wire(),))


def _rebuilt(data: dict[str, Any]) -> errors.RingdError:
    return for_torch(errors.from_wire(data))


def __getattr__(name: str) -> type[errors.RingdError]:
    """The twin of a class of ``ringd.errors``; a process may be sent one before it made any."""
    cls = getattr(errors, name, None)
    if isinstance(cls, type) and issubclass(cls, errors.RingdError):
        return _twin_of(cls)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
