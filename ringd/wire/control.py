"""Messages between a daemon and the rendezvous: CONTROL frames whose header is a map.

Each has "type"; the rest of its keys:

Daemon to rendezvous::

    join        address [host, port], version, pid, host
    attach      attempt               a trainer asks to take part
    detach      how: "goodbye" | "died" | "raised" | "gave_up", detail, epoch
    link_lost   peer, reason, epoch   a data connection ended without a goodbye
    op_failed   epoch, group, seq, error
    want_link   peer                  ask the lower rank to dial us
    heartbeat
    status      request               a client asks for the whole group's state
    state       request, state        the answer to "report"
    leave                             the daemon ends on purpose

Rendezvous to daemon::

    members     members [[rank, host, port], ...]   all daemons are here (again)
    start       epoch                 all trainers are attached
    abort       epoch, group, seq, error
    lost        rank, case, detail, epoch
    left        rank, epoch           its trainer said goodbye
    dial        peer
    waiting     joined [ranks], attached [ranks]    who is here, so that a timeout can say it
    report      request
    status      request, status
"""

from __future__ import annotations

from typing import Any

from ringd.wire.frame import Kind, encode


def message(kind: str, /, **fields: Any) -> bytes:
    """One control frame, ready to send."""
    return encode(Kind.CONTROL, {"type": kind, **fields})
