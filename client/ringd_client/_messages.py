"""Point-to-point messages: they match by peer and tag, and stand beside the order of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ringd.errors import InvalidArgumentError, RingdError
from ringd.vocabulary import RECV, SEND
from ringd_client._calls import Caller
from ringd_client._collectives import Preparer
from ringd_client._operation import Operation, withdraw
from ringd_client._plan import Planner
from ringd_client._steps import Budget


@dataclass(frozen=True, slots=True)
class Send:
    """One message out, for ``batch_p2p``; see ``send``."""

    tensor: Any
    dest: int
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Recv:
    """One message in, for ``batch_p2p``; see ``recv``."""

    tensor: Any
    source: int | None = None
    tag: int = 0


Message: TypeAlias = Send | Recv


def send(
    caller: Preparer,
    tensor: Any,
    dest: int,
    tag: int = 0,
    *,
    timeout_s: float | None = None,
    recv_timeout_ms: float | None = None,
) -> Operation[None]:
    """Send a tensor to one rank, bit for bit.

    A message has no place in the order of collectives: it matches a receive of the same group
    with this tag. Messages of one tag between two ranks arrive in the order of their sends. A
    call that is refused here is as if it was not made.

    Args:
        tensor: of any layout; only read. A tensor from ``empty`` is not to be touched before
            the send is done.
        dest: a rank of the group, not this one.
        tag: 0 to 2**31 - 1.
        timeout_s, recv_timeout_ms: see the class.

    Raises, besides what the class says:
        CollectiveMismatchError: the receive has another dtype or element count. A small send
            that was done before does not learn of it.

    Cost: up to the eager limit (64 KiB unless set) the send is done when the data is copied;
    larger ones when it has arrived, so it needs the receive: two ranks that ``send`` large
    tensors to each other first and receive then wait until the deadline. Use ``isend`` there.
    """
    arguments = (tensor, dest, tag)
    return caller._prepare(SEND, Planner.send, arguments, timeout_s, recv_timeout_ms, None)


def recv(
    caller: Preparer,
    tensor: Any,
    source: int | None = None,
    tag: int = 0,
    *,
    timeout_s: float | None = None,
    recv_timeout_ms: float | None = None,
) -> Operation[int]:
    """Receive a tensor that one rank sends.

    Args:
        tensor: where it goes: of the dtype and element count of what is sent, in any layout.
            Gaps between its elements stay untouched.
        source: a rank of the group, not this one; None: whoever's message comes first.
        tag: as sent.
        timeout_s, recv_timeout_ms: see the class. A receive that ran out of time takes no
            message with it.

    Returns:
        The rank in the group that sent it.

    Raises, besides what the class says:
        CollectiveMismatchError: dtype or element count are not what was sent. The message
            is gone.
    """
    sender = -1 if source is None else source
    arguments = (tensor, source, tag)
    return caller._prepare(RECV, Planner.recv, arguments, timeout_s, recv_timeout_ms, sender)


def prepare_all(
    caller: Caller,
    messages: Sequence[Message],
    timeout_s: float | None,
    recv_timeout_ms: float | None,
) -> list[Operation[Any]]:
    """Operations for all messages, or for none.

    Raises:
        RingdError: why one was refused; nothing was posted.
    """
    caller._state.admit_call(caller.group, caller.epoch)
    if not isinstance(messages, Sequence):
        raise InvalidArgumentError(
            f"batch_p2p takes a list of Send and Recv, not {type(messages).__qualname__}"
        )
    caller._state.admit(caller.group, len(messages))
    operations: list[Operation[Any]] = []
    budget = Budget(caller, timeout_s)
    try:
        for message in messages:
            operation = budget.bounds(_prepared(caller, message, timeout_s, recv_timeout_ms))
            operations.append(operation)  # one by one: a refusal withdraws those before it
    except RingdError as exc:
        withdraw(operations, exc)
        raise
    return operations


def _prepared(
    caller: Caller, message: Message, timeout_s: float | None, recv_timeout_ms: float | None
) -> Operation[Any]:
    bounds = {"timeout_s": timeout_s, "recv_timeout_ms": recv_timeout_ms}
    if isinstance(message, Send):
        return send(caller, message.tensor, message.dest, message.tag, **bounds)
    if isinstance(message, Recv):
        return recv(caller, message.tensor, message.source, message.tag, **bounds)
    raise InvalidArgumentError(f"batch_p2p takes Send and Recv, not {message!r}")
