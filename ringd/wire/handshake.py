"""The mutual handshake that opens every connection: pure, frames in, frames out.

::

    dialer                                      acceptor
    HELLO {v, role, job, rank, world, nonce}    ->
                        <-  CHALLENGE {v, role, job, rank, world, nonce, mac}
    PROOF {mac}                                 ->
                        <-  ACCEPTED {}

Instead of its next frame either side may send ``REFUSED {code, text}``, and closes. Both sides
then know the same text and who refused. An acceptor that is no longer the rendezvous may add
``to`` and ``epoch``, where it is now; that is believed only of one that has proved the secret.

A mac is HMAC-SHA-256, keyed with the job secret, over a transcript: a tag that says which side
made it, then version, role, job, rank, world and nonce of the dialer, then the same six of the
acceptor. Each item is preceded by its length (4 bytes, network order); numbers are decimal ASCII,
texts UTF-8, nonces raw. Both nonces are fresh, so a recorded handshake is worth nothing, and
every field is under the mac, so none can be altered on the way.

Checks come in one order: version, job, role, world size, rank, secret, then the acceptor's
admission. What is refused before the secret was proved names only what the other side said,
and the world size.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ringd.wire.frame import VERSION, Kind, encode

NONCE_BYTES = 32
MAC_BYTES = 32
MAX_JOB_BYTES = 128
MAX_ROLE_BYTES = 16
MAX_NUMBER = 2**31 - 1
MAX_HOST_CHARS = 255
MAX_TEXT_BYTES = 640
"""Of a refusal's text; with its code it stays under the handshake's header limit."""

DAEMON, LINK, OBSERVER, RENDEZVOUS = "daemon", "link", "observer", "rendezvous"
RANKED_ROLES = frozenset({DAEMON, LINK})
"""Roles that speak for a rank; the others have rank -1. An observer may say world size 0:
it does not know."""

Side = Literal["dialer", "acceptor"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who one end of a connection says it is."""

    role: str
    job_id: str
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Credentials:
    """Our own identity, and the secret that proves it. The secret never shows in a repr.

    Raises:
        ValueError: the job id is empty or over 128 bytes, or the secret is empty.
    """

    job_id: str
    rank: int
    world_size: int
    role: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.job_id.encode()) <= MAX_JOB_BYTES:
            raise ValueError(f"a job id has 1 to {MAX_JOB_BYTES} bytes")
        if not self.secret:
            raise ValueError("the job secret is empty")

    @property
    def identity(self) -> Identity:
        """What is said aloud."""
        return Identity(self.role, self.job_id, self.rank, self.world_size)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Whom a dialer wants to reach; rank None: whichever rank answers."""

    role: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """Where the rendezvous is instead, and which epoch it is in."""

    host: str
    port: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a connection was not made, and which side said no; ``moved``: where to go instead."""

    reason: str
    text: str
    by: Side = "acceptor"
    moved: Moved | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a step gave: a frame to send (b"": none), and the end, if it is one."""

    frame: bytes = b""
    peer: Identity | None = None
    """Set once: the handshake succeeded, and this is who answers."""
    refusal: Refusal | None = None
    """Set once: the handshake failed; after ``frame`` the connection is to be closed."""


Admission = Callable[[Identity], Refusal | None]
"""The acceptor's last word about a peer that proved the secret; None admits it."""


class _Refused(Exception):
    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


@dataclass(frozen=True, slots=True)
class _Party:
    """One end as the transcript sees it."""

    identity: Identity
    nonce: bytes

    def items(self) -> list[bytes]:
        who = self.identity
        numbers = (str(who.rank).encode(), str(who.world_size).encode())
        version = str(VERSION).encode()
        return [version, who.role.encode(), who.job_id.encode(), *numbers, self.nonce]

    def fields(self) -> dict[str, Any]:
        who = self.identity
        return {
            "v": VERSION,
            "role": who.role,
            "job": who.job_id,
            "rank": who.rank,
            "world": who.world_size,
            "nonce": self.nonce,
        }


