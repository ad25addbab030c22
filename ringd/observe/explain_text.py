"""A report of the flight recorders in one paragraph: where ranks part, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringd.observe.explain_report import (
    BEHIND,
    ERROR,
    LEFT,
    MISMATCH,
    MISSING,
    NEVER,
    NO_DUMP,
    OLDER,
    UNFINISHED,
    Entry,
    Message,
    Parting,
    Report,
)
from ringd.observe.outcomes import DONE, FAILED, IN_FLIGHT
from ringd.observe.records import Loss, Op, RankDump
from ringd.vocabulary import ANY_SOURCE, RECV, ranks_text


def paragraph(report: Report) -> str:
    """What happened; its last sentence says what to do."""
    parts = [_scope(report)]
    headline, doing = report.headline, ""
    if report.loss is not None and report.loss_came_first:
        parts.append(f"The epoch ended when {_lost(report.loss)}.")
    if headline is not None and not headline.overcome:
        what, doing = _TELL[headline.kind](headline, report)
        parts.append(f"{_before(headline)} {what}")
    elif report.messages:
        what, doing = _of_message(_first(report.messages), report)
        parts.append(f"No collective is open. {what}")
    elif headline is not None:
        parts.append(
            f"All agree at the end. Earlier, {_place(headline)} went wrong "
            f"({headline.kind}): {_causes(headline.entries) or _calls(headline)}."
        )
        doing = "There is nothing to do now; the list below has what was overcome."
    elif report.loss is not None:
        parts.append("No call was in flight: all that they remember agrees.")
    elif report.ended:
        parts.append(f"All that they remember agrees, and the epoch is over: {report.ended}")
        doing = "Do what that says."
    else:
        parts.append("All that they remember agrees, and nothing is in flight.")
        doing = "If a rank seems to hang, it does so outside of ringd: look at its own stack."
    if report.chain and report.chain[-1] in _unknown(report):
        doing = f"Dump {ranks_text(report.chain[-1:])} too, and explain all together."
    if report.loss is not None and report.loss_came_first:
        doing = _see(report.loss, report)
    elif report.loss is not None:
        parts.append(f"After that {_lost(report.loss)}, which ended the epoch.")
    parts += [_waiting(report), _incomplete(report), _went_on(report), doing]
    return " ".join(part for part in parts if part)


def seconds(span_s: float) -> str:
    """ "0.73 ms", "1.25 s", "1,204 s"."""
    if abs(span_s) < 1.0:
        return f"{span_s * 1e3:.2f} ms"
    return f"{span_s:,.0f} s" if abs(span_s) >= 100 else f"{span_s:.3g} s"


def _scope(report: Report) -> str:
    text = (
        f"Job {report.job_id}, epoch {report.epoch}, dumps of {len(report.dumps)} of "
        f"{report.world_size} ranks."
    )
    if report.others:
        others = ", ".join(f"{job} ({size} ranks)" for job, size in report.others)
        text += f" There are dumps of other jobs too, which are older and left out: {others}."
    return text


def _where(parting: Parting) -> str:
    return f" of group {parting.group}" if parting.group else ""


def _place(parting: Parting) -> str:
    return f"operation {parting.seq}{_where(parting)}"


def _before(parting: Parting) -> str:
    if parting.seq == 0:
        return f"Ranks part at the first operation{_where(parting)}:"
    return f"Ranks part at {_place(parting)}:"


# A rank that was lost


def _lost(loss: Loss) -> str:
    """ "rank 1 was lost: trainer raised (ValueError: no (train.py:5))"."""
    detail = f" ({loss.detail})" if loss.detail else ""
    view = "; that is one rank's own view, not the rendezvous's" if loss.partial else ""
    return f"rank {loss.rank} was lost: {loss.case}{detail}{view}"


def _see(loss: Loss, report: Report) -> str:
    """What to look at; its process is gone."""
    who = f"rank {loss.rank}"
    host = next((f" on {dump.host}" for dump in report.dumps if dump.rank == loss.rank), "")
    at = f" at {loss.place}" if loss.place else ""
    if loss.case == "trainer raised" and loss.exit_status is not None:
        status = loss.exit_status
        how = f"exited with code {status}" if status.lstrip("-").isdecimal() else f"said {status!r}"
        return (
            f"See why the program of {who}{host} called sys.exit(){at} ({how}): that prints no "
            "traceback."
        )
    if loss.case == "trainer raised":
        return f"Mend what the program of {who}{host} raised{at}; the traceback is in its log."
    if loss.case == "trainer died":
        return (
            f"See why that process of {who}{host} ended: its log and exit code, and the kernel's "
            "log if something killed it (lack of memory, for one)."
        )
    return f"See the daemon of {who}{host} and its log, that host, and the links to it."


def _went_on(report: Report) -> str:
    if report.last_epoch <= report.epoch:
        return ""
    return f"The job went on after it: epoch {report.last_epoch}, its last here, has no failure."


# Collectives, by the kind of parting; each gives what happened and what to do


def _mismatch(parting: Parting, report: Report) -> tuple[str, str]:
    doing = (
        "Make the same calls with the same arguments in the same order on every rank: see which "
        f"way the program took to {_place(parting)} on each."
    )
    return f"{_calls(parting)}.", doing


def _calls(parting: Parting) -> str:
    """ "rank 1 called X, ranks 0 and 2 called Y"; fewest ranks first."""
    by_call: dict[str, list[int]] = {}
    for entry in parting.entries:
        if entry.op is not None:
            by_call.setdefault(entry.op.call, []).append(entry.rank)
    calls = sorted(by_call.items(), key=lambda item: (len(item[1]), item[1]))
    return ", ".join(f"{ranks_text(ranks)} called {call}" for call, ranks in calls)


def _missing(parting: Parting, report: Report) -> tuple[str, str]:
    absent = [entry for entry in parting.entries if entry.state in (NEVER, LEFT)]
    entered = parting.ranks(DONE, FAILED, IN_FLIGHT)
    dumps = {dump.rank: dump for dump in report.dumps}
    told = "; ".join(_absence(entry, dumps, report.instead.get(entry.rank)) for entry in absent)
    what = f"{ranks_text(entered)} entered ({_call(parting)}), {told}."
    if cause := _cause_told(parting, report):
        what += f" It failed on {ranks_text(parting.ranks(FAILED))}: {cause}"
    if all(entry.state == LEFT and entry.rank not in report.instead for entry in absent):
        return what, "Make all ranks end after the same number of calls."
    if report.circle:
        return what, _untangle(report)
    roots = report.roots or parting.ranks(NEVER, LEFT)  # all lead back, and it is over
    stayed = [rank for rank in roots if rank not in parting.ranks(LEFT)]
    if not _still_there(stayed, report):
        return what, f"See the log of {ranks_text(stayed or roots)}."
    see = "Do what the error says, and see" if cause else "See"
    return what, f"{see} what it does instead: {_look_at(stayed, report)}."


def _untangle(report: Report) -> str:
    ranks = sorted(set(report.chain))
    where = f" See where each is: {_look_at(ranks, report)}." if ranks else ""
    return (
        "Let one of them go first: begin messages that cross with isend and irecv, or batch_p2p, "
        f"before any rank waits, and make calls in one order on all.{where}"
    )


def _absence(entry: Entry, dumps: Mapping[int, RankDump], instead: Op | None) -> str:
    """``instead``: what it has in flight, or had."""
    if instead is not None:
        how = "has" if instead.state == IN_FLIGHT else "had"
        return f"rank {entry.rank} never did: it {how} this in flight: {_named(instead)}"
    if entry.state == LEFT:
        return f"rank {entry.rank} had said goodbye before"
    last, dump = entry.last, dumps[entry.rank]
    if last is None:
        return f"rank {entry.rank} never did, and has made no call on this group"
    ago = seconds(dump.taken_at - (last.ended_at or dump.taken_at))
    return (
        f"rank {entry.rank} never did: its last operation there, {last.seq} ({last.call}), ended "
        f"{ago} before its dump"
    )


def _still_there(ranks: Iterable[int], report: Report) -> list[RankDump]:
    """The dumps of those of them that were not lost."""
    lost = report.loss.rank if report.loss is not None else None
    wanted = set(ranks) - {lost}
    return [dump for dump in report.dumps if dump.rank in wanted]


def _look_at(ranks: Iterable[int], report: Report) -> str:
    """Where the processes are of those of them that were not lost."""
    return "; ".join(map(_process, _still_there(ranks, report)))


def _process(dump: RankDump) -> str:
    who = f"rank {dump.rank} on {dump.host}"
    if dump.trainer_pid is None:
        return f"{who} has no trainer"
    pid = dump.trainer_pid
    return f"{who}, process {pid} (its log; while it still runs: py-spy dump --pid {pid})"


def _failed(parting: Parting, report: Report) -> tuple[str, str]:
    others = parting.ranks(IN_FLIGHT)
    more = f" It is still in flight on {ranks_text(others)}." if others else ""
    if late := parting.late():
        behind = max(e.op.entered_at for e in parting.entries if e.op) - parting.began_at
        more += (
            f" Entered when it had failed: {ranks_text(late)}, {seconds(behind)} after the first."
        )
    what = (
        f"all whose dumps are here made the same call ({_call(parting)}), and it failed on "
        f"{ranks_text(parting.ranks(FAILED))}: {_cause_told(parting, report)}{more}"
    )
    return what, "Do what the error says; see the log of the rank that it names."


def _cause_told(parting: Parting, report: Report) -> str:
    """The error; its code is enough where the loss that it tells of was told already."""
    causes = _causes(parting.entries)
    return f"{causes.partition(':')[0]}." if report.loss_came_first else causes


def _causes(entries: Iterable[Entry]) -> str:
    """The error's text, once."""
    failed = [e.op for e in entries if e.op is not None and e.op.state == FAILED]
    first = min(failed, key=lambda op: op.ended_at or 0.0, default=None)
    return "" if first is None else f"{first.error}: {first.message}"


