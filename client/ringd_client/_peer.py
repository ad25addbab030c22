"""What can be seen of the daemon's process when it does not answer, without its help."""

from __future__ import annotations

import select
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

STOPPED, STARVED, UNKNOWN = "stopped", "starved", "unknown"
_CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid and gid of who listens at the other end."""
_GONE: Final = select.POLLHUP | select.POLLRDHUP | select.POLLERR | select.POLLNVAL
_STATES: Final = {"T": STOPPED, "t": STOPPED, "R": STARVED, "S": STARVED, "D": STARVED}
"""By the letters of proc(5); who is none of these says nothing."""


class Peer(NamedTuple):
    """The process at the other end of a Unix socket.

    Attributes:
        gone: its end is closed.
        pid: its number here; 0: it has none in this PID namespace.
        state: STOPPED (by a signal or a debugger), STARVED (it runs, or would if it could), or
            UNKNOWN.
    """

    gone: bool = False
    pid: int = 0
    state: str = UNKNOWN


def look_at(sock: socket.socket) -> Peer:
    """Who is at the other end; nothing is raised, and nothing read from the socket."""
    try:
        poll = select.poll()
        poll.register(sock, select.POLLRDHUP)
        if any(events & _GONE for _, events in poll.poll(0)):
            return Peer(gone=True)
        told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except (OSError, ValueError):  # our own end is closed
        return Peer(gone=True)
    pid: int = _CREDENTIALS.unpack(told)[0]
    return Peer(pid=pid, state=_state_of(pid))


def _state_of(pid: int) -> str:
    if not pid:
        return UNKNOWN
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # there is no /proc, or none that shows it
        return UNKNOWN
    return _STATES.get(stat.rpartition(")")[2].strip()[:1], UNKNOWN)
