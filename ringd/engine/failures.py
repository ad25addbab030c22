"""The texts of the engine's errors: who, what, how far, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringd.errors import (
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    GroupFreedError,
    MembershipChangedError,
    PeerLostError,
    ProtocolError,
    RingdError,
    from_wire,
)
from ringd.vocabulary import IN_PARTS, MAY_RETURN_EARLY, OpSpec, ranks_text, unpack_spec
from ringd.wire import advice
from ringd.wire.bounds import words
from ringd.wire.raised import Raised

if TYPE_CHECKING:
    from ringd.engine.group import Group
    from ringd.engine.operation import Operation
    from ringd.engine.times import Times

MAX_NAME = 64
"""Characters of a call's name that are passed on."""
_EARLY_S = 0.1
_LATE = ("entered late", "never entered")
"""Cases of a verdict (``ringd.rendezvous.verdicts``) whose culprits may read it themselves."""


def mismatch(
    *, seq: int, epoch: int, rank: int, ours: OpSpec, peer: int, theirs: bytes
) -> CollectiveMismatchError:
    """Two ranks called different things at the same sequence number."""
    try:
        call = unpack_spec(theirs)
        other, their_op, hint = str(call), call.collective, _hint(ours, call)
    except ValueError:
        other, their_op, hint = "something that can't be read", "", ""
    return CollectiveMismatchError(
        f"{_numbered(seq, ours.group)} differs between ranks: rank {rank} called {ours}, "
        f"rank {peer} called {other}. {hint}Make the same calls with the same arguments in the "
        f"same order on every rank; this operation is void on all ranks, "
        f"{_next_call(ours.collective, their_op)}",
        op=ours.collective,
        their_op=their_op,
        group=ours.group,
        epoch=epoch,
        seq=seq,
        ranks=[rank, peer],
        calls={str(rank): str(ours), str(peer): other},
    )


def _next_call(*calls: str) -> str:
    """What is true of the next call after a mismatch of these collectives."""
    if MAY_RETURN_EARLY.isdisjoint(calls):
        return "the next call is an ordinary one."
    return (
        "and a rank that had returned from it already is told at its next call, which then is void "
        "on all ranks as well."
    )


def _hint(ours: OpSpec, theirs: OpSpec) -> str:
    """What a likely slip is, if it looks like one."""
    if ours.collective != theirs.collective:
        return ""
    if ours.dtype != theirs.dtype:
        return "Convert to one dtype first: tensor.to(dtype), array.astype(dtype). "
    uneven = (ours.shape, ours.counts) != (theirs.shape, theirs.counts)
    if ours.collective in IN_PARTS and uneven and not (ours.counts and theirs.counts):
        return (
            "If the parts are meant to be uneven, pass counts (the rows of each rank's part) on "
            "every rank. "
        )
    if ours.fused == theirs.fused and ours.fused_shapes != theirs.fused_shapes:
        return "Some of the coalesced tensors have other shapes there. "
    return ""


def splits_differ(
    op: Operation, peer: int, ours: tuple[int, int], theirs: object
) -> CollectiveMismatchError:
    """In an all_to_all two ranks do not agree on how much passes between them."""
    to_peer, from_peer = ours
    sent, wanted = theirs if isinstance(theirs, list) else (0, 0)
    differ = []
    if sent != from_peer:
        differ.append(
            f"rank {peer} sends {_rows(sent)} to rank {op.rank}, which expects {from_peer}"
        )
    if wanted != to_peer:
        differ.append(
            f"rank {op.rank} sends {_rows(to_peer)} to rank {peer}, which expects {wanted}"
        )
    return CollectiveMismatchError(
        f"{_numbered(op.seq, op.spec.group)} differs between ranks: {op.spec}: "
        f"{' and '.join(differ)}. Make each rank's output split for a peer equal to that peer's "
        f"input split for it; this operation is void on all ranks, "
        f"{_next_call(op.spec.collective)}",
        op=op.spec.collective,
        their_op=op.spec.collective,
        group=op.spec.group,
        epoch=op.epoch,
        seq=op.seq,
        ranks=[op.rank, peer],
        calls={
            str(op.rank): f"{op.spec} to rank {peer}: {to_peer}, from it: {from_peer}",
            str(peer): f"{op.spec} to rank {op.rank}: {sent}, from it: {wanted}",
        },
    )


def _rows(count: object) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _numbered(seq: int, group: int) -> str:
    """ "operation 4 of the world", "operation 0 of group 2"."""
    return f"operation {seq} of " + (f"group {group}" if group else "the world")


