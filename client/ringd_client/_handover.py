"""Answers that a program gets once: of ``agree``, and of ``reform``.

A signal handler may raise, and an await be cancelled, when the answer is here and the call has not
returned. Then the program lacks it, and must hear of it from the next ``reform()``. So the last
thing that such a call does is to note that its answer is out. ``with`` notes it after the value to
return is known; no call follows before the return, and handlers run at calls only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ringd.vocabulary import agree_spec

if TYPE_CHECKING:
    from ringd_client._core import ClientState
    from ringd_client._operation import Operation

AGREE: Final = agree_spec(0).packed
"""What ``reform()`` tells of: an agree of the world."""


class AgreeHeard:
    """``with AgreeHeard(state, operation): return operation.output``."""

    __slots__ = ("_request", "_state")

    def __init__(self, state: ClientState, operation: Operation[Any]) -> None:
        self._state = state
        self._request = operation.request if operation.packed == AGREE else 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None and self._request > self._state.heard:
            self._state.heard = self._request


class EpochHeard:
    """``with EpochHeard(state): return reformed``: calls may be made from then on."""

    __slots__ = ("_epoch", "_state")

    def __init__(self, state: ClientState) -> None:
        self._state = state
        self._epoch = state.next_epoch

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None:
            self._state.epoch = self._state.open_epoch = self._epoch
