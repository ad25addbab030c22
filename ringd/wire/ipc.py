"""Messages between a client and its daemon: one msgpack array per SEQPACKET datagram.

Client to daemon::

    [HELLO, {"version", "role": "trainer" | "observer", "timeout_s", "clock", "time_namespace",
             "stack_signal"}]                        + one file descriptor with a stack_signal
    [SEGMENT, segment, size_bytes]                   + one file descriptor
    [DROP_SEGMENT, segment]
    [SUBMIT, request, spec, deadline, recv_timeout_s, segment, offset, local, bound]
    [POISON, request, spec, error]                   the call was refused locally
    [FREE_GROUP, group]                              no call on it follows
    [OPEN_GROUP, request, group, ranks]              members agreed on the number elsewhere
    [STATUS, request, scope]                         scope: "daemon" | "group"
    [DUMP, request]                                  what the flight recorder holds
    [REFORM, request, {"min_size", "timeout_s", "deadline", "epoch", "heard"}]
                                                     the next epoch is wanted; this one is over
    [NEWCOMERS, request]                             who waits to be let in
    [GOODBYE, {"how": "closed" | "raised", "detail": str,
               "exception": {"type", "message", "file", "line"}}]

Daemon to client::

    [WELCOME, {...}]                                 all trainers are attached
    [REFUSED, error]
    [DONE, request, error | None, result]            the region is the client's again
    [STATUS_REPLY, request, status]             without a rendezvous {"error", "rendezvous", "self"}
    [DUMP_REPLY, request, more, bytes]               a piece of the dump, which is JSON
    [BYE]                                            the daemon ends

``spec`` is :attr:`OpSpec.packed`; ``segment`` and ``offset`` say where the working region
starts (segment 0: none, for an empty region; see ``ringd.schedules.layout`` for what lies in it).
On ``stack_signal`` the main thread writes its Python stack to the memfd that comes with it
(faulthandler; absent: it does not). ``exception``, with "raised", is what ended the program's work.
Times are seconds; None or 0: the default. A ``deadline`` is absolute, on the client's
CLOCK_MONOTONIC: it says the same however late the daemon reads it. HELLO's ``clock`` is that clock
when it was sent (``timeout_s`` counts from there), ``time_namespace`` the inode of
/proc/self/ns/time (0: not known): in another one than the daemon's the difference of the clocks is
taken from ``clock``. ``bound`` is what the deadline was: [seconds as asked for, whose setting], see
``ringd.wire.bounds``; None: not known. REFORM's ``epoch`` is the last one that the program was told
of, ``heard`` the request of the last agree of the world whose answer it has got (0: none).
``local`` is what may differ between ranks: of all_to_all the rows for each rank and then from each
rank, of send and recv the tag, else None. ``result`` is the sender's rank for recv; of REFORM a map
like WELCOME's and "lost", "joined" [ranks], "completed_by_all", "completed_by_any", "agreed" (bool
or None); of NEWCOMERS ranks; else None.
OPEN_GROUP's ``ranks`` are in the order of the group.
"""

from __future__ import annotations

from typing import Any

import msgpack

VERSION = 2
MAX_MESSAGE_BYTES = 128 * 1024
DUMP_PIECE_BYTES = 64 * 1024

HELLO, SEGMENT, DROP_SEGMENT, SUBMIT, POISON, STATUS, GOODBYE, FREE_GROUP, DUMP = range(1, 10)
REFORM, NEWCOMERS, OPEN_GROUP = range(10, 13)
WELCOME, REFUSED, DONE, STATUS_REPLY, BYE, DUMP_REPLY = range(65, 71)

_UNREADABLE = (ValueError, TypeError, ArithmeticError, msgpack.UnpackException)
"""What msgpack raises. Not every Exception: a signal handler may raise one here."""
_READ_BYTES = 4096
# Made once: msgpack.packb takes a buffer of 1 MiB from the system each time.
_pack = msgpack.Packer(autoreset=True).pack


def pack(*message: Any) -> bytes:
    """One datagram."""
    data: bytes = _pack(message)
    return data


def unpack(data: bytes | memoryview, *, followed: bool = False) -> list[Any]:
    """The message in a datagram.

    Args:
        followed: anything may follow the message.

    Raises:
        ValueError: not an array that begins with a number.
        MemoryError: there is none for it.
    """
    try:
        message = _first(data) if followed else msgpack.unpackb(data)
    except _UNREADABLE as exc:
        raise ValueError(f"not a ringd message: {exc}") from None
    if not isinstance(message, list) or not message or type(message[0]) is not int:
        raise ValueError("not a ringd message: an array that begins with its kind is wanted")
    return message


def _first(data: bytes | memoryview) -> Any:
    unpacker = msgpack.Unpacker(read_size=min(len(data), _READ_BYTES))  # by default 1 MiB
    unpacker.feed(data)
    return unpacker.unpack()
