"""A daemon's stand-in: it speaks the client protocol and plays all other ranks itself.

In reductions the other ranks contribute what this rank contributed. What they give us otherwise
counts from 100 times their rank, and a root's tensor or a message counts from zero. Tests script
it: hold answers back, fail them, fall silent, die.
"""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ringd.errors import MembershipChangedError, RingdError
from ringd.schedules.layout import Region, region_of
from ringd.vocabulary import ANY_SOURCE, IN_PARTS, OpSpec, unpack_spec
from ringd.wire import ipc

Script = Callable[["Submitted"], RingdError | str | None]
"""Decides on a submission: None: do it; an error: fail with it; "hold": keep it; "mute": never."""


@dataclass
class Submitted:
    """A SUBMIT as it came; ``timeout_s``: what was left of its deadline then."""

    request: int
    spec: OpSpec
    timeout_s: float
    recv_timeout_s: float
    segment: int
    offset: int
    local: Any
    bound: Any = None


class StubDaemon:
    """One trainer's daemon, on a thread.

    Attributes:
        log: all messages received, oldest first.
        segments: the memory that is mapped now, by number.
        groups: the world and the groups made, each with its members as ranks of the world.
        freed: the numbers of groups that were given back.
        script: see Script.
        refuse: the error to answer HELLO with.
        goodbye: the body of the GOODBYE, once it came.
        epoch: of the trainers; each successful reform begins the next one.
        reforms: the bodies of all REFORMs.
        next_place: what is said of the next epoch: any key of the answer to REFORM.
        no_reform: the error to answer REFORM with; "mute": never.
        newcomers: who waits to be let in.
        told: the last answer to a REFORM that began an epoch.
        agreement: the last agree of this epoch that was done: its request, and the answer.
    """

    def __init__(self, path: Path, *, rank: int = 1, world_size: int = 3) -> None:
        self.path = str(path)
        self.rank = rank
        self.world_size = world_size
        self.log: list[list[Any]] = []
        self.submitted: list[Submitted] = []
        self.held: list[Submitted] = []
        self.poisons: list[tuple[OpSpec, dict[str, Any]]] = []
        self.segments: dict[int, mmap.mmap] = {}
        self.groups: dict[int, tuple[int, ...]] = {0: tuple(range(world_size))}
        self.freed: list[int] = []
        self.script: Script = lambda submitted: None
        self.refuse: RingdError | None = None
        self.welcomes = True
        self.reads = threading.Event()
        self.reads.set()
        self.goodbye: dict[str, Any] | None = None
        self.ended_without_goodbye = False
        self.epoch = 4
        self.reforms: list[dict[str, Any]] = []
        self.next_place: dict[str, Any] = {}
        self.no_reform: RingdError | str | None = None
        self.newcomers: list[int] = []
        self.told: dict[str, Any] | None = None
        self.agreement: tuple[int, bool] | None = None
        self.gone = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen(4)
        self._conn: socket.socket | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="stub-daemon", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ what tests do

    def release(self, error: RingdError | None = None) -> None:
        """Answer everything that is held, in order."""
        while self.held:
            self.answer(self.held.pop(0), error)

    def answer(self, submitted: Submitted, error: RingdError | None = None) -> None:
        """End one operation."""
        if error is None:
            self._work(submitted)
            if submitted.spec.collective == "agree":
                self.agreement = submitted.request, bool(self.region(submitted)[0])
        result = self._sender(submitted) if error is None else None
        told = None if error is None else error.to_wire()
        self.send(ipc.DONE, submitted.request, told, result)

    def send(self, *message: Any) -> None:
        """Say anything."""
        assert self._conn is not None
        with contextlib.suppress(OSError):
            self._conn.send(ipc.pack(*message))

    def send_raw(self, data: bytes) -> None:
        assert self._conn is not None
        self._conn.send(data)

    def die(self) -> None:
        """Close the connection without a word."""
        assert self._conn is not None
        self._conn.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self.reads.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            if self._conn is not None:
                with contextlib.suppress(OSError):
                    self._conn.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._listener.close()

    def _unmap(self) -> None:
        """Let go of the segments; views that a script has kept hold theirs."""
        self.segments.clear()

    # ------------------------------------------------------------ the protocol

    def _serve(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._conn = conn
            with contextlib.suppress(OSError):
                self._converse(conn)
            with self._lock:
                self._conn = None
                conn.close()
            self._unmap()
            self.ended_without_goodbye = self.goodbye is None
            self.gone.set()

    def _converse(self, conn: socket.socket) -> None:
        while True:
            self.reads.wait()
            data, ancillary, _, _ = conn.recvmsg(ipc.MAX_MESSAGE_BYTES, 64)
            fds = array.array("i")
            for _, _, payload in ancillary:
                fds.frombytes(payload)
            if not data:
                return
            message = ipc.unpack(data)
            self.log.append(message)
            if self._take(message, list(fds)):
                return

    def _take(self, message: list[Any], fds: list[int]) -> bool:
        kind, *body = message
        if kind == ipc.HELLO:
            for fd in fds:
                os.close(fd)
            self._hello()
        elif kind == ipc.SEGMENT:
            self.segments[body[0]] = mmap.mmap(fds[0], body[1])
            os.close(fds[0])
        elif kind == ipc.DROP_SEGMENT:
            self.segments.pop(body[0]).close()
        elif kind == ipc.SUBMIT:
            left_s = body[2] - time.monotonic()
            self._submit(Submitted(body[0], unpack_spec(body[1]), left_s, *body[3:]))
        elif kind == ipc.POISON:
            self._poison(unpack_spec(body[1]), body[2])
        elif kind == ipc.FREE_GROUP:
            self.freed.append(body[0])
        elif kind == ipc.STATUS:
            self.send(ipc.STATUS_REPLY, body[0], {"scope": body[1], "rank": self.rank})
        elif kind == ipc.REFORM:
            self._reform(*body)
        elif kind == ipc.NEWCOMERS:
            self.send(ipc.DONE, body[0], None, self.newcomers)
        elif kind == ipc.GOODBYE:
            self.goodbye = body[0]
            return True
        return False

    def _hello(self) -> None:
        if self.refuse is not None:
            self.send(ipc.REFUSED, self.refuse.to_wire())
        elif self.welcomes:
            place = {"rank": self.rank, "world_size": self.world_size, "epoch": self.epoch}
            self.send(ipc.WELCOME, place)

    def _reform(self, request: int, wish: dict[str, Any]) -> None:
        """The epoch is over, then the next one begins, or does not."""
        self.reforms.append(wish)
        self.release(MembershipChangedError(f"epoch {self.epoch} is over", epoch=self.epoch))
        if self.no_reform == "mute":
            return
        if wish["epoch"] < self.epoch and self.told is not None:
            self.send(ipc.DONE, request, None, self.told)
            return
        if isinstance(self.no_reform, RingdError):
            self.send(ipc.DONE, request, self.no_reform.to_wire(), None)
        else:
            self.answer_reform(request)

    def answer_reform(self, request: int) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        (asked, answer), self.agreement = self.agreement or (0, None), None
        place = {
            "epoch": self.epoch,
            "rank": self.rank,
            "world_size": self.world_size,
            "lost": [],
            "joined": [],
            "completed_by_all": -1,
            "completed_by_any": -1,
            "agreed": answer if asked > self.reforms[-1]["heard"] else None,
            **self.next_place,
        }
        self.rank, self.world_size = place["rank"], place["world_size"]
        self.groups = {0: tuple(range(self.world_size))}
        self.told = place
        self.send(ipc.DONE, request, None, place)

    def _poison(self, spec: OpSpec, error: dict[str, Any]) -> None:
        self.poisons.append((spec, error))

    def _submit(self, submitted: Submitted) -> None:
        self.submitted.append(submitted)
        decision = self.script(submitted)
        if decision == "hold":
            self.held.append(submitted)
        elif decision is None:
            self.answer(submitted)
        elif isinstance(decision, RingdError):
            self._spoil(submitted)
            self.answer(submitted, decision)

    # ------------------------------------------------------------ the other ranks

    def place(self, submitted: Submitted) -> tuple[int, int]:
        """(rank, world size) in the group of an operation."""
        members = self.groups[submitted.spec.group]
        return members.index(self.rank), len(members)

    def layout(self, submitted: Submitted) -> Region:
        """Where the input and the result lie in the region."""
        spec = submitted.spec
        if spec.collective in ("send", "recv"):
            return Region(spec.count, (0, spec.count), (0, spec.count))
        return region_of(spec, *self.place(submitted), tuple(submitted.local or ()))

    def region(self, submitted: Submitted) -> Any:
        """The working region as a flat array; types that numpy lacks are shown as bits."""
        count = self.layout(submitted).count
        if not count:
            return np.empty(0, np.uint8)
        assert submitted.offset % 8 == 0
        dtype = _BITS.get(submitted.spec.dtype, submitted.spec.dtype)
        return np.frombuffer(self.segments[submitted.segment], dtype, count, submitted.offset)

    def _sender(self, submitted: Submitted) -> int | None:
        """For recv: who sent; "any" is the last rank."""
        spec = submitted.spec
        if spec.collective != "recv":
            return None
        return self.place(submitted)[1] - 1 if spec.root == ANY_SOURCE else spec.root

    def _work(self, submitted: Submitted) -> None:
        """Do the operation, with the other ranks' data as the module says."""
        spec = submitted.spec
        region = self.region(submitted)
        rank, n = self.place(submitted)
        if spec.collective == "new_group":
            self._make_group(spec, region)
        elif not region.size:
            return
        elif spec.collective in ("all_reduce", "reduce", "reduce_scatter", "agree"):
            self._reduce(spec, region, n)
        elif spec.collective in IN_PARTS:
            self._move_parts(submitted, region, rank, n)
        elif spec.collective == "all_to_all":
            self._exchange(submitted, region, rank, n)
        elif spec.collective == "recv" or (spec.collective == "broadcast" and spec.root != rank):
            region[:] = _counted(region.size, 0, region.dtype)

    def _make_group(self, spec: OpSpec, region: Any) -> None:
        members = tuple(self.groups[spec.group][member] for member in spec.counts)
        if self.rank in members:
            region[0] = number = max(self.groups) + 1
            self.groups[number] = members

    def _reduce(self, spec: OpSpec, region: Any, n: int) -> None:
        if spec.dtype == "bfloat16":
            wide = (region.astype(np.uint16).astype(np.uint32) << 16).view(np.float32)
            result = _reduced(wide, spec.reduce_op, n).astype(np.float32)
            region[:] = (result.view(np.uint32) >> 16).astype(np.uint16).view(np.int16)
        else:
            region[:] = _reduced(region, spec.reduce_op, n)

    def _move_parts(self, submitted: Submitted, region: Any, rank: int, n: int) -> None:
        """The part of another rank r in all_gather and gather counts from 100*r."""
        spec, layout = submitted.spec, self.layout(submitted)
        gathers = spec.collective in ("all_gather", "gather")
        if gathers and layout.result[1]:
            own = region[layout.load[0] : sum(layout.load)].copy()
            at = 0
            for r, count in enumerate(spec.part_counts(n)):
                region[at : at + count] = own if r == rank else _counted(count, r, own.dtype)
                at += count
        elif spec.collective == "scatter" and rank != spec.root:
            region[:] = _counted(region.size, 0, region.dtype)

    def _exchange(self, submitted: Submitted, region: Any, rank: int, n: int) -> None:
        """What rank r has for us counts from 100*r; our own part must be there already."""
        counts = [rows * submitted.spec.count for rows in submitted.local[n:]]
        at = sum(rows * submitted.spec.count for rows in submitted.local[:n])
        for r, count in enumerate(counts):
            if r != rank:
                region[at : at + count] = _counted(count, r, region.dtype)
            at += count

    def _spoil(self, submitted: Submitted) -> None:
        """A failed operation leaves anything in its region."""
        region = self.region(submitted)
        if region.size:
            region[:] = np.full(region.size, 99).astype(region.dtype)


_BITS = {
    "bfloat16": "int16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2fnuz": "uint8",
}


def _counted(count: int, rank: int, dtype: Any) -> Any:
    return (np.arange(count) + 100 * rank).astype(dtype)


def _reduced(values: Any, op: str, n: int) -> Any:
    """All of ``n`` ranks contribute the same."""
    if op in ("sum", "premul_sum") and values.dtype != bool:
        return values * values.dtype.type(n)
    if op == "prod" and values.dtype != bool:
        return values**n
    if op == "bxor":
        return values if n % 2 else values ^ values
    return values
