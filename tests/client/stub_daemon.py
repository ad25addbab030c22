"""A daemon's stand-in: it speaks the client protocol and plays all other ranks itself.

The other ranks always contribute what this rank contributed, so that expected values follow
from the definition of each collective. Tests script it: hold answers back, fail them, fall
silent, die.
"""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ringd.errors import RingdError
from ringd.vocabulary import OpSpec, unpack_spec
from ringd.wire import ipc

Script = Callable[["Submitted"], RingdError | str | None]
"""Decides on a submission: None: do it; an error: fail with it; "hold": keep it; "mute": never."""


@dataclass
class Submitted:
    """A SUBMIT as it came."""

    request: int
    spec: OpSpec
    timeout_s: float
    recv_timeout_s: float
    segment: int
    offset: int


class StubDaemon:
    """One trainer's daemon, on a thread.

    Attributes:
        log: all messages received, oldest first.
        segments: the memory that is mapped now, by number.
        script: see Script.
        refuse: the error to answer HELLO with.
        goodbye: the body of the GOODBYE, once it came.
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
        self.script: Script = lambda submitted: None
        self.refuse: RingdError | None = None
        self.welcomes = True
        self.reads = threading.Event()
        self.reads.set()
        self.goodbye: dict[str, Any] | None = None
        self.ended_without_goodbye = False
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
        self.send(ipc.DONE, submitted.request, None if error is None else error.to_wire())

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
            self._hello()
        elif kind == ipc.SEGMENT:
            self.segments[body[0]] = mmap.mmap(fds[0], body[1])
            os.close(fds[0])
        elif kind == ipc.DROP_SEGMENT:
            self.segments.pop(body[0]).close()
        elif kind == ipc.SUBMIT:
            self._submit(Submitted(body[0], unpack_spec(body[1]), *body[2:]))
        elif kind == ipc.POISON:
            self.poisons.append((unpack_spec(body[1]), body[2]))
        elif kind == ipc.STATUS:
            self.send(ipc.STATUS_REPLY, body[0], {"scope": body[1], "rank": self.rank})
        elif kind == ipc.GOODBYE:
            self.goodbye = body[0]
            return True
        return False

    def _hello(self) -> None:
        if self.refuse is not None:
            self.send(ipc.REFUSED, self.refuse.to_wire())
        elif self.welcomes:
            place = {"rank": self.rank, "world_size": self.world_size, "epoch": 4}
            self.send(ipc.WELCOME, place)

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

    def region(self, submitted: Submitted) -> Any:
        """The working region as a flat array (bfloat16 as float32 values can't be: as int16)."""
        spec = submitted.spec
        count = spec.region_count(self.world_size)
        if not count:
            return np.empty(0, np.uint8)
        assert submitted.offset % 8 == 0
        dtype = "int16" if spec.dtype == "bfloat16" else spec.dtype
        return np.frombuffer(self.segments[submitted.segment], dtype, count, submitted.offset)

    def _work(self, submitted: Submitted) -> None:
        spec = submitted.spec
        region = self.region(submitted)
        if not region.size:
            return
        if spec.collective in ("all_reduce", "reduce_scatter"):
            if spec.dtype == "bfloat16":
                wide = (region.astype(np.uint16).astype(np.uint32) << 16).view(np.float32)
                result = self._reduced(wide, spec.reduce_op).astype(np.float32)
                region[:] = (result.view(np.uint32) >> 16).astype(np.uint16).view(np.int16)
            else:
                region[:] = self._reduced(region, spec.reduce_op)
        elif spec.collective == "all_gather":
            parts = region.reshape(self.world_size, -1)
            own = parts[self.rank].copy()
            for r in range(self.world_size):
                parts[r] = own + own.dtype.type(r - self.rank)
        elif spec.collective == "broadcast" and spec.root != self.rank:
            region[:] = np.arange(region.size)

    def _reduced(self, values: Any, op: str) -> Any:
        if op == "sum":
            return values * values.dtype.type(self.world_size)
        if op == "prod":
            return values**self.world_size
        return values

    def _spoil(self, submitted: Submitted) -> None:
        """A failed operation leaves anything in its region."""
        region = self.region(submitted)
        if region.size:
            region[:] = 99
