"""A rank: its control connection, its links, its groups, and what comes on all of them."""

from __future__ import annotations

import os
import select
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from tests.wire.foreign.frames import (
    ABORT,
    BUSY,
    CONTROL,
    GOODBYE,
    IDLE,
    LEFT,
    MESSAGE,
    PATIENCE_S,
    Frame,
    Party,
    Wire,
    accept,
    dial,
)
from tests.wire.foreign.link import UNKNOWN, Link, Word, hear, say
from tests.wire.foreign.mail import Mail
from tests.wire.foreign.moves import SEGMENT_BYTES

JOB, SECRET, LOCALHOST = "foreign", b"a secret between two strangers", "127.0.0.1"
EAGER_BYTES = 64 * 1024

Op = tuple[int, int, int]
"""Group number, epoch, seq."""


class Group:
    """A group that we are in: its members as ranks of the world, and its count of calls."""

    def __init__(self, me: ForeignRank, number: int, ranks: list[int]) -> None:
        self.me = me
        self.number = number
        self.ranks = ranks
        self.place = ranks.index(me.rank)
        self.stream = 1 + number
        self.seq = 0
        self.mail = Mail(self)
        self.freed_by: set[int] = set()
        """Members from which no message comes any more."""


class ForeignRank:
    """A rank: higher ones it dials, and lower ones dial it."""

    def __init__(self, *, rank: int = 1, world: int = 2, job: str = JOB) -> None:
        self.rank, self.n_ranks, self.job = rank, world, job
        self.epoch = 0
        self.control: Wire | None = None
        self.links: dict[int, Link] = {}
        self.started = False
        self.frames: dict[Op, deque[Frame]] = defaultdict(deque)
        self.failures: dict[Op, dict[str, Any]] = {}
        self.status: dict[str, Any] | None = None
        self.answers_idle = BUSY
        self.accepted: list[int] = []
        """Who began a link, in order."""
        self.mends = True
        """Links that broke are resumed; else not now."""
        self.members: dict[int, tuple[str, int]] = {}
        self.running: dict[Op, int] = {}
        """Calls that have not ended, and whom they wait for."""
        self.inquired: list[Op] = []
        self.lost: list[dict[str, Any]] = []
        """What ended epochs."""
        self.free_number = 1
        self.groups: dict[int, Group] = {}
        self._listener = socket.create_server((LOCALHOST, 0))
        self._beat_at = 0.0

    @property
    def world(self) -> Group:
        return self.groups[0]

    def _party(self, role: str) -> Party:
        return Party(role, self.job, self.rank, self.n_ranks)

    def join(self, rendezvous: tuple[str, int]) -> None:
        """Take part: returns when the epoch has begun and the links to the ring are there."""
        self.control = dial(rendezvous, self._party("daemon"), SECRET, role="rendezvous")
        address = list(self._listener.getsockname()[:2])
        sizes = [SEGMENT_BYTES, EAGER_BYTES]
        who = {"version": "foreign", "pid": os.getpid(), "host": "elsewhere"}
        self._tell("join", address=address, sizes=sizes, **who)
        self._tell("attach", attempt=1)
        self.until(lambda: self.started and self._neighbours() <= set(self.links))

    def _neighbours(self) -> set[int]:
        return {(self.rank - 1) % self.n_ranks, (self.rank + 1) % self.n_ranks}

    def detach(self) -> None:
        """Our trainer says goodbye; the daemon stays."""
        groups = [[g.number, g.seq] for g in self.groups.values() if g.number]
        facts = {"epoch": self.epoch, "next_seq": self.world.seq, "groups": groups}
        self._tell("detach", how="goodbye", detail="", **facts)

    def leave(self) -> None:
        """Say goodbye, in all ways."""
        self.detach()
        for link in self.links.values():
            link.note(LEFT, [self.epoch])
            link.note(GOODBYE, [self.epoch])
        self._tell("leave")
        self.close()

    def close(self) -> None:
        self._listener.close()
        for wire in (self.control, *(link.wire for link in self.links.values())):
            if wire is not None:
                wire.sock.close()

    def _tell(self, kind: str, **fields: Any) -> None:
        assert self.control is not None
        self.control.send(CONTROL, {"type": kind, **fields})
        self._beat_at = time.monotonic() + 1.0

    def link_to(self, peer: int) -> Link:
        """The link to a peer; it is asked for, if there is none, and dialled by the lower rank."""
        if peer not in self.links:
            self._tell("want_link", peer=peer)
            self.until(lambda: peer in self.links)
        return self.links[peer]

    def hear_from_all(self) -> None:
        """Ask for the group's state: all ranks have heard what was told before."""
        self.status = None
        self._tell("status", request=1)
        self.until(lambda: self.status is not None)

    def fail(self, group: Group, op: Op, code: str, message: str) -> None:
        """An operation failed here: say so, and the verdict comes to all."""
        fields = dict(zip(("group", "epoch", "seq"), op, strict=True))
        self._report(group, op, {"code": code, "message": message, "fields": fields})

    def _report(self, group: Group, op: Op, error: dict[str, Any]) -> None:
        number, epoch, seq = op
        about = {"epoch": epoch, "group": number, "members": group.ranks, "seq": seq}
        self._tell("op_failed", error=error, **about)

    # What comes

    def until(self, condition: Callable[[], bool]) -> None:
        """Take what comes until this holds.

        Raises:
            TimeoutError: it does not for so long that it never will.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("the foreign rank waits in vain")
            self.turn()

    def turn(self) -> None:
        """Wait for what comes on any connection, and take one thing."""
        for link in self.links.values():
            if not link.up and self.mends and self.rank < link.peer:
                self._dial(link.peer)
        links = {link.wire.sock: link for link in self.links.values() if link.up}
        assert self.control is not None
        doors = [self._listener] if self.mends else []
        wait_s = max(0.0, self._beat_at - time.monotonic())
        ready = select.select([self.control.sock, *doors, *links], [], [], wait_s)[0]
        if time.monotonic() >= self._beat_at:
            self._tell("heartbeat")
        if self._listener in ready:
            self._accept()
        elif ready and ready[0] is self.control.sock:
            self._hear(self.control.read())
        elif ready:
            self._read(links[ready[0]])

    def knock(self, peer: int, word: Word) -> tuple[Wire, Word]:
        """Dial a higher rank, and say which link it is about; its answer."""
        wire = self.call_on(peer)
        say(wire, word)
        return wire, hear(wire)

    def call_on(self, peer: int) -> Wire:
        """A connection to a higher rank's listener, after the handshake."""
        return dial(self.members[peer], self._party("link"), SECRET, role="link")

    def _dial(self, peer: int) -> None:
        link = self.links.get(peer)
        known = link.position() if link is not None else Word(os.urandom(8), True, 0, 0)
        wire, word = self.knock(peer, known)
        assert word.link_id == known.link_id
        if link is None:
            assert (word.taken, word.partial) == (0, 0)
            self.links[peer] = Link(wire, peer, word.link_id)
        else:
            assert word.taken != UNKNOWN
            link.resume(wire, word)

    def _accept(self) -> None:
        try:
            wire, rank = accept(self._listener, self._party("link"), SECRET)
        except EOFError:
            return
        if rank > self.rank:
            if rank not in self.links:
                self._dial(rank)
            return
        word = hear(wire)
        link = self.links.get(rank)
        if link is not None and link.link_id == word.link_id:
            link.wire.sock.close()
            say(wire, link.position())
            link.resume(wire, word)
        elif word.fresh:
            if link is not None:
                link.wire.sock.close()
            self.links[rank] = Link(wire, rank, word.link_id)
            self.accepted.append(rank)
            say(wire, self.links[rank].position(fresh=True))
        else:
            say(wire, Word(word.link_id, False, UNKNOWN, 0))
            wire.sock.close()

    def _hear(self, frame: Frame) -> None:
        assert (frame.kind, frame.number) == (CONTROL, 0)
        said = frame.header
        if said["type"] == "start" and said["attempt"] == 1:
            self.epoch, self.started = said["epoch"], True
            self.groups = {0: Group(self, 0, list(range(self.n_ranks)))}
        elif said["type"] == "members":
            self.members = {rank: (host, port) for rank, host, port in said["members"]}
            for peer in self._neighbours() - set(self.links):
                if self.rank < peer:
                    self._dial(peer)
        elif said["type"] == "dial":
            if said["peer"] not in self.links:
                self._dial(said["peer"])
        elif said["type"] == "inquire":
            self._answer((said["group"], said["epoch"], said["seq"]), said)
        elif said["type"] == "report":
            self._tell("state", request=said["request"], state={})
        elif said["type"] == "status":
            self.status = said["status"]
        elif said["type"] == "lost":
            self.lost.append(said)
        elif said["type"] == "abort":
            self._abort((said["group"], said["epoch"], said["seq"]), said["lowest"], said["error"])

    def _answer(self, op: Op, asked: dict[str, Any]) -> None:
        """Say what we know of an operation."""
        self.inquired.append(op)
        group = self.groups.get(op[0])
        ours = group is not None and asked["lowest"] in group.ranks and op[1] == self.epoch
        next_seq = group.seq if ours and group is not None else 0
        if op[2] >= next_seq:
            state = "absent"
        elif op in self.running:
            state = "waiting"
        else:
            state = "failed" if op in self.failures else "done"
        waiting_on = [self.running[op]] if state == "waiting" else []
        numbers = {
            "entered_s": 0.0,
            "idle_s": 0.0,
            "bytes_done": 0,
            "bytes_total": 0,
            "next_seq": next_seq,
        }
        trainer = {"trainer": "running", "pid": os.getpid(), "stack": []}
        facts = {"state": state, "waiting_on": waiting_on, "flows": [], **numbers, **trainer}
        self._tell("op_answer", inquiry=asked["inquiry"], **facts)

    def _abort(self, op: Op, member: int, error: dict[str, Any]) -> None:
        group = self.groups.get(op[0])
        if group is not None and member in group.ranks:
            self.failures.setdefault(op, error)

    def _read(self, link: Link) -> None:
        try:
            frame = link.take()
        except EOFError:
            if GOODBYE not in link.said:
                raise
            self._drop(link)
            return
        if frame is not None:
            self._take(link, frame)

    def _take(self, link: Link, frame: Frame) -> None:
        if frame.kind == LEFT and frame.stream:
            assert (frame.header, frame.payload) == ([self.epoch], b"")
            self.groups[frame.stream - 1].freed_by.add(link.peer)
        elif frame.kind in (GOODBYE, LEFT, IDLE, BUSY):
            assert (frame.stream, frame.payload) == (0, b"")
            link.said.append(frame.kind)
            if frame.kind == IDLE:
                self._answer_idle(link)
        elif frame.kind == ABORT:
            epoch, seq, error = frame.header
            op = frame.stream - 1, epoch, seq
            if "verdict" in error["fields"] or op not in self.running:
                self._abort(op, link.peer, error)
            else:
                self._report(self.groups[op[0]], op, error)
        elif frame.kind >= MESSAGE:
            assert frame.header[0] == self.epoch
            self.groups[frame.stream - 1].mail.take(link, frame)
        else:
            self.frames[frame.stream - 1, frame.header[0], frame.header[1]].append(frame)

    def _answer_idle(self, link: Link) -> None:
        if self.answers_idle == BUSY:
            link.note(BUSY, [])
        else:
            link.note(GOODBYE, [self.epoch])
            self._drop(link)

    def _drop(self, link: Link) -> None:
        link.wire.sock.close()
        if self.links.get(link.peer) is link:
            del self.links[link.peer]
