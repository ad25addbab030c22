"""Calls that are made of several operations: written once, played by either face.

Such a call is a generator of operations that are ready to be posted. Whoever plays it posts
each, waits for it, and goes on; after an error, or when it is interrupted, it closes the generator.

When its first operation has been made, the other ranks are in the call and go on to the next one.
So what fails here from then on takes the place of that one; see ``Budget.committed``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from typing import Any, TypeAlias, TypeVar

from ringd.errors import RingdError
from ringd_client._calls import REFUSALS, Caller, unreadable
from ringd_client._operation import GRACE_S, Operation

T = TypeVar("T")
Steps: TypeAlias = Generator[Operation[Any], None, T]


class Budget:
    """The one deadline of a call with several operations, from the beginning of the call.

    Args:
        timeout_s: as the caller gave it; the first operation checks it.
    """

    def __init__(self, caller: Caller, timeout_s: float | None) -> None:
        self._caller = caller
        self._epoch = caller.epoch
        self._began = time.monotonic()
        self._timeout_s = timeout_s

    def bounds(self, operation: Operation[T]) -> Operation[T]:
        """Give an operation this deadline, and the epoch of the call, instead of its own.

        If too little of it is left, the daemon has time to say so all the same.
        """
        bound = self._caller._bound(self._timeout_s)
        operation.begin(self._began, bound, operation.recv_timeout_s)
        operation.epoch = self._epoch
        operation.expires = max(operation.expires, time.monotonic() + GRACE_S)
        return operation

    @contextlib.contextmanager
    def committed(self, collective: str, call: str = "") -> Iterator[None]:
        """For preparing an operation, a ``collective``, that is not the first of a ``call``: what
        fails takes its place.

        Raises:
            RingdError: what has failed.
        """
        try:
            yield
        except REFUSALS:
            raise  # it has taken its place
        except RingdError as exc:
            self._caller._refuse(collective, exc, call)
            raise
        except Exception as exc:
            self._caller._refuse(collective, cause := unreadable(exc), call)
            raise cause from exc
