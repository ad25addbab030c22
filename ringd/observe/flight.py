"""The flight recorder: the last operations of one rank, kept in memory and told as JSON.

Recording one that ended well appends a tuple; whatever costs more is done when somebody asks for a
dump, or when an operation failed. docs/flight-recorder.md describes a dump's fields.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ringd.errors import PeerLostError
from ringd.observe.outcomes import DONE, FAILED, IN_FLIGHT
from ringd.vocabulary import ANY_SOURCE, OpSpec

if TYPE_CHECKING:
    from ringd.engine.engine import Engine
    from ringd.engine.group import Group
    from ringd.engine.message import Post
    from ringd.engine.operation import Operation
    from ringd.errors import RingdError

FORMAT, VERSION = "ringd-flight", 1
KEPT_OPERATIONS = 1000
KEPT_EPOCHS = 64
MAX_TEXT = 500
"""Characters of an error's message, or of a call, in a dump."""

LEFT_THE_JOB = "it left the job"
"""The case of an error on a rank that had said goodbye."""

Facts = dict[str, Any]
Kept = tuple[Any, ...]
"""A function that tells of it, and its arguments: see ``_collective`` and ``_message``."""


class FlightRecorder:
    """The last operations of a rank. Runs on the engine's thread only.

    Args:
        kept: how many operations it remembers.
        clock_ns: the clock of ``Operation.started_ns``.
    """

    def __init__(
        self, kept: int = KEPT_OPERATIONS, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._kept: deque[Kept] = deque(maxlen=kept)
        self._clock_ns = clock_ns
        self._epochs: deque[tuple[int, int, int | None]] = deque(maxlen=KEPT_EPOCHS)
        self._ends: dict[int, RingdError] = {}
        self.recorded = 0

    # Recording

    def record(self, op: Operation, error: RingdError | None) -> None:
        """A collective ended. About 0.5 µs when it ended well."""
        self.recorded += 1
        plan = op.plan
        self._kept.append(
            (
                _collective,
                op.spec,
                op.group.ranks,
                op.epoch,
                op.seq,
                plan.schedule.algorithm,
                op.started_ns,
                op.ended_ns,
                plan.recv_bytes if error is None else _failure(op, error),
            )
        )

    def record_void(self, group: Group, spec: OpSpec, seq: int, error: RingdError) -> None:
        """A call took its place in the order and ended at once: refused, or over before it came."""
        self.recorded += 1
        now = self._clock_ns()
        outcome = {"state": FAILED, "error": _error(error), "waiting_on": []}
        self._kept.append(
            (_collective, spec, group.ranks, group.epoch, seq, None, now, now, outcome)
        )

    def record_post(self, post: Post, error: RingdError | None) -> None:
        """A send or a receive ended."""
        self.recorded += 1
        self._kept.append(
            (
                _message,
                post.spec,
                post.box.group.ranks,
                post.box.epoch,
                post.peer,
                post.tag,
                post.at,
                int(post.started * 1e9),
                self._clock_ns(),
                post.size_bytes if error is None else _failed_post(post, error),
            )
        )

    def begin_epoch(self, epoch: int, trainer_pid: int | None, ended: RingdError | None) -> None:
        """An epoch begins; ``ended`` says why the one before is over, if something ended it."""
        if self._epochs and ended is not None:
            self._ends[self._epochs[-1][0]] = ended
        self._epochs.append((epoch, self._clock_ns(), trainer_pid))
        oldest = self._epochs[0][0]
        self._ends = {known: why for known, why in self._ends.items() if known >= oldest}

    # Telling

    def snapshot(self, engine: Engine, reason: str, facts: Facts) -> Snapshot:
        """What is known now, for another thread to put into words.

        Args:
            engine: whose operations these are.
            reason: why somebody wants to know.
            facts: what the rank's surroundings add to the head.
        """
        now_ns = self._clock_ns()
        live = [_live(op) for op in engine.live]
        live += [_live_post(post) for post in engine.mail.live]
        world = engine.world
        head = {
            "format": FORMAT,
            "version": VERSION,
            "rank": engine.rank,
            "world_size": engine.world_size,
            "host": socket.gethostname(),
            "daemon_pid": os.getpid(),
            "trainer_pid": self._epochs[-1][2] if self._epochs else None,
            "reason": reason,
            "epoch": world.epoch,
            "broken": _ending(world.broken),
            "lost": _loss(world.broken),
            "groups": [_group(group) for group in engine.groups],
            "links": {
                str(peer): {
                    "sent_bytes": link.sent_bytes,
                    "received_bytes": link.received_bytes,
                    "sent_frames": link.sent_frames,
                    "resumed": link.resumed,
                }
                for peer, link in sorted(engine.links.items())
            },
            "recorded": self.recorded,
            "forgotten": self.recorded - len(self._kept),
        }
        return Snapshot(
            {**head, **facts},
            list(self._kept),
            live,
            list(self._epochs),
            dict(self._ends),
            now_ns,
            time.time_ns() - now_ns,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A rank's operations at one moment; it refers to nothing that changes.

    Attributes:
        to_wall_ns: wall clock minus monotonic clock, when it was taken.
    """

    head: Facts
    kept: list[Kept]
    live: list[Facts]
    epochs: list[tuple[int, int, int | None]]
    ends: dict[int, RingdError]
    taken_ns: int
    to_wall_ns: int

    def document(self) -> Facts:
        """The dump as plain data. About 10 µs per operation; may run on any thread."""
        operations = [tell(*what) for tell, *what in self.kept] + self.live
        groups = {(g["epoch"], g["group"]): g for g in self.head["groups"]}
        for operation in operations:
            ranks = operation.pop("ranks")
            key = (operation["epoch"], operation["group"])
            if key not in groups:  # of an earlier epoch, or freed
                groups[key] = _past_group(*key, ranks)
            for name in ("entered", "ended"):
                operation[f"{name}_at"] = self._wall_s(operation[f"{name}_ns"])
        return {
            **self.head,
            "taken_ns": self.taken_ns,
            "taken_at": self._wall_s(self.taken_ns),
            "groups": list(groups.values()),
            "epochs": [
                {"epoch": epoch, "began_at": self._wall_s(began_ns), "trainer_pid": pid,
                 "ended": _ending(self.ends.get(epoch)), "lost": _loss(self.ends.get(epoch))}
                for epoch, began_ns, pid in self.epochs
            ],
            "operations": operations,
        }  # fmt: skip

    def _wall_s(self, at_ns: int | None) -> float | None:
        return None if at_ns is None else round((at_ns + self.to_wall_ns) / 1e9, 6)


# How it went, as far as it must be noted at once


def _error(error: RingdError) -> Facts:
    return {"code": error.code, "message": error.message[:MAX_TEXT]}


def _ending(error: RingdError | None) -> str | None:
    """Why an epoch is over."""
    return None if error is None else error.message[:MAX_TEXT]


def _loss(error: RingdError | None) -> Facts | None:
    """Who was lost, if that ended the epoch; a goodbye is no loss."""
    if not isinstance(error, PeerLostError) or error.fields.get("case") in (None, LEFT_THE_JOB):
        return None
    told = error.fields
    return {
        "rank": told["rank"],
        "case": told["case"],
        "detail": str(told.get("detail", ""))[:MAX_TEXT],
        "file": told.get("file", ""),
        "line": told.get("line", 0),
        "partial": bool(told.get("partial")),
    }


def _failure(op: Operation, error: RingdError) -> Facts:
    return {"state": FAILED, "error": _error(error), **op.progress(), "peers": _peers(op)}


def _failed_post(post: Post, error: RingdError) -> Facts:
    return {"state": FAILED, "error": _error(error), **_progress(post)}


def _peers(op: Operation) -> Facts:
    """Segments that passed, of how many, for the peers with which it is not finished."""
    return {
        str(peer): {
            "sent": [flow.send_i, flow.n_sends],
            "received": [flow.recv_i, len(flow.flow.recvs)],
        }
        for peer, flow in sorted(op.flows.items())
        if flow.owed() or flow.send_i < flow.n_sends
    }


def _progress(post: Post) -> Facts:
    facts = post.facts()
    return {name: facts[name] for name in ("waiting_on", "bytes_done", "bytes_total")}


def _outcome(how: int | Facts) -> Facts:
    """The size says everything of what went well."""
    if isinstance(how, int):
        how = {"state": DONE, "bytes_done": how, "bytes_total": how}
    return {"error": None, "waiting_on": [], "bytes_done": 0, "bytes_total": 0, **how}


# One operation in words


@lru_cache(maxsize=256)
def _call(spec: OpSpec) -> Facts:
    """What was asked for; a loop asks for the same things again and again."""
    return {
        "group": spec.group,
        "op": spec.collective,
        "call": str(spec)[:MAX_TEXT],
        "digest": digest(spec.packed),
    }


def digest(packed: bytes) -> str:
    """A fingerprint in 16 hexadecimal digits."""
    return blake2b(packed, digest_size=8).hexdigest()


def _collective(
    spec: OpSpec,
    ranks: tuple[int, ...],
    epoch: int,
    seq: int,
    algorithm: str | None,
    entered_ns: int,
    ended_ns: int | None,
    how: int | Facts,
) -> Facts:
    return {
        **_call(spec),
        "ranks": ranks,
        "epoch": epoch,
        "seq": seq,
        "algorithm": algorithm,
        "entered_ns": entered_ns,
        "ended_ns": ended_ns,
        **_outcome(how),
    }


def _message(
    spec: OpSpec,
    ranks: tuple[int, ...],
    epoch: int,
    peer: int,
    tag: int,
    at: tuple[int, int],
    entered_ns: int,
    ended_ns: int | None,
    how: int | Facts,
) -> Facts:
    other, number = at
    return {
        **_call(spec),
        "ranks": ranks,
        "epoch": epoch,
        "seq": None,
        "peer": other if peer == ANY_SOURCE and other >= 0 else peer,
        "tag": tag,
        "number": number,
        "entered_ns": entered_ns,
        "ended_ns": ended_ns,
        **_outcome(how),
    }


def _live(op: Operation) -> Facts:
    algorithm = op.plan.schedule.algorithm
    how = {"state": IN_FLIGHT, **op.progress(), "peers": _peers(op)}
    return _collective(
        op.spec, op.group.ranks, op.epoch, op.seq, algorithm, op.started_ns, None, how
    )


def _live_post(post: Post) -> Facts:
    how = {"state": IN_FLIGHT, **_progress(post)}
    ranks, entered_ns = post.box.group.ranks, int(post.started * 1e9)
    return _message(
        post.spec, ranks, post.box.epoch, post.peer, post.tag, post.at, entered_ns, None, how
    )


def _group(group: Group) -> Facts:
    return {
        "epoch": group.epoch,
        "group": group.number,
        "ranks": list(group.ranks),
        "next_seq": group.next_seq,
        "left": {str(rank): seq for rank, seq in group.left.items()},
    }


def _past_group(epoch: int, number: int, ranks: tuple[int, ...]) -> Facts:
    return {"epoch": epoch, "group": number, "ranks": list(ranks), "next_seq": None, "left": {}}
