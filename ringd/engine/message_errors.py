"""The texts of point-to-point errors: who, which tag, how far, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ringd.engine import failures
from ringd.engine.message import Recv, Send
from ringd.errors import (
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    CommunicatorClosedError,
    GroupFreedError,
    InvalidArgumentError,
    PeerLostError,
    RingdError,
    UnsupportedTypeError,
    from_wire,
)
from ringd.vocabulary import ANY_SOURCE, DTYPES, MAX_TAG, SEND, OpSpec, ranks_text
from ringd.wire.bounds import words

if TYPE_CHECKING:
    from ringd.engine.group import Group
    from ringd.engine.message import Arrival, Post

_TAGS_SHOWN = 5
DEADLOCK = "deadlock"
"""The case of a verdict that more time would not change."""


def check_post(group: Group, spec: OpSpec, tag: int) -> None:
    """Refuse a send or receive that can't be; nothing was posted.

    Raises:
        InvalidArgumentError: the peer or the tag.
        UnsupportedTypeError: the dtype.
    """
    size = len(group.ranks)
    sends = spec.collective == SEND
    peer, whom = spec.root, "to" if sends else "from"
    if peer == ANY_SOURCE and not sends:
        if size == 1:
            raise InvalidArgumentError(
                "a group of one rank has nobody to receive from; leave the call out there"
            )
    elif not 0 <= peer < size:
        raise InvalidArgumentError(
            f"can't {spec.collective} {whom} rank {peer}: ranks of this group are 0 to {size - 1}"
        )
    elif peer == group.rank:
        raise InvalidArgumentError(
            f"a rank can't {spec.collective} {whom} itself (rank {peer}); copy the tensor instead"
        )
    if not 0 <= tag <= MAX_TAG:
        raise InvalidArgumentError(f"tag {tag} is not a whole number from 0 to {MAX_TAG}")
    if spec.dtype not in DTYPES:
        raise UnsupportedTypeError(
            f"dtype {spec.dtype or 'none'} is not supported; supported are {', '.join(DTYPES)}"
        )


def mismatch(recv: Recv, arrival: Arrival) -> CollectiveMismatchError:
    """A message does not fit the receive that it goes to; the same words for both sides."""
    sender, receiver = arrival.source, recv.box.rank
    sent, wanted = _content(arrival.spec), _content(recv.spec)
    return CollectiveMismatchError(
        f"a message with tag {recv.tag} from rank {sender} to rank {receiver} does not fit: rank "
        f"{sender} sent {sent}, rank {receiver} receives {wanted}. Give both sides the same dtype "
        "and number of elements; this message is dropped, the next one is an ordinary one.",
        op=recv.spec.collective,
        their_op=arrival.spec.collective,
        group=recv.spec.group,
        epoch=recv.box.epoch,
        tag=recv.tag,
        ranks=[receiver, sender],
        calls={str(receiver): str(recv.spec), str(sender): str(arrival.spec)},
    )


def _content(spec: OpSpec) -> str:
    elements = "1 element" if spec.count == 1 else f"{spec.count} elements"
    return f"{spec.dtype} of shape {tuple(spec.shape)} ({elements})"


def timed_out(post: Post, *, elapsed_s: float, quiet: bool) -> CollectiveTimeoutError:
    """The deadline passed, or (``quiet``) the sender was silent in the middle of a message."""
    setting, limit = failures.limit_of(post.times, quiet=quiet)
    cause, look = _send_waits_for(post) if isinstance(post, Send) else _recv_waits_for(post)
    after = failures.lasted(elapsed_s, post.times.asked_s)
    return CollectiveTimeoutError(
        f"{describe(post)} ended at {limit}, after {after}: {cause}",
        **post.facts(),
        elapsed_s=round(elapsed_s, 6),
        setting=setting,
        culprits=[],
        look=look,
    )


def judged(own: CollectiveTimeoutError, verdict: Mapping[str, Any] | None) -> RingdError:
    """A timeout as its caller sees it: with the verdict on it, or None: as this rank's own view.

    Args:
        verdict: the fields of "post_verdict".
    """
    fields = dict(own.fields)
    look, setting = fields.pop("look"), words(fields["setting"])
    slow = f"If it is only slow, raise {setting}."
    if verdict is None:
        text = f"{own.message} {look} {slow}" if look else f"{own.message} {slow}"
        return CollectiveTimeoutError(text, **fields, partial=True)
    text = f"{own.message} {_sentence(verdict['text'])} {_sentence(verdict['advice'])}"
    if verdict["case"] != DEADLOCK:
        text = f"{text} {slow}"
    return CollectiveTimeoutError(text, **{**fields, **_told(verdict)})


def told_there(own: CollectiveTimeoutError, number: int) -> RingdError:
    """What the other side is told of a message that this rank asks about by ``number``: its own
    view, and what it takes to make that the verdict."""
    view = judged(own, None)
    return type(view)(view.message, **view.fields, asked=[number, own.message])


def question_in(error: RingdError) -> tuple[int, CollectiveTimeoutError, RingdError] | None:
    """By which number a peer asks about a message that it gave up, what it knows without the
    verdict, as `timed_out`, and its own view; None: there is to be no verdict."""
    fields = dict(error.fields)
    setting = fields.get("setting")
    match fields.pop("asked", None):
        case [int(number), str(text)] if isinstance(setting, str):
            own = CollectiveTimeoutError(text, **fields, look="")
            return number, own, type(error)(error.message, **fields)
    return None


def _told(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """A verdict as an error's fields."""
    names = ("verdict", "case", "culprits", "link", "stacks", "chain")
    others = verdict["culprits"] if verdict["case"] != DEADLOCK else []
    waiting = {"waiting_on": others} if others else {}
    return {**{name: verdict[name] for name in names}, **waiting, "partial": False}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def describe(post: Post) -> str:
    """ "send of rank 0 to rank 1 with tag 7", and the group if it is not the world."""
    whom = "any rank" if post.peer == ANY_SOURCE else f"rank {post.peer}"
    way = "to" if isinstance(post, Send) else "from"
    group = f" in group {post.spec.group}" if post.spec.group else ""
    return f"{post.spec.collective} of rank {post.box.rank} {way} {whom} with tag {post.tag}{group}"