def _unfinished(parting: Parting, report: Report) -> tuple[str, str]:
    flying = [e for e in parting.entries if e.op is not None and e.state == IN_FLIGHT]
    slowest = min(flying, key=lambda e: _share(e.op))
    assert slowest.op is not None
    done = f"{slowest.op.bytes_done:,} of {slowest.op.bytes_total:,} bytes"
    spread = max(e.op.entered_at for e in flying if e.op) - parting.began_at
    what = (
        f"all whose dumps are here made the same call ({_call(parting)}), and it is in flight on "
        f"{ranks_text(e.rank for e in flying)}; the last entered {seconds(spread)} after the "
        f"first, and rank {slowest.rank} has {done}."
    )
    doing = (
        "Dump again: if the bytes grow it is only slow; if not, look at the hosts and links of the "
        "ranks that others wait on."
    )
    return what, doing


def _share(op: Op | None) -> float:
    return 1.0 if op is None or not op.bytes_total else op.bytes_done / op.bytes_total


def _behind(parting: Parting, report: Report) -> tuple[str, str]:
    behind = ranks_text(parting.ranks(NEVER, LEFT))
    what = (
        f"{behind} had not entered it ({_call(parting)}), and {ranks_text(parting.ranks(DONE))} "
        "came through without: nobody waits."
    )
    return what, f"Nothing is wrong as long as {behind} will make this call."


