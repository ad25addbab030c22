"""Errors that are both ours and torch's.

Each class of ``ringd.errors`` has a twin that is a ``torch.distributed.DistBackendError`` too: a
script that never heard of us catches it as it would catch gloo's or NCCL's, and the fields of a
verdict (``fields``, ``retry``, ``rank``, ...) are there for who wants them. A limit that the text
names has torch's name for it, and what to do after a loss is what torch.distributed has for it.
"""

from __future__ import annotations

from typing import Final

from torch.distributed import DistBackendError

from ringd.errors import CollectiveTimeoutError, RingdError
from ringd.wire import advice
from ringd.wire.bounds import words

_LIMITS: Final = (
    (words("default_timeout_s"), "the timeout of the group"),
    (words("timeout_s"), "the timeout of the call"),
)

_twins: dict[type[RingdError], type[RingdError]] = {}


def for_torch(error: RingdError) -> RingdError:
    """The same error in its class's twin."""
    cls = type(error)
    if issubclass(cls, DistBackendError):
        return error.copy()
    twin = _twins.get(cls)
    if twin is None:
        told = {"__module__": cls.__module__, "__doc__": cls.__doc__}
        twin = _twins[cls] = type(cls.__name__, (cls, DistBackendError), told)
    message = advice.for_torch(error.message, error.fields)
    if isinstance(error, CollectiveTimeoutError):
        for ours, torchs in _LIMITS:
            message = message.replace(ours, torchs)
    made = twin(message, **error.fields)
    made.__cause__ = error.__cause__
    return made