def _send_waits_for(send: Send) -> tuple[str, str]:
    """What is known here, and where to look if nobody knows more."""
    peer = f"rank {send.peer}"
    look = f"See what {peer} is doing (ringd status)."
    if send.taken:
        done = f"{send.bytes_done} of {send.size_bytes} bytes are acknowledged"
        return f"{peer} took it, and {done}.", look
    if send.number < 0:
        return f"there is no link to {peer} yet.", "See ringd status."
    cause = f"{peer} has not posted a matching receive (tag {send.tag})."
    theirs = send.box.offered_tags(send.peer)
    if theirs:
        cause += (
            f" It waits itself, to send to rank {send.box.rank} with {_tags(theirs)}: two sends at "
            "each other need isend, or one side that receives first."
        )
        return cause, ""
    return cause, look


def _recv_waits_for(recv: Post) -> tuple[str, str]:
    """What is known here, and where to look if nobody knows more."""
    assert isinstance(recv, Recv)
    look = "See what it is doing (ringd status)."
    if recv.source >= 0:
        done = f"{recv.bytes_done} of {recv.size_bytes} bytes"
        return f"{done} came from rank {recv.source}.", look
    peer = "any rank" if recv.peer == ANY_SOURCE else f"rank {recv.peer}"
    cause = f"no message with tag {recv.tag} came from {peer}."
    others = recv.box.waiting_tags(recv.peer)
    if others:
        cause += f" Messages with {_tags(others)} from it wait here: do the tags agree?"
        return cause, ""
    return cause, look


def _tags(tags: list[int]) -> str:
    shown = ", ".join(map(str, tags[:_TAGS_SHOWN]))
    return f"{'tag' if len(tags) == 1 else 'tags'} {shown}{', ...' if tags[_TAGS_SHOWN:] else ''}"


def left(post: Post) -> PeerLostError:
    """The other side, or everybody else, said goodbye."""
    ranks = post.peers
    verb = "has" if len(ranks) == 1 else "have"
    if isinstance(post, Send):
        effect = "nobody can receive it there"
    else:
        effect = f"all that came with tag {post.tag} was received"
    return PeerLostError(
        f"{describe(post)} can't complete: {ranks_text(ranks)} {verb} left the job with a "
        f"goodbye, and {effect}. Keep both sides connected until every message is through.",
        **post.facts() | {"rank": ranks[0], "culprits": list(ranks)},
        case="it left the job",
        detail="it said goodbye",
    )


def freed(post: Post, ranks: list[int]) -> GroupFreedError:
    """Who could be the other side has freed the group; ``ranks``: some have rather left the job."""
    verb = "has" if len(ranks) == 1 else "have"
    effect = "takes no message" if isinstance(post, Send) else f"sends nothing with tag {post.tag}"
    return GroupFreedError(
        f"{describe(post)} can't complete: {ranks_text(ranks)} {verb} closed group "
        f"{post.spec.group}, and {effect} any more. Close a group on all members once its last "
        "message is through, and make a new one if it is needed again.",
        **post.facts() | {"rank": ranks[0]},
    )


def trainer_closed(post: Post) -> CommunicatorClosedError:
    """This rank's trainer closed its communicator."""
    return CommunicatorClosedError(
        f"{describe(post)} had not completed when the communicator was closed; wait for its "
        "handle first",
        **post.facts(),
    )


def given_up(post: Post, cause: RingdError) -> RingdError:
    """What the peer is told of a message that this rank gives up because of ``cause``."""
    if isinstance(cause, CollectiveTimeoutError | CollectiveMismatchError | GroupFreedError):
        return cause
    return CollectiveError(
        f"rank {post.box.rank} gave the message up: {cause.message}", **post.facts()
    )


def freed_there(rank: int, *, group: int, epoch: int) -> GroupFreedError:
    """What a sender is told whose peer has freed the group."""
    return GroupFreedError(
        f"rank {rank} has freed group {group}: it takes no message of it any more",
        rank=rank,
        group=group,
        epoch=epoch,
    )


def from_peer(data: object) -> RingdError:
    """What a peer says of a message; beyond what any peer may say, that it freed the group."""
    error = from_wire(data)
    return error if isinstance(error, GroupFreedError) else failures.from_peer(data)


def during(error: RingdError, post: Post) -> RingdError:
    """``error`` as this message's own, with its facts among the fields."""
    return type(error)(error.message, **{**post.facts(), **error.fields})