def refused_locally(
    *, seq: int, epoch: int, rank: int, spec: OpSpec, cause: RingdError
) -> CollectiveMismatchError:
    """A rank's own call was refused before a byte moved; its peers hear of it through this.

    A call of several operations is told by its own name, not as its first operation.
    """
    named = cause.fields.get("call")
    call = named[:MAX_NAME] if isinstance(named, str) else str(spec)
    remedy = "Correct the call" if isinstance(cause, (TypeError, ValueError)) else "Mend that"
    return CollectiveMismatchError(
        f"{_numbered(seq, spec.group)} is void: on rank {rank} the call {call} was refused "
        f"({type(cause).__name__}: {cause.message}). {remedy} there; "
        f"{_next_call(spec.collective)}",
        op=spec.collective,
        group=spec.group,
        epoch=epoch,
        seq=seq,
        ranks=[rank],
        calls={str(rank): call},
    )


def timed_out(
    op: Operation,
    *,
    elapsed_s: float,
    culprits: list[int],
    quiet: list[int] | None = None,
    late: list[int] | None = None,
) -> CollectiveTimeoutError:
    """The deadline passed, or ``quiet`` peers owed bytes and were silent too long.

    Args:
        culprits: the peers that hold it up; []: those that owe us something wait themselves.
        late: of a barrier, the ranks that have not come.
    """
    progress = op.progress()
    progress["waiting_on"] = waiting = sorted(culprits or quiet or progress["waiting_on"])
    setting, limit = limit_of(op.times, quiet=bool(quiet))
    advice = f"raise {words(setting)}"
    if not quiet and op.bounded_by >= 0:
        limit = f"the deadline of rank {op.bounded_by}"
        advice = f"raise that of rank {op.bounded_by}"
    whom = ranks_text(waiting) if waiting else "the acknowledgement of its own sends"
    if waiting and not culprits:
        whom += f", which {'waits itself' if len(waiting) == 1 else 'wait themselves'}"
    come = f"Not come to the barrier: {ranks_text(late)}. " if late else ""
    look = "ringd status"
    if culprits:
        are = "is" if len(culprits) == 1 else "are"
        look = f"what {ranks_text(sorted(culprits))} {are} doing ({look})"
    return CollectiveTimeoutError(
        f"{op.spec.collective} (operation {op.seq} of group {op.spec.group}, epoch {op.epoch}) on "
        f"rank {op.rank} ended at {limit}: waiting on {whom}, "
        f"{progress['bytes_done']} of {progress['bytes_total']} bytes received after "
        f"{lasted(elapsed_s, op.times.asked_s)}. {come}See {look}; if it is only slow, {advice}.",
        op=op.spec.collective,
        group=op.spec.group,
        epoch=op.epoch,
        seq=op.seq,
        rank=op.rank,
        elapsed_s=round(elapsed_s, 6),
        setting=setting,
        limit=limit,
        advice=advice,
        culprits=sorted(culprits),
        **({"late_ranks": late} if late is not None else {}),
        **progress,
    )


def lasted(elapsed_s: float, asked_s: float) -> str:
    """For how long a call has waited, in words that do not contradict its deadline.

    A rank counts from when its daemon has the call, and the first rank's deadline ends it for all:
    some ms less than what it asked for are no news.
    """
    just_before = 0 < asked_s - elapsed_s <= _EARLY_S
    return f"{asked_s if just_before else elapsed_s:.2f} s"


def limit_of(times: Times, *, quiet: bool) -> tuple[str, str]:
    """The setting that ended a call, and in words what it said."""
    if quiet:
        limit = f"{seconds(times.recv_timeout_s * 1e3)} ms without a byte"
        return times.recv_setting, f"{limit} ({words(times.recv_setting)})"
    return times.setting, f"its deadline of {seconds(times.asked_s)} s ({words(times.setting)})"


def seconds(number: float) -> str:
    """A number as it was asked for: all of its digits, and no more."""
    return repr(float(number)).removesuffix(".0")


def peer_lost(
    rank: int,
    *,
    case: str,
    detail: str,
    epoch: int,
    partial: bool = False,
    verdict: str = "",
    raised: Raised | None = None,
) -> PeerLostError:
    """A rank is gone, perhaps by an exception of its program; the epoch is over."""
    text = f"rank {rank} is lost: {case}"
    if detail:
        text += f" ({detail})"
    if partial:
        text += "; this is this rank's own view, the rendezvous has not confirmed it"
    return PeerLostError(
        f"{text}. Epoch {epoch} is over. {advice.after_loss(rank)}",
        rank=rank,
        case=case,
        detail=detail,
        epoch=epoch,
        partial=partial,
        verdict=verdict,
        culprits=[rank],
        **({} if raised is None else raised.fields()),
    )


def left_before(group: Group, rank: int) -> PeerLostError:
    """A rank said goodbye before a call that needs it."""
    detail = f"it said goodbye before operation {group.left[rank]}"
    if not group.left[rank] and not group.number:
        detail += ", or had waited too long for this epoch to begin"
    if group.number:
        detail += f" of group {group.number}"
    detail += "; all ranks must make as many calls, or this one must end with it"
    verdict = f"{group.epoch}.left{rank}"  # all were told by the rendezvous: one id for all
    return peer_lost(
        rank, case="it left the job", detail=detail, epoch=group.epoch, verdict=verdict
    )


