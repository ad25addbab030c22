"""Errors that are both ours and torch's.

Each class of ``ringd.errors`` has a twin that is a ``torch.distributed.DistBackendError`` too: a
script that never heard of us catches it as it would catch gloo's or NCCL's, and the fields of a
verdict (``fields``, ``retry``, ``rank``, ...) are there for who wants them.
"""

from __future__ import annotations

from torch.distributed import DistBackendError

from ringd.errors import RingdError

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
    made = twin(error.message, **error.fields)
    made.__cause__ = error.__cause__
    return made
