"""Messages between a daemon and the rendezvous: CONTROL frames whose header is a map.

Each has "type"; the rest of its keys:

Daemon to rendezvous::

    join        address [host, port], version, pid, host, sizes [segment, eager] in bytes,
                claim {epoch, members [ranks], running, n_verdicts, lost [fields of "lost", ...],
                addresses [[rank, host, port], ...]}
                or nil: what a daemon that comes back knows of its epoch
    attach      attempt               a trainer asks to take part; attempts count from 1
    detach      how: "goodbye" | "died" | "raised" | "gave_up", detail, next_seq,
                groups [[group, next_seq], ...] (the world's is next_seq), epoch (0: not started),
                exception {type, message, file, line} | nil   with "raised"
    reform      epoch, attempt, min_size, timeout_s, cut_off [ranks], last_done, unbroken,
                agreed [seq, value] | nil   its trainer asks for the next epoch; how far it came
    link_lost   peer, reason, epoch, own   a data connection ended without a goodbye
    op_failed   epoch, group, members [ranks], seq, error     how it ended here; of a timeout all
                                      are asked before there is a verdict
    op_answer   inquiry, state, entered_s, idle_s, waiting_on [ranks], bytes_done, bytes_total,
                trainer, pid, stack [frames], next_seq,
                flows [[peer, owed, received, withheld, quiet_s], ...] in bytes and seconds,
                unreached [[peer, text], ...] | missing   whom it has dialled in vain so far,
                waits [{op, group, members, seq} or {op, group, members, number, tag, peers}, ...]
                | missing   calls in flight on a rank that has not made the one asked about,
                made_s | missing   how long ago the other side of a message was made that is done
                or failed
    post_failed epoch, group, members [ranks], number, op, tag, peers [[rank, count], ...]
                                      a send or receive came to its deadline; count: what came from
                                      that rank, or the send's number; -1: they were matched
    want_link   peer                  ask the lower rank to dial us
    heartbeat                         answered with the same
    status      request               a client asks for the whole group's state
    state       request, state        the answer to "report"
    leave                             the daemon ends on purpose

Rendezvous to daemon::

    members     members [[rank, host, port], ...], embedded (the rank whose daemon holds the
                rendezvous; nil: none does)         all daemons are here (again)
    heartbeat
    start       epoch, attempt, members [ranks], last {epoch, members, survivors, completed_by_all,
                completed_by_any, agreed [[seq, value], ...]} | nil
                                      an epoch begins; attempt: the one that takes part
    changed     epoch, rank           it is over: that rank asked for the next one
    not_reformed attempt, text, quorum, epoch, here [ranks], missing [ranks]   answers "reform"
    inquire     inquiry, epoch, group, lowest, seq   lowest: the lowest rank of that group
    inquire_post inquiry, epoch, group, lowest, rank, number, op, tag, peers   answered likewise
    post_verdict epoch, number, verdict, case, culprits [ranks], link [a, b] | nil, text, advice,
                stacks {rank: [frames]}, rank, chain [ranks]   the verdict on a message, for
                                      who asked (rank), and its other side if that had begun
    abort       epoch, group, lowest, seq, error     the verdict, for all ranks
    lost        rank, case, detail, epoch, verdict, link [a, b] | nil (a lost b),
                exception {type, message, file, line} | nil   why the epoch is over
    left        rank, epoch, next_seq, groups       its trainer said goodbye before those calls
    dial        peer
    waiting     joined [ranks], attached [ranks], running [ranks], epoch    who is here, waits to
                be let in, and takes part in that epoch
    refused     text                  the group can't form as it is
    report      request
    status      request, status

An observer sends "status" and receives "status", or "standing" and receives "standing" with
enough, epoch, seat: how good this rendezvous is, if there should be two.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ringd.wire.frame import FrameError, Kind, encode

T = TypeVar("T")


def message(kind: str, /, **fields: Any) -> bytes:
    """One control frame, ready to send."""
    return encode(Kind.CONTROL, {"type": kind, **fields})


def read(kind: int, header: Any) -> tuple[str, dict[str, Any]]:
    """The type of a control frame, and its fields.

    Raises:
        FrameError: not a control frame, or not a map with "type".
    """
    if kind != Kind.CONTROL:
        raise FrameError(f"a frame of kind {kind} may not come on a control connection")
    if not isinstance(header, dict) or not isinstance(header.get("type"), str):
        raise FrameError("a control message is a map with a type")
    return header["type"], header


def field(fields: dict[str, Any], name: str, kind: type[T]) -> T:
    """The field ``name``, which must be exactly of type ``kind`` (True is not a number).

    Raises:
        FrameError: it is missing, or of another type.
    """
    value = fields.get(name)
    if type(value) is not kind:
        raise FrameError(f"{fields.get('type')}: the field {name!r} must be {kind.__name__}")
    return value


def int_list(fields: dict[str, Any], name: str) -> list[int]:
    """The field ``name``, a list of numbers that are not negative: ranks, sizes.

    Raises:
        FrameError: it is missing, or something else.
    """
    numbers = field(fields, name, list)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise FrameError(f"{fields.get('type')}: the field {name!r} must hold whole numbers")
    return numbers
