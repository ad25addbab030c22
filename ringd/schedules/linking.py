"""From the schedules of a group to its messages, and an order in which they can all be taken.

Reads schedules by their documented meaning (see ``model``) and knows nothing of the builders.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from ringd.schedules.model import Action, Recv, Schedule, Send


class ScheduleError(ValueError):
    """A group's schedules do not do what their collective promises; the text says where."""


@dataclass(frozen=True, slots=True)
class Message:
    """One send and the receive that it meets.

    Attributes:
        number: its place in the group, from 0 on.
        sent_in: the sender's round.
        reads: the version of the sender's chunk that it carries (0: as at the start).
        makes: the version of the receiver's chunk that it contributes to.
    """

    number: int
    source: int
    target: int
    chunk: int
    wide: bool
    action: Action
    sent_in: int
    reads: int
    makes: int

    def __str__(self) -> str:
        return (
            f"the send of chunk {self.chunk} from rank {self.source} to rank {self.target} "
            f"in round {self.sent_in}"
        )


@dataclass(frozen=True, slots=True)
class Application:
    """Receives on one chunk that change it in one go, in the order in which they are listed."""

    rank: int
    chunk: int
    version: int
    action: Action
    messages: tuple[Message, ...]

    def __str__(self) -> str:
        return f"chunk {self.chunk} of rank {self.rank}"


Key = tuple[int, int, int]
"""(rank, chunk, version) of an application."""

_Pair = tuple[int, int]
_PlacedSend = tuple[int, int, Send]
_PlacedRecv = tuple[int, int, Recv]


@dataclass(slots=True)
class _Sides:
    """Both sides of every link (source, target), in order: (round, version, move)."""

    sends: dict[_Pair, list[_PlacedSend]] = field(default_factory=dict)
    recvs: dict[_Pair, list[_PlacedRecv]] = field(default_factory=dict)


def link(schedules: tuple[Schedule, ...]) -> tuple[Message, ...]:
    """Match sends with receives, first with first on each link.

    Raises:
        ScheduleError: they do not match, or a schedule is malformed.
    """
    sides = _Sides()
    for schedule in schedules:
        _walk(schedule, sides)
    messages: list[Message] = []
    for pair in sorted(sides.sends.keys() | sides.recvs.keys()):
        sends, recvs = sides.sends.get(pair, []), sides.recvs.get(pair, [])
        if len(sends) != len(recvs):
            raise ScheduleError(
                f"rank {pair[0]} sends {len(sends)} messages to rank {pair[1]}, "
                f"which receives {len(recvs)}"
            )
        for sent, received in zip(sends, recvs, strict=True):
            messages.append(_match(len(messages), pair, sent, received))
    return tuple(messages)


def applications(
    schedules: tuple[Schedule, ...], messages: tuple[Message, ...]
) -> dict[Key, Application]:
    """Group the messages by what they change."""
    arriving: dict[_Pair, list[Message]] = {}
    for message in reversed(messages):
        arriving.setdefault((message.source, message.target), []).append(message)
    groups: dict[Key, list[Message]] = {}
    for schedule in schedules:
        for recv in (recv for round_ in schedule.rounds for recv in round_.recvs):
            message = arriving[recv.peer, schedule.rank].pop()
            groups.setdefault((message.target, message.chunk, message.makes), []).append(message)
    return {key: Application(*key, group[0].action, tuple(group)) for key, group in groups.items()}


def in_order(
    messages: tuple[Message, ...], changes: dict[Key, Application]
) -> tuple[Application, ...]:
    """The applications in an order in which they can be done, under the least helpful executor.

    It delivers the messages of a link in order only, and stores nothing: what one application
    folds must be taken together. Who makes progress here does so with any flow control.

    Raises:
        ScheduleError: some wait for each other.
    """
    needs = {key: _prerequisites(application) for key, application in changes.items()}
    for before, after in pairwise(messages):
        if (before.source, before.target) == (after.source, after.target):
            needs[_taken_by(after)].add(_taken_by(before))
    followers: dict[Key, list[Key]] = {}
    for key, earlier in needs.items():
        earlier.discard(key)
        for other in earlier:
            followers.setdefault(other, []).append(key)
    ready = [key for key, earlier in needs.items() if not earlier]
    # Grows while it is walked: whatever becomes ready goes to its end.
    for done in ready:
        for key in followers.get(done, ()):
            needs[key].discard(done)
            if not needs[key]:
                ready.append(key)
    if len(ready) < len(changes):
        stuck = min(key for key, earlier in needs.items() if earlier)
        raise ScheduleError(f"deadlock: {changes[stuck]} never gets its change number {stuck[2]}")
    return tuple(changes[key] for key in ready)


