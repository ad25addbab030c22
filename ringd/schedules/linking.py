"""From the schedules of a group to its messages, and an order in which they can all be taken.

Reads schedules by their documented meaning (see ``model``) and knows nothing of the builders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ringd.schedules.model import Action, Recv, Round, Schedule, Send

SEGMENTS = 3
"""So many stand for many: the first of a chunk, the last, and one between."""


class ScheduleError(ValueError):
    """A group's schedules do not do what their collective promises; the text says where."""


Key = tuple[int, int, int]
"""(rank, chunk, version) of an application."""


@dataclass(frozen=True, slots=True)
class Message:
    """One send and the receive that it meets.

    Attributes:
        number: its place in the group, from 0 on.
        sent_in: the sender's round.
        reads: the version of the sender's chunk that it carries (0: as at the start).
        makes: the version of the receiver's chunk that it contributes to.
        after: the change at the sender that it waits for and does not read; None: it does not.
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
    after: Key | None = None

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


_Pair = tuple[int, int]
_Node = Key | int
"""What happens: an application is done, or a message (by its number) leaves."""
_PlacedSend = tuple[int, int, Key | None, Send]
_PlacedRecv = tuple[int, int, Recv]


@dataclass(slots=True)
class _Sides:
    """Both sides of every link (source, target), in order: round, version, (after,) move."""

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
    messages: tuple[Message, ...], changes: dict[Key, Application], *, guarded: bool = False
) -> tuple[Application, ...]:
    """The applications in an order in which they can be done, under the least helpful executor.

    It delivers the messages of a link in order only, and stores nothing: what one application
    folds must be taken together. Who makes progress here does so with any flow control.

    Args:
        guarded: an application also waits until what reads the chunk as it was has left. Two ranks
            that exchange a chunk need room for that: one message on each link may have left
            without being taken. Cut the schedules (:func:`in_segments`) to show that this room
            needs to hold no more than a segment.

    Raises:
        ScheduleError: some wait for each other.
    """
    needs = _needs_of_guarded(messages, changes) if guarded else _needs(messages, changes)
    followers: dict[_Node, list[_Node]] = {}
    for node, earlier in needs.items():
        earlier.discard(node)
        for other in earlier:
            followers.setdefault(other, []).append(node)
    ready = [node for node, earlier in needs.items() if not earlier]
    # Grows while it is walked: whatever becomes ready goes to its end.
    for done in ready:
        for node in followers.get(done, ()):
            needs[node].discard(done)
            if not needs[node]:
                ready.append(node)
    if len(ready) < len(needs):
        # A message that can't leave is missing in an application, so there is one.
        stuck = min(key for key in changes if needs[key])
        raise ScheduleError(f"deadlock: {changes[stuck]} never gets its change number {stuck[2]}")
    return tuple(changes[node] for node in ready if not isinstance(node, int))


def in_segments(schedules: tuple[Schedule, ...]) -> tuple[Schedule, ...]:
    """The same with each chunk cut into segments: chunk c is c*SEGMENTS and those after it."""
    return tuple(
        replace(
            schedule,
            n_chunks=schedule.n_chunks * SEGMENTS,
            rounds=tuple(
                Round(
                    tuple(piece for send in round_.sends for piece in _pieces_sent(send)),
                    tuple(piece for recv in round_.recvs for piece in _pieces_received(recv)),
                )
                for round_ in schedule.rounds
            ),
            owned=tuple(piece for chunk in schedule.owned for piece in _pieces(chunk)),
        )
        for schedule in schedules
    )


def _pieces(chunk: int) -> range:
    return range(chunk * SEGMENTS, (chunk + 1) * SEGMENTS)


def _pieces_sent(send: Send) -> list[Send]:
    """All wait for the last segment of what they come after, and so for the whole of it."""
    after = _pieces(send.after)[-1] if send.after >= 0 else -1
    return [replace(send, chunk=piece, after=after) for piece in _pieces(send.chunk)]


def _pieces_received(recv: Recv) -> list[Recv]:
    return [replace(recv, chunk=piece) for piece in _pieces(recv.chunk)]


def _needs(messages: Sequence[Message], changes: dict[Key, Application]) -> dict[_Node, set[_Node]]:
    """What each application waits for, where a message only leaves when it is taken."""
    needs: dict[_Node, set[_Node]] = {
        key: _before(key).union(*(_prerequisites(m) for m in application.messages))
        for key, application in changes.items()
    }
    for before, after in pairwise(messages):
        if (before.source, before.target) == (after.source, after.target):
            needs[_taken_by(after)].add(_taken_by(before))
    return needs


def _needs_of_guarded(
    messages: Sequence[Message], changes: dict[Key, Application]
) -> dict[_Node, set[_Node]]:
    """What each application and each leaving message waits for.

    Of a link, one message may have left and not be taken.
    """
    needs: dict[_Node, set[_Node]] = {
        key: _before(key).union(m.number for m in application.messages)
        for key, application in changes.items()
    }
    for message in messages:
        needs[message.number] = _prerequisites(message)
        overwrites = (message.source, message.chunk, message.reads + 1)
        if overwrites in changes:
            needs[overwrites].add(message.number)
    for before, after in pairwise(messages):
        if (before.source, before.target) == (after.source, after.target):
            needs[after.number].add(_taken_by(before))
    return needs


def _walk(schedule: Schedule, sides: _Sides) -> None:
    """List one rank's moves by link, with the versions of chunks that they read and make."""
    versions = [0] * schedule.n_chunks
    # Chunks whose last application may still take a receive.
    growing: set[int] = set()
    for number, round_ in enumerate(schedule.rounds):
        for send in round_.sends:
            _check_move(schedule, send)
            growing.discard(send.chunk)
            after = _awaited(schedule, send, number, versions)
            growing.discard(send.after)
            pair = (schedule.rank, send.peer)
            placed = (number, versions[send.chunk], after, send)
            sides.sends.setdefault(pair, []).append(placed)
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


def _awaited(schedule: Schedule, send: Send, number: int, versions: list[int]) -> Key | None:
    if send.after < 0:
        return None
    if send.after >= schedule.n_chunks or not versions[send.after]:
        raise ScheduleError(
            f"rank {schedule.rank} sends chunk {send.chunk} in round {number} after chunk "
            f"{send.after}, which has not come before"
        )
    return (schedule.rank, send.after, versions[send.after])


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
    sent_in, reads, after, send = sent
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
        after=after,
    )


def _described(move: Send | Recv) -> str:
    return f"chunk {move.chunk}{' as partial sums' if move.wide else ''}"


def _taken_by(message: Message) -> Key:
    return (message.target, message.chunk, message.makes)


def _before(key: Key) -> set[_Node]:
    """The change before this one, if there is one."""
    rank, chunk, version = key
    return {(rank, chunk, version - 1)} if version > 1 else set()


def _prerequisites(message: Message) -> set[_Node]:
    """The changes at the sender that made what a message carries, and that it comes after."""
    needs: set[_Node] = set()
    if message.reads:
        needs.add((message.source, message.chunk, message.reads))
    if message.after is not None:
        needs.add(message.after)
    return needs