def _call(parting: Parting) -> str:
    return next(entry.op.call for entry in parting.entries if entry.op is not None)


_TELL = {
    MISMATCH: _mismatch,
    MISSING: _missing,
    ERROR: _failed,
    UNFINISHED: _unfinished,
    BEHIND: _behind,
}


# Messages, waiting, and what is not known


def _first(messages: Iterable[Message]) -> Message:
    """What is in flight before what failed; of the former the oldest, of the latter the newest."""

    def order(message: Message) -> tuple[bool, float]:
        op = message.op
        return op.state == FAILED, -op.entered_at if op.state == FAILED else op.entered_at

    return min(messages, key=order)


def _named(op: Op) -> str:
    """ "recv from rank 1, tag 4", "operation 3 of group 2 (barrier)"."""
    group = f"group {op.group}" if op.group else ""
    if op.seq is not None:
        return f"operation {op.seq}{group and f' of {group}'} ({op.call})"
    way = "from" if op.op == RECV else "to"
    return f"{op.op} {way} {_other(op)}, tag {op.tag}{group and f', {group}'}"


def _other(op: Op) -> str:
    return "any rank" if op.peer == ANY_SOURCE else f"rank {op.peer}"


def describe(message: Message) -> str:
    """ "recv from rank 1, tag 4, on rank 0 is in flight; rank 1 has no such send"."""
    op = message.op
    other = _other(op)
    state = f"is {op.state}" if op.state == IN_FLIGHT else f"failed ({op.error})"
    text = f"{_named(op)}, on rank {message.rank} {state}"
    opposite = "send" if op.op == RECV else "receive"
    theirs = message.other.call if message.other is not None else ""
    partner = {
        "not posted": f"{other} has posted no such {opposite}",
        "posted": f"{other} has posted the {opposite} too",
        "sent": f"{other} has sent it",
        "differs": f"{other} has posted another: {theirs}; here: {op.call}",
        "any": "any member may send it",
        NO_DUMP: f"of {other} there is no dump",
    }[message.partner]
    return f"{text}; {partner}"


def _of_message(message: Message, report: Report) -> tuple[str, str]:
    if report.circle:
        return f"{describe(message)}.", _untangle(report)
    stayed = _look_at(report.roots, report) or "its log"
    doing = {
        "not posted": "Post the other half with the same group and tag; see what is done instead: "
        f"{stayed}.",
        "differs": "Give both sides the same dtype and number of elements.",
        "any": "See which rank should send, and what it does.",
        NO_DUMP: "Dump that rank too.",
    }.get(message.partner, "Dump again: if the bytes grow it is only slow; if not, see the link.")
    return f"{describe(message)}.", doing


def _waiting(report: Report) -> str:
    if len(report.chain) < 2:
        return ""
    text = " → ".join(map(str, report.chain))
    if report.circle:
        return f"They wait in a circle: {text}."
    return f"Who waits for whom: {text}."


def _unknown(report: Report) -> list[int]:
    """Ranks without a dump that may have one: of those that said goodbye, the others know."""
    return [rank for rank in report.missing if rank not in report.gone]


def _incomplete(report: Report) -> str:
    parts = []
    if unknown := _unknown(report):
        parts.append(f"There is no dump of {ranks_text(unknown)}: the cause may be there.")
    if left := sorted(set(report.missing).intersection(report.gone)):
        own = "its daemon" if len(left) == 1 else "their daemons"
        parts.append(
            f"There is no dump of {ranks_text(left)}, which had said goodbye: {own} may have ended "
            "in order."
        )
    old = [dump.rank for dump in report.dumps if dump.epoch < report.epoch]
    if old:
        parts.append(f"The dump of {ranks_text(old)} is of an earlier epoch.")
    if report.headline is not None and (older := report.headline.ranks(OLDER)):
        parts.append(f"The dump of {ranks_text(older)} is older than this call: dump again.")
    return " ".join(parts)