class _Machine:
    """What both sides share: one awaited frame at a time, and refusing."""

    side: Side
    _other: Side

    def __init__(self, credentials: Credentials, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes")
        self._us = _Party(credentials.identity, nonce)
        self._secret = credentials.secret
        self._awaited: Kind | None = None

    def begin(self) -> bytes:
        """The frame that opens the handshake; b"" when the other side opens it."""
        return b""

    def receive(self, kind: int, header: Any) -> Reply:
        """Take a frame of the other side; nothing may follow a reply that ends the handshake."""
        if kind == Kind.REFUSED:
            self._awaited = None
            return Reply(refusal=_read_refusal(header, by=self._other, proven=self._is_proven()))
        try:
            if kind != self._awaited:
                raise _Refused("protocol", f"a frame of kind {kind} may not come now")
            return self._take(header)
        except _Refused as refused:
            return self.refuse(refused.reason, refused.text)

    def refuse(self, reason: str, text: str, moved: Moved | None = None) -> Reply:
        """End the handshake from our side, for what we, or the I/O around us, found."""
        self._awaited = None
        refusal = Refusal(reason, _clean(text), self.side, moved)
        header: dict[str, Any] = {"code": refusal.reason, "text": refusal.text}
        if moved is not None:
            header |= {"to": [moved.host, moved.port], "epoch": moved.epoch}
        return Reply(encode(Kind.REFUSED, header), refusal=refusal)

    def _is_proven(self) -> bool:
        """Whether the other side has proved the secret, so that it may send us elsewhere."""
        return False

    def _take(self, header: Any) -> Reply:
        raise NotImplementedError

    def _mac(self, maker: Side, *, dialer: _Party, acceptor: _Party) -> bytes:
        items = [b"ringd handshake, " + maker.encode(), *dialer.items(), *acceptor.items()]
        transcript = b"".join(len(item).to_bytes(4, "big") + item for item in items)
        return hmac.new(self._secret, transcript, hashlib.sha256).digest()


class Dialer(_Machine):
    """The side that opened the connection.

    Args:
        credentials: who we are.
        expect: who must answer.
        nonce: 32 bytes never used before.
    """

    side: Side = "dialer"
    _other: Side = "acceptor"

    def __init__(self, credentials: Credentials, *, expect: Expectation, nonce: bytes) -> None:
        super().__init__(credentials, nonce)
        self._expect = expect
        self._peer: Identity | None = None

    def _is_proven(self) -> bool:
        return self._peer is not None

    def begin(self) -> bytes:
        """HELLO."""
        self._awaited = Kind.CHALLENGE
        return encode(Kind.HELLO, self._us.fields())

    def _take(self, header: Any) -> Reply:
        if self._awaited is Kind.ACCEPTED:
            self._awaited = None
            return Reply(peer=self._peer)
        them = _read_party(header)
        _check(them.identity, ours=self._us.identity, roles=frozenset({self._expect.role}))
        wanted = self._expect.rank
        if wanted is not None and them.identity.rank != wanted:
            text = f"not the rank that was dialled: rank {wanted} was wanted, "
            raise _Refused("wrong_rank", text + f"rank {them.identity.rank} answered")
        _check_mac(header, self._mac("acceptor", dialer=self._us, acceptor=them))
        self._peer = them.identity
        self._awaited = Kind.ACCEPTED
        proof = self._mac("dialer", dialer=self._us, acceptor=them)
        return Reply(encode(Kind.PROOF, {"mac": proof}))


class Acceptor(_Machine):
    """The side that was dialled.

    Args:
        credentials: who we are.
        roles: the roles that may come here.
        admit: has the last word, asked only about a peer that proved the secret.
        nonce: 32 bytes never used before.
    """

    side: Side = "acceptor"
    _other: Side = "dialer"

    def __init__(
        self,
        credentials: Credentials,
        *,
        roles: frozenset[str],
        admit: Admission,
        nonce: bytes,
    ) -> None:
        super().__init__(credentials, nonce)
        self._roles = roles
        self._admit = admit
        self._them: _Party | None = None
        self._awaited = Kind.HELLO

    def _take(self, header: Any) -> Reply:
        if self._them is None:
            return self._challenge(header)
        them = self._them
        _check_mac(header, self._mac("dialer", dialer=them, acceptor=self._us))
        refusal = self._admit(them.identity)
        if refusal is not None:
            return self.refuse(refusal.reason, refusal.text, refusal.moved)
        self._awaited = None
        return Reply(encode(Kind.ACCEPTED, {}), peer=them.identity)

    def _challenge(self, header: Any) -> Reply:
        them = _read_party(header)
        _check(them.identity, ours=self._us.identity, roles=self._roles)
        self._them = them
        self._awaited = Kind.PROOF
        mac = self._mac("acceptor", dialer=them, acceptor=self._us)
        return Reply(encode(Kind.CHALLENGE, {**self._us.fields(), "mac": mac}))


def _check(theirs: Identity, *, ours: Identity, roles: frozenset[str]) -> None:
    if theirs.job_id != ours.job_id:
        raise _Refused("job", f"job {theirs.job_id!r} is not the job served here")
    if theirs.role not in roles:
        raise _Refused("role", f"unexpected role {theirs.role!r}, not {' or '.join(sorted(roles))}")
    if not _world_fits(theirs, ours):
        raise _Refused("world_size", f"world sizes differ: {_size_of(theirs)}, {_size_of(ours)}")
    if theirs.role not in RANKED_ROLES:
        if theirs.rank != -1:
            raise _Refused("rank", f"a peer of role {theirs.role!r} has no rank {theirs.rank}")
    elif not 0 <= theirs.rank < theirs.world_size:
        text = f"rank {theirs.rank} is out of range for world size {theirs.world_size}"
        raise _Refused("rank", text)


def _size_of(one: Identity) -> str:
    """Names the side, as the text is read on both: "the daemon of rank 1 has 3"."""
    whose = f"the {one.role}" + (f" of rank {one.rank}" if one.role in RANKED_ROLES else "")
    return f"{whose} has {one.world_size}"


def _world_fits(theirs: Identity, ours: Identity) -> bool:
    if theirs.world_size == ours.world_size:
        return True
    return any(who.role == OBSERVER and who.world_size == 0 for who in (theirs, ours))


def _check_mac(header: Any, expected: bytes) -> None:
    mac = header.get("mac") if isinstance(header, dict) else None
    if not isinstance(mac, bytes) or len(mac) != MAC_BYTES:
        raise _Refused("protocol", "the proof of the job secret is missing or malformed")
    if not hmac.compare_digest(mac, expected):
        raise _Refused("secret", "wrong job secret")


def _read_party(header: Any) -> _Party:
    if not isinstance(header, dict):
        raise _Refused("protocol", "the handshake's header is not a map")
    version = header.get("v")
    if type(version) is not int or version != VERSION:
        raise _Refused("version", f"protocol version {version!r}, this side's is {VERSION}")
    nonce = header.get("nonce")
    if not isinstance(nonce, bytes) or len(nonce) != NONCE_BYTES:
        raise _Refused("protocol", f"a handshake's nonce has {NONCE_BYTES} bytes")
    identity = Identity(
        _text(header, "role", MAX_ROLE_BYTES),
        _text(header, "job", MAX_JOB_BYTES),
        _number(header, "rank"),
        _number(header, "world"),
    )
    return _Party(identity, nonce)


def _text(header: dict[Any, Any], name: str, max_bytes: int) -> str:
    value = header.get(name)
    if isinstance(value, str) and 0 < len(value.encode(errors="replace")) <= max_bytes:
        return value
    raise _Refused("protocol", f"the handshake's {name} is not a text of 1 to {max_bytes} bytes")


def _number(header: dict[Any, Any], name: str) -> int:
    value = header.get(name)
    if type(value) is int and -1 <= value <= MAX_NUMBER:
        return value
    raise _Refused("protocol", f"the handshake's {name} is not a number from -1 on")


def _read_refusal(header: Any, *, by: Side, proven: bool) -> Refusal:
    fields = header if isinstance(header, dict) else {}
    reason, text = fields.get("code"), fields.get("text")
    return Refusal(
        _clean(reason, 32) if isinstance(reason, str) else "unknown",
        _clean(text) if isinstance(text, str) else "without a reason",
        by,
        _read_moved(fields) if proven else None,
    )


def _read_moved(fields: dict[Any, Any]) -> Moved | None:
    """What a referral says; None: it is none, or malformed."""
    to, epoch = fields.get("to"), fields.get("epoch")
    if not isinstance(to, list) or len(to) != 2 or type(epoch) is not int:
        return None
    host, port = to
    known = isinstance(host, str) and 0 < len(host) <= MAX_HOST_CHARS and host.isprintable()
    if not known or type(port) is not int or not 0 < port < 65536 or epoch < 0:
        return None
    return Moved(host, port, epoch)


def _clean(text: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """One printable line of bounded size: it may come from a stranger and goes to a log."""
    line = "".join(c if c.isprintable() else "?" for c in text)
    return line.encode(errors="replace")[:max_bytes].decode(errors="ignore")