def _walk(schedule: Schedule, sides: _Sides) -> None:
    """List one rank's moves by link, with the versions of chunks that they read and make."""
    versions = [0] * schedule.n_chunks
    # Chunks whose last application may still take a receive.
    growing: set[int] = set()
    for number, round_ in enumerate(schedule.rounds):
        for send in round_.sends:
            _check_move(schedule, send)
            growing.discard(send.chunk)
            reads = _version_read(schedule, send, number, versions[send.chunk])
            pair = (schedule.rank, send.peer)
            sides.sends.setdefault(pair, []).append((number, reads, send))
        _check_unambiguous(schedule, number, round_.recvs)
        for recv in round_.recvs:
            _check_move(schedule, recv)
            if recv.action == "copy" or recv.chunk not in growing:
                versions[recv.chunk] += 1
            if recv.action == "copy":
                growing.discard(recv.chunk)
            else:
                growing.add(recv.chunk)
            pair = (recv.peer, schedule.rank)
            sides.recvs.setdefault(pair, []).append((number, versions[recv.chunk], recv))


def _version_read(schedule: Schedule, send: Send, number: int, version: int) -> int:
    if schedule.snapshot and version:
        raise ScheduleError(
            f"rank {schedule.rank} sends chunk {send.chunk} in round {number} after changing it, "
            "but a snapshot only has it as it was at the start"
        )
    return version


def _check_move(schedule: Schedule, move: Send | Recv) -> None:
    if not 0 <= move.peer < schedule.world_size or move.peer == schedule.rank:
        raise ScheduleError(f"rank {schedule.rank} has no peer {move.peer}")
    if not 0 <= move.chunk < schedule.n_chunks:
        raise ScheduleError(f"rank {schedule.rank} has no chunk {move.chunk}")


def _check_unambiguous(schedule: Schedule, number: int, recvs: tuple[Recv, ...]) -> None:
    """Receives of a round run at once: only reductions have an order among themselves."""
    seen: dict[int, Action] = {}
    for recv in recvs:
        if "copy" in (recv.action, seen.get(recv.chunk, recv.action)) and recv.chunk in seen:
            raise ScheduleError(
                f"in round {number} of rank {schedule.rank} a copy of chunk {recv.chunk} "
                "and another receive on it run at once"
            )
        seen[recv.chunk] = recv.action


def _match(number: int, pair: _Pair, sent: _PlacedSend, received: _PlacedRecv) -> Message:
    sent_in, reads, send = sent
    received_in, makes, recv = received
    if (send.chunk, send.wide) != (recv.chunk, recv.wide):
        raise ScheduleError(
            f"rank {pair[0]} sends rank {pair[1]} {_described(send)} in round {sent_in}, "
            f"which expects {_described(recv)} in its round {received_in}"
        )
    return Message(
        number=number,
        source=pair[0],
        target=pair[1],
        chunk=send.chunk,
        wide=send.wide,
        action=recv.action,
        sent_in=sent_in,
        reads=reads,
        makes=makes,
    )


def _described(move: Send | Recv) -> str:
    return f"chunk {move.chunk}{' as partial sums' if move.wide else ''}"


def _taken_by(message: Message) -> Key:
    return (message.target, message.chunk, message.makes)


def _prerequisites(application: Application) -> set[Key]:
    """The applications that made what this one works on: its own chunk and those it receives."""
    needs = {(m.source, m.chunk, m.reads) for m in application.messages}
    needs.add((application.rank, application.chunk, application.version - 1))
    return {key for key in needs if key[2] > 0}
