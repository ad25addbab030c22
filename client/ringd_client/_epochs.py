"""The next epoch: those who are left go on together, with those who wait to be let in (ADR 15)."""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass
from typing import Any

from ringd.errors import DaemonLostError, InvalidArgumentError, RingdError
from ringd.wire import ipc
from ringd.wire.bounds import Bound
from ringd_client._attach import Membership
from ringd_client._calls import STATUS_TIMEOUT_S, Caller, positive
from ringd_client._operation import Question
from ringd_client._steps import Steps


@dataclass(frozen=True, slots=True)
class Reform:
    """What ``reform()`` has led to. All ranks here are those that daemons were started with.

    Attributes:
        epoch: the one that has begun.
        rank, world_size: this rank's place in it, and how many there are; also the
            communicator's own from now on.
        ranks: its members, in order: those of the last epoch first, then those who joined.
        lost: members of the last epoch that are not in this one.
        joined: members that were not in the last one.
        completed_by_all: the highest operation of the last epoch up to which its end has cut
            nothing short on any that goes on; -1: none.
        completed_by_any: the highest one that any of them has completed; -1: none.
        agreed: of the last ``agree`` of that epoch, if it has not returned its answer here (it
            ended with an error, or was interrupted): what it was, if the daemon of any that goes
            on has got it. None: nobody has, or there was none.
    """

    epoch: int
    rank: int
    world_size: int
    ranks: tuple[int, ...]
    lost: tuple[int, ...]
    joined: tuple[int, ...]
    completed_by_all: int
    completed_by_any: int
    agreed: bool | None

    @classmethod
    def of(cls, membership: Membership, facts: dict[str, Any]) -> Reform:
        """From the daemon's answer.

        Raises:
            KeyError, ValueError, TypeError: it is none.
        """
        agreed = facts["agreed"]
        return cls(
            membership.epoch,
            membership.rank,
            membership.world_size,
            membership.ranks,
            tuple(facts["lost"]),
            tuple(facts["joined"]),
            int(facts["completed_by_all"]),
            int(facts["completed_by_any"]),
            None if agreed is None else bool(agreed),
        )


def reform(caller: Caller, *, min_size: int = 1, timeout_s: float = 60.0) -> Steps[Reform]:
    """Begin the next epoch with all members that live, and with the trainers that wait.

    Every member that goes on calls it: after an error whose ``retry`` is "new_epoch", or to let
    newcomers in (see :meth:`newcomers`). It is no collective, and has no place in the order of
    calls. From the first one on the epoch is over for all: operations in flight, and calls of
    ranks that have not called it, end with MembershipChangedError. It returns when every member
    that lives has called it; one that does not in time is left out.

    This object stays, with its new ``rank``, ``world_size``, ``ranks`` and ``epoch``; tensors of
    ``empty`` stay too. Groups of ``new_group`` and ``split`` are closed. Calls of other threads
    raise MembershipChangedError from now on until a reform has returned; one that is prepared
    meanwhile is never posted in the new epoch.

    Args:
        min_size: fewer members than these do not go on.
        timeout_s: for all of it.

    Returns:
        Who is there now, and how far the last epoch came: a :class:`ringd_client.Reform`.

    Raises:
        QuorumLostError: this side of the job may not go on, or the rendezvous is not in reach.
        RendezvousError: ``min_size`` ranks are not there in time, or something else was refused.
        InvalidArgumentError: a bad argument; not on the world's communicator; or another
            reform has not ended. Nothing was asked.
        DaemonLostError: our own daemon is gone, or has not answered 0.25 s after the deadline.

    After an error, or when it was interrupted, it may be called again, and only then calls
    are possible again. It goes on with one that was interrupted: if an epoch has begun by that,
    it tells of this one.
    """
    question = _asked(caller, min_size, timeout_s)
    try:
        yield question
    finally:
        question.give_up(RingdError("its caller was interrupted"))  # too late if it is over
    try:
        membership = Membership.of(question.output)
        reformed = Reform.of(membership, question.output)
    except (KeyError, ValueError, TypeError, AttributeError) as exc:
        raise _unclear("reform", exc) from exc
    caller._prepare_epoch(membership)
    return reformed  # whoever plays this opens the epoch: see EpochHeard


def _asked(caller: Caller, min_size: int, timeout_s: float) -> Question:
    """What the daemon is asked by a reform.

    Raises:
        InvalidArgumentError: nothing is to be asked.
    """
    if isinstance(min_size, bool) or not 1 <= _number(min_size) < 1 << 31:
        raise InvalidArgumentError(f"min_size is a number of ranks, at least 1, not {min_size!r}")
    bound = Bound(positive("timeout_s", timeout_s))
    _check_world(caller, "reform")
    state = caller._state
    if state.reforms:
        raise InvalidArgumentError(
            "another reform of this communicator has not ended yet: call when it has returned"
        )
    began = time.monotonic()
    wish = {
        "min_size": int(min_size),
        "timeout_s": bound.timeout_s,
        "deadline": began + bound.timeout_s,
        "epoch": state.epoch,
        "heard": state.heard,
    }
    question = Question("reform", ipc.REFORM, wish, ends_epoch=True)
    question.begin(began, bound)
    return question


def newcomers(caller: Caller, *, timeout_s: float | None = None) -> Steps[tuple[int, ...]]:
    """The ranks whose trainers wait to be let in, as far as our daemon has been told.

    Ranks may see different ones, and see them at different calls: let them agree on whether to
    call :meth:`reform`, which lets them in.

    Args:
        timeout_s: default 5 s.

    Raises:
        DaemonLostError: no answer in time, or no daemon.
        InvalidArgumentError: not on the world's communicator, or a bad timeout.

    Cost: one message to our own daemon and back; nothing travels between ranks.
    """
    _check_world(caller, "newcomers")
    bound_s = STATUS_TIMEOUT_S if timeout_s is None else positive("timeout_s", timeout_s)
    question = Question("newcomers", ipc.NEWCOMERS)
    question.begin(time.monotonic(), Bound(bound_s))
    yield question
    try:
        return tuple(int(rank) for rank in question.output)
    except (ValueError, TypeError) as exc:
        raise _unclear("newcomers", exc) from exc


def _number(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        return 0


def _check_world(caller: Caller, name: str) -> None:
    if caller.group:
        raise InvalidArgumentError(
            f"{name} is a call of the world's communicator, not of group {caller.group}: call it "
            "on what connect() returned",
            group=caller.group,
        )


def _unclear(name: str, cause: Exception) -> DaemonLostError:
    return DaemonLostError(f"the daemon's answer to {name} can't be read: {cause!r}")