def unmade(group: Group, error: RingdError) -> RingdError:
    """The end of a group that some of its members do not have, as their ``new_group`` failed."""
    if isinstance(error, CollectiveMismatchError):
        return error
    parent, seq = group.origin
    return type(error)(
        f"group {group.number} is over: {_numbered(seq, parent)}, which made it, failed on other "
        f"ranks, and they do not have it; close it, and make it again on all. {error.message}",
        **error.fields,
    )


def during(error: RingdError, op: Operation) -> RingdError:
    """``error`` as this operation's own: with op, seq and progress among its fields."""
    facts: dict[str, Any] = {
        "op": op.spec.collective,
        "group": op.spec.group,
        "epoch": op.epoch,
        "seq": op.seq,
        **op.progress(),
    }
    return type(error)(error.message, **{**facts, **error.fields})


def here(error: RingdError, op: Operation) -> RingdError:
    """The verdict as this rank raises it: with its own progress."""
    progress = op.progress()
    if not isinstance(error, CollectiveTimeoutError):
        return type(error)(error.message, **{**progress, **error.fields})
    if error.fields.get("rank") == op.rank:
        return error  # it is this rank's view, and says so
    elapsed_s = op.engine.now() - op.started
    done, total = progress["bytes_done"], progress["bytes_total"]
    after = lasted(elapsed_s, op.times.asked_s)
    had = f"had {done} of {total} bytes" if total else "had not ended it"
    text = f"{error.message} Rank {op.rank} {had} after {after}"
    text += _own_part(error, op.rank) + "."
    local = {"bytes_done": done, "bytes_total": total, "elapsed_s": round(elapsed_s, 6)}
    return type(error)(text, **{**error.fields, "rank": op.rank, **local})


def too_late(error: RingdError, rank: int) -> RingdError:
    """The verdict as a rank raises it that makes the call when it has ended at its deadline."""
    if not isinstance(error, CollectiveTimeoutError):
        return error.copy()
    text = f"{error.message} Rank {rank} had not made this call when it ended"
    text += _own_part(error, rank) + "."
    return type(error)(text, **{**error.fields, "rank": rank})


def not_begun(error: RingdError) -> RingdError:
    """The error as a caller sees it whose call never began: nothing worked in its memory."""
    begun = type(error)(error.message, **{**error.fields, "in_place": False})
    begun.__cause__ = error.__cause__
    return begun


def _own_part(error: RingdError, rank: int) -> str:
    """What a rank reads of itself, if the verdict is that it came late, or was stopped."""
    if rank not in (error.fields.get("culprits") or ()):
        return ""
    case = error.fields.get("case")
    if case == "trainer stopped":
        return ": this rank was stopped"
    return ": this rank came late itself" if case in _LATE else ""


def partial(error: RingdError) -> RingdError:
    """One rank's view, where no verdict could be had; said once, though others pass it on."""
    if error.fields.get("partial"):
        return error
    text = f"{error.message} (This is the view of one rank: no verdict of the rendezvous came.)"
    return type(error)(text, **{**error.fields, "partial": True})


def from_peer(data: object) -> RingdError:
    """What a peer says of an operation. Only what leaves the epoch standing travels so; whatever
    else it calls its error is a CollectiveError here, with no power over this rank's trainer."""
    error = from_wire(data)
    if isinstance(error, CollectiveMismatchError | CollectiveTimeoutError | GroupFreedError):
        return error
    return CollectiveError(error.message, **error.fields)


def end_from_peer(peer: int, data: object) -> RingdError:
    """What a peer says of the end of its epoch, where the rendezvous is out of reach.

    It ends an operation here, not the epoch. Passed on it is still the same, so that who reaches
    the rendezvous leaves it to that.
    """
    error = from_wire(data)
    if isinstance(error, PeerLostError):
        verdict = error.fields.get("verdict")
        return PeerLostError(error.message, **{**error.fields, "partial": not verdict})
    text = f"rank {peer} says that the epoch is over. {advice.REFORM}"
    return MembershipChangedError(text, **{**error.fields, "partial": True})


def is_end_of_epoch(data: object) -> bool:
    """Whether a peer says that a rank is lost, or that the epoch is over."""
    codes = (PeerLostError.code, MembershipChangedError.code)
    return isinstance(data, dict) and data.get("code") in codes


def protocol(peer: int, what: str) -> ProtocolError:
    """A peer sent what the protocol does not allow."""
    return ProtocolError(f"rank {peer} broke the wire protocol: {what}", rank=peer)
