"""What a fault excuses, and what the verdicts on it must have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ringd.errors import (
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    MembershipChangedError,
    PeerLostError,
    RingdError,
)
from ringd.rendezvous.verdicts import LATE_SHARE
from ringd.sim.faults import SHORT_S, Fault
from ringd.sim.invariants import LEFT, disagreement
from ringd.vocabulary import POINT_TO_POINT, RECV, SEND

E = TypeVar("E")
_CHANGE_S = 0.2
"""How long what was seen before a change may still show."""
_ROUNDED = 0.1
"""Of the time that a call took: what is told takes a moment, and the fault itself some."""
Channel = tuple[int, int, int]
"""Of messages: from which rank to which, and with what tag."""
LATE = frozenset({"never entered", "entered late"})
_LOSSES = (PeerLostError, CollectiveTimeoutError, MembershipChangedError)


class Judge:
    """Of the errors of one run.

    Args:
        relay: the step that is a chain of messages from the victim on, if one is.

    Attributes:
        errors: by step of the program, each rank's error.
        uneven: steps that use a group that only some of its members got.
        messages_missed: a send or receive timed out, so that later ones may meet another's.
    """

    def __init__(self, fault: Fault, *, relay: int | None = None) -> None:
        self._fault = fault
        self._relay = relay
        self._loop = fault.network.loop
        self._entered: dict[int, dict[int, float]] = {}
        self._ended: dict[int, dict[int, float]] = {}
        self.errors: dict[int, dict[int, RingdError]] = {}
        self.uneven: set[int] = set()
        self.messages_missed = False
        self._missed: dict[Channel, set[tuple[int, int]]] = {}  # who missed one, in which step
        self._held_up = False  # a receive from any source waited for one that had left

    @property
    def _may_expire(self) -> bool:
        """Some rank's calls can come to their deadline."""
        return min(self._fault.timeouts) <= max(SHORT_S)

    # One error

    def enters(self, rank: int, step: int) -> None:
        """A rank makes the call of a step (of several, the first counts)."""
        self._entered.setdefault(step, {}).setdefault(rank, self._loop.time())

    def takes(self, rank: int, step: int, error: RingdError) -> str | None:
        """What is wrong with an error that a rank got in a step, by itself; None: nothing."""
        self.errors.setdefault(step, {})[rank] = error
        self._ended.setdefault(step, {})[rank] = self._loop.time()
        timed_out = isinstance(error, CollectiveTimeoutError)
        effect = self._fault.kind.effect
        if effect == "slow":  # a pipe of a kilobyte and a third of a second may be too slow
            return None if timed_out else "a slow link is no reason for it"
        if not self._fault.struck or effect == "none":
            return "there was no fault"
        if timed_out and self._may_expire:
            is_message = error.fields.get("op") in POINT_TO_POINT
            return self._missed_message(rank, step, error) if is_message else self._missed_op(error)
        if self.messages_missed and isinstance(error, CollectiveMismatchError):
            return None
        if effect != "lost":
            return "no fault explains it"
        return self._of_victim(error) if rank == self._fault.victim else self._of_another(error)

    def _missed_message(self, rank: int, step: int, error: RingdError) -> str | None:
        """A send or a receive came to its deadline: what is wrong with the verdict on it."""
        self.messages_missed = True
        channels = self._channels(error)
        for channel in channels:
            self._missed.setdefault(channel, set()).add((step, rank))
        if error.fields["partial"]:
            if error.fields["culprits"]:
                return "it is one rank's view, and blames somebody"
            told = error.fields["rank"] != rank  # by its peer, which had not heard a verdict yet
            return None if told or self._may_have_no_verdict(rank) else "it has no verdict"
        if self._is_changing(self._loop.time()):
            return None  # whom to blame is not plain
        if self._relay is not None:  # later, who gave up in the chain may hold up the others
            return self._misnamed_chain(error) if step == self._relay else None
        if any(self._missed[channel] - {(step, rank)} for channel in channels):
            return None  # what its peer sent may have gone to another receive, or was given up
        return self._misnamed_message(rank, step, error)

    def _missed_op(self, error: RingdError) -> str | None:
        """An operation came to its deadline: what is wrong with the verdict on it, if those that
        are missing wait for a message, and nobody has given one up."""
        if self._relay is None or self.messages_missed or error.fields["partial"]:
            return None
        if self._is_changing(self._loop.time()):
            return None
        blamed, fault = set(error.fields["culprits"]), self._fault
        well = blamed - {fault.victim} if fault.trainer.away else set()
        if well:
            return f"the verdict blames {sorted(well)}, who wait for a message"
        return self._misnamed_chain(error)

    def _misnamed_chain(self, error: RingdError) -> str | None:
        """A verdict in a chain of messages names who holds up its first rank."""
        fault = self._fault
        if fault.kind.effect != "held up" or not fault.trainer.away:
            return None
        if fault.victim in error.fields["culprits"]:
            return None
        return "the verdict does not name who holds up the chain"

    def _channels(self, error: RingdError) -> list[Channel]:
        """Where a message may have been waited for: messages of one channel can take each other's
        place."""
        rank, peer, tag = (error.fields[name] for name in ("rank", "peer", "tag"))
        peers = range(len(self._fault.timeouts)) if peer is None else [peer]
        sends = error.fields["op"] == SEND
        return [(rank, other, tag) if sends else (other, rank, tag) for other in peers]

    def _misnamed_message(self, rank: int, step: int, error: RingdError) -> str | None:
        """Who is blamed for a message without being guilty; or who is not, though its program has
        not come to the other side of it."""
        fault, fields, now = self._fault, error.fields, self._loop.time()
        blamed, peer = set(fields["culprits"]), fields["peer"]
        guilty = {fault.victim} | ({fault.other} if fault.kind.link else set())
        well = {r for r in blamed - guilty if not self._was_late(r, step, now)}
        in_chain = fields["case"] == "deadlock" or fields.get("chain")
        if in_chain and fault.kind.cases == {LEFT}:
            return None  # who waits for any, of whom one has left, waits for all others
        if guilty & set(fields["link"] or ()) and fields["case"] in fault.kind.cases:
            return None  # what holds up the message, and all that its ranks do
        if peer is not None and well:  # of a receive from any, who has nothing to send is named too
            return f"the verdict on a message blames {sorted(well)}"
        if peer is not None and peer not in self._entered[step] and not blamed & {peer, *guilty}:
            return f"the verdict on a message does not blame rank {peer}, which never came to it"
        if not blamed:
            return "the verdict on a message blames nobody"
        if fields["case"] not in fault.kind.cases | LATE:
            return f"the verdict on a message calls it {fields['case']!r}"
        return None

    def _of_victim(self, error: RingdError) -> str | None:
        """Its own error: a peer may tell it that it is lost, who can't say more than that."""
        told = type(error) is CollectiveError and f"rank {self._fault.victim} is lost" in str(error)
        return None if told or isinstance(error, _LOSSES) else "its loss does not explain it"

    def _of_another(self, error: RingdError) -> str | None:
        """A survivor's error: it says that the victim is lost."""
        op = error.fields.get("op")
        if self._fault.kind.cases == {LEFT} and op in POINT_TO_POINT:
            if op == RECV:  # from any source: who is left might have sent it
                self._held_up |= isinstance(error, CollectiveTimeoutError)
                return None
            if self._held_up and isinstance(error, CollectiveTimeoutError):
                return None  # its receiver had waited so, and given up meanwhile
        if not isinstance(error, PeerLostError):
            return "the loss of a rank is no reason for it"
        if error.rank != self._fault.victim:
            return f"it blames rank {error.rank}"
        alone = self._fault.kind.embedded and error.fields["partial"]
        return "its successor's verdict is missing" if alone else None

    # All errors

    def judged(self, steps: Sequence[int]) -> str | None:
        """What is wrong with the verdicts on ``steps``, taken together; None: nothing."""
        first = True
        for step in sorted(self.errors):
            if step in steps and step not in self.uneven:
                errors = self._reachable(self.errors[step])
                # Who comes when the epoch is over is told that, and not how the call ended before.
                lost = [e for e in errors.values() if isinstance(e, PeerLostError)]
                others = [e for e in errors.values() if not isinstance(e, PeerLostError)]
                wrong = disagreement(lost) or disagreement(others)
                for rank, error in errors.items():
                    wrong = wrong or self._misnamed(rank, step, error, first=first)
                if wrong is not None:
                    return f"step {step}: {wrong}"
            first = False
        return self._of_successor() if self._fault.kind.embedded else None

    def _of_successor(self) -> str | None:
        """What is wrong with the verdict on a daemon that held the rendezvous; None: nothing."""
        lost = [
            error
            for errors in self.errors.values()
            for rank, error in errors.items()
            if rank != self._fault.victim and isinstance(error, PeerLostError)
        ]
        ids = {str(error.fields["verdict"]) for error in lost}
        return f"several verdicts on one loss: {sorted(ids)}" if len(ids) > 1 else None

    def _reachable(self, errors: dict[int, E]) -> dict[int, E]:
        """Without those of a victim that the others can't hear."""
        fault = self._fault
        deaf = fault.kind.renewed or fault.kind.name == "alone"
        return {r: e for r, e in errors.items() if r != fault.victim or not deaf}

    def _misnamed(self, rank: int, step: int, error: RingdError, *, first: bool) -> str | None:
        """Who is blamed without being the culprit, or late because of it; or how it is called.

        Args:
            first: nothing has failed before, so that the fault itself must be named.
        """
        fault, fields = self._fault, error.fields
        if not self._may_expire or self._is_changing(self._ended[step][rank]):
            return None
        blamed = set(fields["culprits"])
        guilty = {fault.victim} | ({fault.other} if fault.kind.link else set())
        told_at = self._told_at(step, error)
        well = {r for r in blamed - guilty if not self._was_late(r, step, told_at)}
        gave_up = self._gave_up(step)
        if fields.get("case") == "deadlock" and well & gave_up:
            well = set()
        elif fields.get("chain"):
            well -= gave_up
        if well:
            return f"rank {rank} blames {sorted(well)}: {error}"
        if not first:
            return None
        if fields["partial"]:
            return None if self._may_have_none(rank) else f"rank {rank} has no verdict: {error}"
        if not blamed:
            return f"rank {rank} blames nobody: {error}"
        late = any(self._was_late(r, step, told_at) for r in blamed)
        if fields["case"] not in (fault.kind.cases | LATE if late else fault.kind.cases):
            return f"rank {rank} calls it {fields['case']!r}: {error}"
        return None

    def _gave_up(self, step: int) -> set[int]:
        """Ranks that gave up a message before a step: what another one waits for may not be sent
        any more, by who went on."""
        return {rank for told in self._missed.values() for at, rank in told if at < step}

    def _is_changing(self, ended: float) -> bool:
        """Whether the fault had just ended, when the ranks were asked what they see: some see it
        still, some do not."""
        return any(0 <= ended - change <= _CHANGE_S for change in self._fault.changes)

    def _told_at(self, step: int, error: RingdError) -> float:
        """When an error was made: who came to the call later was told the same."""
        blamed = error.fields["culprits"]
        ended = self._ended[step]
        return min(
            ended[rank]
            for rank, other in self.errors[step].items()
            if other.fields.get("culprits") == blamed
        )

    def _was_late(self, rank: int, step: int, ended: float) -> bool:
        """Whether a rank had not made a call when that was said, or made it late."""
        entered = self._entered[step]
        share = LATE_SHARE - _ROUNDED
        return entered.get(rank, ended) >= ended - (ended - min(entered.values())) * (1 - share)

    def _may_have_no_verdict(self, rank: int) -> bool:
        """Whether a message may be judged by its own rank alone."""
        return self._may_have_none(rank) or rank not in self._reachable({rank: None})

    def _may_have_none(self, rank: int) -> bool:
        """Whether the rank has no verdict, but a view: it could not reach the rendezvous, or came
        to the call when one that could not had ended it."""
        fault = self._fault
        if fault.kind.name == "no coordinator":
            return rank in (fault.other, fault.victim)
        return fault.kind.name == "coordinator dies" or fault.kind.embedded
