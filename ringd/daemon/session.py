"""One client on the daemon's Unix socket: a trainer, or an observer that only asks for status.

One datagram is one message (see ``ringd.wire.ipc``); the caller's credentials come from the
kernel. Messages are handled in the order they were sent.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import math
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgpack

from ringd.daemon.arena import MappedArena
from ringd.daemon.nearness import Nearness
from ringd.daemon.node import Node
from ringd.daemon.trainer_state import Inspector, State, TrainerState, view
from ringd.daemon.watch import ProcessWatch
from ringd.errors import InvalidArgumentError, RendezvousError, RingdError, from_wire
from ringd.observe.dump_file import encoded
from ringd.vocabulary import agree_spec, spec_or_unknown
from ringd.wire import ipc
from ringd.wire.bounds import checked_bound
from ringd.wire.raised import Raised

MAX_QUEUED = 4096
HELLO_LIMIT_S = 5.0
MAX_DETAIL = 2000
"""Characters of what a goodbye says for people."""
_AGREE = agree_spec(0).packed
_NUMBERS = frozenset({float, int})
_PEERCRED = struct.Struct("3i")
_FD_SPACE = socket.CMSG_SPACE(array.array("i").itemsize)


class SessionOwner(Protocol):
    """Who keeps the list of sessions."""

    def session_ended(self, session: Session) -> None:
        """The session is over."""


class Session:
    """A connected client. As a trainer it is the node's :class:`Trainer`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        node: Node,
        owner: SessionOwner,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._node = node
        self._owner = owner
        self._arena = MappedArena(node.rank)
        self._truncated = False
        """The last message came without its descriptor: we have none left to take it."""
        self._queue: deque[bytes] = deque()
        self._open = True
        self._watch: ProcessWatch | None = None
        self._inspector: Inspector | None = None
        self._nearness: Nearness | None = None
        self._role = ""
        self._shift_s = 0.0
        """Our clock minus the client's."""
        self._agree = (0, 0, 0)
        """Of the last agree that took a place in the order: request, epoch, seq."""
        self._buffer = memoryview(bytearray(ipc.MAX_MESSAGE_BYTES))
        self._pack = msgpack.Packer(autoreset=True).pack
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        self.pid, self._uid, _ = _PEERCRED.unpack(credentials)
        self._hello_timer = loop.call_later(HELLO_LIMIT_S, self.end)
        loop.add_reader(self._fd, self._readable)

    # The node's view of a trainer

    def welcome(self, epoch: int, facts: dict[str, Any]) -> None:
        """All trainers are attached."""
        self._send(ipc.pack(ipc.WELCOME, {"epoch": epoch, **facts}))

    def refuse(self, error: RingdError) -> None:
        """The client can't be served; the session ends."""
        self._send(ipc.pack(ipc.REFUSED, error.to_wire()))
        self.end()

    def inspect(self, callback: Callable[[TrainerState], None]) -> None:
        """Find out what the trainer is doing; see :meth:`Inspector.inspect`."""
        if self._inspector is not None:
            self._inspector.inspect(callback)
        else:
            self._loop.call_soon(callback, TrainerState(self.pid, "unknown"))

    def process_state(self) -> State:
        """Whether the trainer runs, sleeps or is stopped, as the kernel says."""
        return view(self.pid).state

    # Reading

    def _readable(self) -> None:
        try:
            size, ancillary, flags, _ = self._sock.recvmsg_into([self._buffer], _FD_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size, ancillary, flags = 0, [], 0
        if not size:
            self._lost("closed its connection without a goodbye")
            return
        fds = _fds(ancillary) if ancillary else []
        self._truncated = bool(flags & socket.MSG_CTRUNC) and not fds
        try:
            self._handle(ipc.unpack(self._buffer[:size]), fds)
        except Exception as exc:  # whatever a client sends, the daemon goes on without it
            self._node.log.warning("client %d sent a bad message: %s", self.pid, exc)
            if isinstance(exc, RingdError):
                self._lost(f"was refused: {exc}")
            else:
                self._lost("sent a message that can't be read")
        finally:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)

    def _handle(self, message: list[Any], fds: list[int]) -> None:
        kind = message[0]
        if kind == ipc.SUBMIT and self._role == "trainer":
            _, request, spec, deadline, recv_timeout_s, segment, offset, local, bound = message
            _check_numbers(request, segment, offset, deadline or 0.0, recv_timeout_s or 0.0)
            engine = self._node.engine
            seq = engine.world.next_seq if spec == _AGREE else None
            engine.submit(
                spec,
                partial(self._arena.region, segment, offset),
                partial(self._done, request),
                deadline=deadline + self._shift_s if deadline else None,
                recv_timeout_s=recv_timeout_s or 0.0,
                local=_checked_local(local),
                bound=None if bound is None else checked_bound(bound),
            )
            if self._nearness is not None and engine.busy_poll.is_on:
                self._nearness.look()
            if seq is not None and engine.world.next_seq > seq:
                self._agree = request, engine.world.epoch, seq
        elif kind == ipc.HELLO and not self._role:
            self._hello(message[1], fds)
        elif kind == ipc.SEGMENT and self._role == "trainer" and (fds or self._truncated):
            self._segment(message[1], message[2], fds)
        elif kind == ipc.DROP_SEGMENT and self._role == "trainer":
            self._arena.drop(message[1])
        elif kind == ipc.POISON and self._role == "trainer":
            self._node.engine.endings.refuse(spec_or_unknown(message[2]), from_wire(message[3]))
        elif kind == ipc.FREE_GROUP and self._role == "trainer":
            self._node.engine.groups.free(message[1])
        elif kind == ipc.GOODBYE and self._role:
            self._goodbye(message[1])
        else:
            self._asked(message)

    def _asked(self, message: list[Any]) -> None:
        """The client asks for something that is no call of a group."""
        kind = message[0]
        request = message[1] if len(message) > 1 else 0
        if kind == ipc.STATUS and self._role:
            self._status(request, message[2])
        elif kind == ipc.DUMP and self._role:
            self._dump(request)
        elif kind == ipc.OPEN_GROUP and self._role == "trainer":
            self._done(request, self._node.engine.groups.open(message[2], message[3]), None)
        elif kind == ipc.REFORM and self._role == "trainer":
            self._reform(request, message[2])
        elif kind == ipc.NEWCOMERS and self._role == "trainer":
            self._done(request, None, self._node.newcomers())
        else:
            raise InvalidArgumentError(f"a message of kind {kind} has no place here")

    def _hello(self, hello: dict[str, Any], fds: list[int]) -> None:
        self._hello_timer.cancel()
        if self._uid not in (0, os.getuid()):
            self.refuse(
                RendezvousError(
                    f"user {self._uid} may not use this daemon's socket: run as the user "
                    "who started it"
                )
            )
        elif hello.get("version") != ipc.VERSION:
            self.refuse(
                RendezvousError(
                    f"the client speaks version {hello.get('version')} of the local protocol, this "
                    f"daemon {ipc.VERSION}; install the same ringd for both"
                )
            )
        elif hello.get("role") == "observer":
            self._role = "observer"
            self._send(ipc.pack(ipc.WELCOME, {"epoch": self._node.engine.world.epoch}))
        else:
            self._inspector = Inspector(
                self._loop,
                self.pid,
                stack_signal=0 if self._truncated else hello.get("stack_signal", 0),
                fd=fds.pop() if fds else -1,
            )
            self._role = "trainer"
            self._nearness = Nearness(self.pid, self._node.engine.links)
            self._watch = ProcessWatch(self._loop, self.pid, partial(self._lost, "ended"))
            self._node.attach(self, self._left_at_hello(hello))

    def _left_at_hello(self, hello: dict[str, Any]) -> float:
        """Learn the client's clock; what is left of the time for which it waits for the others.

        Raises:
            InvalidArgumentError: that is no clock.
        """
        timeout_s, clock = float(hello.get("timeout_s") or 60.0), hello.get("clock")
        if clock is None:
            return timeout_s
        if type(clock) is not float or not math.isfinite(clock):
            raise InvalidArgumentError("a clock is a number of seconds")
        late_s = self._loop.time() - clock
        if hello.get("time_namespace") != _time_namespace():
            self._shift_s, late_s = late_s, 0.0
        return max(timeout_s - max(late_s, 0.0), 0.001)

    def _segment(self, number: int, size_bytes: int, fds: list[int]) -> None:
        """Map it; without room for it its calls are refused, and the others of the group told."""
        if fds:
            lack = self._arena.add(number, size_bytes, fds.pop())
        else:
            lack = self._arena.lack(number, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        if lack is not None:
            self._node.log.error("segment %d of client %d: %s", number, self.pid, lack)

    def _reform(self, request: int, wish: dict[str, Any]) -> None:
        min_size, timeout_s = wish.get("min_size"), wish.get("timeout_s")
        known, heard = wish.get("epoch"), wish.get("heard")
        agree, epoch, seq = self._agree
        if type(heard) is int and agree > heard:
            self._node.engine.world.agree_unheard(epoch, seq)
        deadline = wish.get("deadline")
        until = deadline + self._shift_s if deadline else None
        self._node.reform(self, min_size, timeout_s, partial(self._done, request), known, until)

    def _status(self, request: int, scope: str) -> None:
        if scope == "group":
            future = self._node.group_status()
            future.add_done_callback(partial(self._status_came, request))
        else:
            self._send(ipc.pack(ipc.STATUS_REPLY, request, self._node.state()))

    def _status_came(self, request: int, future: asyncio.Future[dict[str, Any]]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            reply: Any = {
                "error": RingdError(str(error)).to_wire(),
                "rendezvous": self._node.absence(),
                "self": self._node.state(),
            }
        else:
            reply = future.result()
        self._send(ipc.pack(ipc.STATUS_REPLY, request, reply))

    def _dump(self, request: int) -> None:
        """Tell what the flight recorder holds; operations wait for 10 to 20 ms."""
        if self._queue:
            raise InvalidArgumentError("a dump was asked for before the last reply was read")
        data = encoded(self._node.snapshot("ringd dump").document())
        for at in range(0, len(data), ipc.DUMP_PIECE_BYTES):
            end = at + ipc.DUMP_PIECE_BYTES
            self._send(ipc.pack(ipc.DUMP_REPLY, request, end < len(data), data[at:end]))

    # Ending

    def _goodbye(self, words: dict[str, Any]) -> None:
        if self._role == "trainer":
            how = "raised" if words.get("how") == "raised" else "goodbye"
            raised = Raised.read(words.get("exception")) if how == "raised" else None
            self._role = "gone"
            detail = str(words.get("detail") or raised or "")[:MAX_DETAIL]
            self._node.detach(self, how, detail, raised)
        self._send(ipc.pack(ipc.BYE))
        self.end()

    def _lost(self, what: str) -> None:
        """The client is gone without a goodbye."""
        if self._role == "trainer":
            self._role = "gone"
            who = f"process {self.pid}" if self.pid else "a process of another pid namespace"
            self._node.detach(self, "died", f"{who} {what}")
        self.end()

    def shut_down(self) -> None:
        """The daemon ends."""
        self._send(ipc.pack(ipc.BYE))
        self.end()

    def end(self) -> None:
        """Close; the arena is unmapped."""
        if not self._open:
            return
        self._open = False
        self._hello_timer.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self._watch is not None:
            self._watch.close()
        if self._inspector is not None:
            self._inspector.close()
        if self._nearness is not None:
            self._nearness.close()
        self._sock.close()
        self._arena.close()
        self._owner.session_ended(self)

    # Writing

    def _done(self, request: int, error: RingdError | None, result: Any) -> None:
        if error is None:
            self._send(self._pack((ipc.DONE, request, None, result)))
        else:
            self._send(ipc.pack(ipc.DONE, request, error.to_wire(), result))

    def _send(self, data: bytes) -> None:
        if not self._open:
            return
        if not self._queue:
            try:
                self._sock.send(data)
                return
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._fd, self._writable)
            except OSError:
                return  # the reader sees the end
        if len(self._queue) >= MAX_QUEUED:
            self._lost("does not read its completions")
            return
        self._queue.append(data)

    def _writable(self) -> None:
        try:
            while self._queue:
                self._sock.send(self._queue[0])
                self._queue.popleft()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._queue.clear()
        self._loop.remove_writer(self._fd)

    @property
    def mapped_bytes(self) -> int:
        """Shared memory of this client that is mapped here."""
        return self._arena.mapped_bytes


def _time_namespace() -> int:
    """Which one this process is in; 0: not known."""
    try:
        return os.stat("/proc/self/ns/time").st_ino
    except OSError:
        return 0


def _check_numbers(
    request: Any, segment: Any, offset: Any, deadline: Any, recv_timeout_s: Any
) -> None:
    """Of a call.

    Raises:
        InvalidArgumentError: one of them is no number, or not one that it can be.
    """
    if not (type(request) is type(segment) is type(offset) is int):
        raise InvalidArgumentError("request, segment and offset are whole numbers")
    if type(deadline) not in _NUMBERS or math.isnan(deadline):
        raise InvalidArgumentError("a deadline is a number of seconds")
    if type(recv_timeout_s) not in _NUMBERS or not 0 <= recv_timeout_s < math.inf:
        raise InvalidArgumentError("recv_timeout_s is a number of seconds, 0 or more")


def _checked_local(local: Any) -> int | tuple[int, ...] | None:
    """What of a call is this rank's own.

    Raises:
        InvalidArgumentError: neither a whole number nor a list of such, none of them negative.
    """
    if local is None:
        return None
    if type(local) is int and local >= 0:
        return local
    if isinstance(local, list) and all(type(n) is int and n >= 0 for n in local):
        return tuple(local)
    raise InvalidArgumentError("what is this rank's own is a tag or a list of splits")


def _fds(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)
