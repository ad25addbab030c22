"""The handshake's two machines against each other, frame by frame."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from ringd.wire.decoder import FrameDecoder, Sink
from ringd.wire.frame import PREAMBLE, PREAMBLE_BYTES, VERSION, FrameError, Kind, Limits, encode
from ringd.wire.handshake import (
    DAEMON,
    LINK,
    OBSERVER,
    RENDEZVOUS,
    Acceptor,
    Credentials,
    Dialer,
    Expectation,
    Identity,
    Moved,
    Refusal,
    Reply,
)

SECRET = b"the secret of the job"
DIALER_NONCE = bytes(range(32))
ACCEPTOR_NONCE = bytes(range(100, 132))
SERVICE = Credentials("digits", -1, 3, RENDEZVOUS, SECRET)
DAEMON_1 = Credentials("digits", 1, 3, DAEMON, SECRET)
LINK_1 = Credentials("digits", 1, 3, LINK, SECRET)
LINK_2 = Credentials("digits", 2, 3, LINK, SECRET)
TO_SERVICE = Expectation(RENDEZVOUS)
LOOKER = Credentials("digits", -1, 0, OBSERVER, SECRET)


def make_dialer(
    credentials: Credentials = DAEMON_1,
    expect: Expectation = TO_SERVICE,
    nonce: bytes = DIALER_NONCE,
) -> Dialer:
    return Dialer(credentials, expect=expect, nonce=nonce)


def make_acceptor(
    credentials: Credentials = SERVICE,
    roles: frozenset[str] = frozenset({DAEMON, OBSERVER}),
    admit: Any = lambda peer: None,
    nonce: bytes = ACCEPTOR_NONCE,
) -> Acceptor:
    return Acceptor(credentials, roles=roles, admit=admit, nonce=nonce)


def split(frame: bytes) -> tuple[int, Any]:
    kind = PREAMBLE.unpack_from(frame)[2]
    return kind, msgpack.unpackb(frame[PREAMBLE_BYTES:])


def converse(dialer: Dialer, acceptor: Acceptor) -> tuple[Reply, Reply, list[bytes]]:
    """Pass frames to and fro until both are at their end: their last replies, and all frames."""
    frames = [dialer.begin()]
    sides: tuple[Dialer | Acceptor, ...] = (acceptor, dialer)
    last: dict[int, Reply] = {}
    for turn in range(8):
        reply = sides[turn % 2].receive(*split(frames[-1]))
        if reply.peer is not None or reply.refusal is not None:
            last[turn % 2] = reply
        if not reply.frame:
            break
        frames.append(reply.frame)
    return last[1], last[0], frames


@pytest.mark.parametrize(
    ("dialling", "expect", "accepting", "roles"),
    [
        (DAEMON_1, Expectation(RENDEZVOUS), SERVICE, {DAEMON, OBSERVER}),
        (LOOKER, Expectation(RENDEZVOUS), SERVICE, {DAEMON, OBSERVER}),
        (replace(LOOKER, world_size=3), Expectation(RENDEZVOUS), SERVICE, {OBSERVER}),
        (LINK_1, Expectation(LINK, 2), LINK_2, {LINK}),
        (LINK_1, Expectation(LINK), LINK_2, {LINK}),
    ],
)
def test_both_sides_learn_who_the_other_is(
    dialling: Credentials, expect: Expectation, accepting: Credentials, roles: set[str]
) -> None:
    dialer = make_dialer(dialling, expect)
    acceptor = make_acceptor(accepting, frozenset(roles))
    at_dialer, at_acceptor, frames = converse(dialer, acceptor)
    assert at_dialer == Reply(peer=accepting.identity)
    assert at_acceptor.peer == dialling.identity
    assert [split(f)[0] for f in frames] == [
        Kind.HELLO,
        Kind.CHALLENGE,
        Kind.PROOF,
        Kind.ACCEPTED,
    ]
    assert all(SECRET not in frame for frame in frames)


@pytest.mark.parametrize(
    ("dialling", "reason", "by", "text"),
    [
        (replace(DAEMON_1, job_id="other"), "job", "acceptor", "job 'other' is not"),
        (replace(DAEMON_1, secret=b"guessed"), "secret", "dialer", "wrong job secret"),
        (
            replace(DAEMON_1, world_size=4),
            "world_size",
            "acceptor",
            "world sizes differ: the daemon of rank 1 has 4, the rendezvous has 3",
        ),
        (replace(DAEMON_1, rank=5), "rank", "acceptor", "rank 5 is out of range for world size 3"),
        (replace(DAEMON_1, rank=3), "rank", "acceptor", "rank 3 is out of range"),
        (replace(DAEMON_1, rank=-1), "rank", "acceptor", "rank -1 is out of range"),
        (replace(DAEMON_1, world_size=0), "world_size", "acceptor", "the daemon of rank 1 has 0"),
        (LINK_1, "role", "acceptor", "unexpected role 'link', not daemon or observer"),
        (replace(LOOKER, rank=1), "rank", "acceptor", "'observer' has no rank 1"),
        (replace(LOOKER, world_size=2), "world_size", "acceptor", "the observer has 2"),
    ],
)
def test_a_misfit_is_refused_by_name_on_both_sides(
    dialling: Credentials, reason: str, by: str, text: str
) -> None:
    at_dialer, at_acceptor, frames = converse(make_dialer(dialling), make_acceptor())
    assert at_dialer.refusal == at_acceptor.refusal
    refusal = at_dialer.refusal
    assert refusal is not None
    assert (refusal.reason, refusal.by) == (reason, by)
    assert text in refusal.text
    assert split(frames[-1])[0] == Kind.REFUSED


def test_several_misfits_are_refused_in_the_documented_order() -> None:
    wrong = Credentials("other", 7, 5, LINK, b"guessed")
    reasons = []
    for mend in ({}, {"job_id": "digits"}, {"role": DAEMON}, {"world_size": 3}, {"rank": 1}):
        wrong = replace(wrong, **mend)
        refusal = converse(make_dialer(wrong), make_acceptor())[0].refusal
        assert refusal is not None
        reasons.append(refusal.reason)
    assert reasons == ["job", "role", "world_size", "rank", "secret"]


def test_the_dialer_refuses_another_rank_than_it_dialled() -> None:
    dialer = make_dialer(LINK_1, Expectation(LINK, 0))
    at_dialer, at_acceptor, _ = converse(dialer, make_acceptor(LINK_2, frozenset({LINK})))
    text = "not the rank that was dialled: rank 0 was wanted, rank 2 answered"
    assert at_dialer.refusal == at_acceptor.refusal == Refusal("wrong_rank", text, "dialer")


def test_the_dialer_refuses_another_role_than_it_wants() -> None:
    acceptor = make_acceptor(LINK_2, frozenset({DAEMON}))
    at_dialer, _, _ = converse(make_dialer(DAEMON_1), acceptor)
    assert at_dialer.refusal is not None
    assert (at_dialer.refusal.reason, at_dialer.refusal.by) == ("role", "dialer")


def test_the_dialer_refuses_the_answer_of_another_job() -> None:
    dialer = make_dialer()
    dialer.begin()
    answer = {**fields(SERVICE), "job": "other", "mac": bytes(32)}
    reply = dialer.receive(Kind.CHALLENGE, answer)
    assert reply.refusal is not None
    assert reply.refusal.reason == "job"


def test_an_acceptor_without_the_secret_gets_no_proof() -> None:
    acceptor = make_acceptor(replace(SERVICE, secret=b"guessed"))
    at_dialer, at_acceptor, frames = converse(make_dialer(), acceptor)
    assert (
        at_dialer.refusal == at_acceptor.refusal == Refusal("secret", "wrong job secret", "dialer")
    )
    assert Kind.PROOF not in [split(frame)[0] for frame in frames]


def test_admission_has_the_last_word_and_is_asked_only_after_the_proof() -> None:
    asked: list[Identity] = []

    def admit(peer: Identity) -> Refusal:
        asked.append(peer)
        return Refusal("rank_taken", "rank 1 already taken by 10.0.0.2:4000")

    guesser = make_dialer(replace(DAEMON_1, secret=b"guessed"))
    converse(guesser, make_acceptor(admit=admit))
    assert asked == []
    at_dialer, at_acceptor, _ = converse(make_dialer(), make_acceptor(admit=admit))
    assert asked == [DAEMON_1.identity]
    assert at_dialer.refusal == at_acceptor.refusal
    assert at_dialer.refusal == Refusal("rank_taken", "rank 1 already taken by 10.0.0.2:4000")


def test_a_recorded_dialer_is_refused_when_it_is_played_again() -> None:
    _, _, frames = converse(make_dialer(), make_acceptor())
    acceptor = make_acceptor(nonce=bytes(32))
    acceptor.receive(*split(frames[0]))
    reply = acceptor.receive(*split(frames[2]))
    assert reply.peer is None
    assert reply.refusal == Refusal("secret", "wrong job secret", "acceptor")


def test_a_recorded_acceptor_is_refused_when_it_is_played_again() -> None:
    _, _, frames = converse(make_dialer(), make_acceptor())
    dialer = make_dialer(nonce=bytes(32))
    dialer.begin()
    reply = dialer.receive(*split(frames[1]))
    assert reply.refusal == Refusal("secret", "wrong job secret", "dialer")


def test_a_proof_can_not_be_reflected() -> None:
    """The acceptor's own mac, sent back to it, is not the dialer's."""
    acceptor = make_acceptor()
    challenge = split(acceptor.receive(*split(make_dialer().begin())).frame)[1]
    reply = acceptor.receive(Kind.PROOF, {"mac": challenge["mac"]})
    assert reply.refusal == Refusal("secret", "wrong job secret", "acceptor")


def fields(credentials: Credentials, nonce: bytes = ACCEPTOR_NONCE) -> dict[str, Any]:
    return {
        "v": VERSION,
        "role": credentials.role,
        "job": credentials.job_id,
        "rank": credentials.rank,
        "world": credentials.world_size,
        "nonce": nonce,
    }


@pytest.mark.parametrize(
    "change",
    [{"rank": 0}, {"rank": 2}, {"role": OBSERVER, "rank": -1}, {"nonce": bytes(32)}],
)
def test_a_hello_altered_on_the_way_is_found_out(change: dict[str, Any]) -> None:
    dialer, acceptor = make_dialer(), make_acceptor()
    hello = split(dialer.begin())[1]
    challenge = acceptor.receive(Kind.HELLO, {**hello, **change})
    reply = dialer.receive(*split(challenge.frame))
    assert reply.refusal == Refusal("secret", "wrong job secret", "dialer")


@pytest.mark.parametrize("change", [{"rank": 0}, {"nonce": bytes(32)}, {"mac": bytes(32)}])
def test_a_challenge_altered_on_the_way_is_found_out(change: dict[str, Any]) -> None:
    dialer = make_dialer(LINK_1, Expectation(LINK))
    acceptor = make_acceptor(LINK_2, frozenset({LINK}))
    challenge = split(acceptor.receive(*split(dialer.begin())).frame)[1]
    reply = dialer.receive(Kind.CHALLENGE, {**challenge, **change})
    assert reply.refusal == Refusal("secret", "wrong job secret", "dialer")


def test_the_macs_are_what_the_documentation_says() -> None:
    def item(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    transcript = b"".join(
        item(part)
        for part in (
            *(b"1", b"daemon", b"digits", b"1", b"3", DIALER_NONCE),
            *(b"1", b"rendezvous", b"digits", b"-1", b"3", ACCEPTOR_NONCE),
        )
    )
    _, _, frames = converse(make_dialer(), make_acceptor())
    for frame, maker in ((frames[1], b"acceptor"), (frames[2], b"dialer")):
        signed = item(b"ringd handshake, " + maker) + transcript
        assert split(frame)[1]["mac"] == hmac.new(SECRET, signed, hashlib.sha256).digest()


@pytest.mark.parametrize(
    ("kind", "header"),
    [(Kind.ACCEPTED, {}), (Kind.PROOF, {"mac": bytes(32)}), (Kind.CONTROL, {"type": "start"})],
)
def test_no_step_of_the_handshake_can_be_skipped(kind: Kind, header: Any) -> None:
    dialer, acceptor = make_dialer(), make_acceptor()
    dialer.begin()
    for machine in (dialer, acceptor):
        reply = machine.receive(kind, header)
        assert reply.peer is None
        assert reply.refusal is not None
        assert reply.refusal.reason == "protocol"
        assert f"kind {int(kind)}" in reply.refusal.text


def test_a_refused_handshake_can_not_go_on() -> None:
    acceptor = make_acceptor()
    _, _, frames = converse(make_dialer(), make_acceptor())
    acceptor.receive(Kind.HELLO, {})
    for frame in (frames[0], frames[2]):
        assert acceptor.receive(*split(frame)).refusal is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"v": 2}, "version"),
        ({"v": True}, "version"),
        ({"v": None}, "version"),
        ({"role": ""}, "protocol"),
        ({"role": "x" * 17}, "protocol"),
        ({"job": ""}, "protocol"),
        ({"job": "x" * 129}, "protocol"),
        ({"job": 3}, "protocol"),
        ({"rank": "1"}, "protocol"),
        ({"rank": True}, "protocol"),
        ({"rank": -2}, "protocol"),
        ({"world": 2**31}, "protocol"),
        ({"nonce": bytes(31)}, "protocol"),
        ({"nonce": "text"}, "protocol"),
    ],
)
def test_a_malformed_hello_is_refused(change: dict[str, Any], reason: str) -> None:
    reply = make_acceptor().receive(Kind.HELLO, {**fields(DAEMON_1), **change})
    assert reply.refusal is not None
    assert reply.refusal.reason == reason


@pytest.mark.parametrize("header", [None, [], 7, "text", {}, {"mac": 3}, {"mac": b"short"}])
def test_a_header_of_the_wrong_form_is_refused(header: Any) -> None:
    acceptor = make_acceptor()
    acceptor.receive(Kind.HELLO, fields(DAEMON_1))
    reply = acceptor.receive(Kind.PROOF, header)
    assert reply.refusal is not None
    assert reply.refusal.reason == "protocol"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({"code": "job", "text": "no"}, Refusal("job", "no", "acceptor")),
        ({"code": 3}, Refusal("unknown", "without a reason", "acceptor")),
        (None, Refusal("unknown", "without a reason", "acceptor")),
        ({"code": "x", "text": "a\nb\x1b[2J"}, Refusal("x", "a?b?[2J", "acceptor")),
    ],
)
def test_a_refusal_is_read_as_one_printable_line(header: Any, expected: Refusal) -> None:
    dialer = make_dialer()
    dialer.begin()
    assert dialer.receive(Kind.REFUSED, header) == Reply(refusal=expected)


def test_a_refusal_fits_the_handshakes_limits_whatever_the_job_is_called() -> None:
    for job in ("\x00" * 128, "é" * 64, "\U0001f600" * 32):
        dialer = make_dialer(replace(DAEMON_1, job_id=job))
        _, _, frames = converse(dialer, make_acceptor())
        assert len(frames[-1]) <= PREAMBLE_BYTES + Limits.for_handshake().header_bytes
    long = Refusal("x", "ü" * 5000)
    _, at_acceptor, frames = converse(make_dialer(), make_acceptor(admit=lambda peer: long))
    assert at_acceptor.refusal is not None
    assert at_acceptor.refusal.text == "ü" * 320
    assert len(frames[-1]) <= PREAMBLE_BYTES + Limits.for_handshake().header_bytes


class Through:
    """A machine behind a real decoder; what follows acceptance is kept apart."""

    def __init__(self, machine: Dialer | Acceptor) -> None:
        self.machine = machine
        self.decoder = FrameDecoder(self, Limits.for_handshake())
        self.sent = b""
        self.peer: Identity | None = None
        self.later: list[int] = []

    def feed(self, data: bytes, step: int) -> None:
        for start in range(0, len(data), step):
            part = data[start : start + step]
            self.decoder.next_buffers()[0][: len(part)] = part
            self.decoder.received(len(part))

    def on_frame(
        self,
        kind: int,
        flags: int,
        stream: int,
        frame_no: int,
        ack: int,
        header: Any,
        payload_bytes: int,
        inline: memoryview | None,
    ) -> Sink | None:
        if self.peer is not None:
            self.later.append(kind)
            return None
        reply = self.machine.receive(kind, header)
        self.sent += reply.frame
        self.peer = reply.peer
        return None

    def on_payload_end(self) -> None:
        raise AssertionError("no payload may come")


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_frames_may_come_in_any_pieces_and_with_others_behind_them(step: int) -> None:
    dialer, acceptor = Through(make_dialer()), Through(make_acceptor())
    behind = encode(Kind.PING) * 2
    acceptor.feed(dialer.machine.begin(), step)
    dialer.feed(acceptor.sent, step)
    acceptor.sent = b""
    acceptor.feed(dialer.sent + behind, step)
    dialer.feed(acceptor.sent + behind, step)
    assert acceptor.peer == DAEMON_1.identity
    assert dialer.peer == SERVICE.identity
    assert acceptor.later == dialer.later == [Kind.PING, Kind.PING]


@pytest.mark.parametrize(
    "sizes",
    [{"payload_bytes": 1}, {"payload_bytes": 2**63 - 1}, {"header_bytes": 1025}],
)
def test_no_payload_and_no_large_header_is_taken_before_acceptance(sizes: dict[str, int]) -> None:
    header, payload = sizes.get("header_bytes", 0), sizes.get("payload_bytes", 0)
    preamble = PREAMBLE.pack(b"RNGD", VERSION, Kind.HELLO, 0, header, 0, payload, 0, 0)
    with pytest.raises(FrameError, match="over the limit"):
        Through(make_acceptor()).feed(preamble, 10_000)


def test_the_secret_shows_in_no_repr() -> None:
    assert SECRET.decode() not in repr(DAEMON_1)


@pytest.mark.parametrize(
    "wrong", [{"secret": b""}, {"job_id": ""}, {"job_id": "x" * 129}, {"job_id": "é" * 65}]
)
def test_credentials_without_substance_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="job"):
        replace(DAEMON_1, **wrong)


@pytest.mark.parametrize("nonce", [b"", bytes(31), bytes(33)])
def test_a_nonce_of_the_wrong_size_is_refused_at_once(nonce: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        make_dialer(nonce=nonce)


def test_a_referral_comes_through_to_a_peer_that_both_have_proved_the_secret_to() -> None:
    moved = Moved("fd00::1", 29401, 7)
    asked: list[Identity] = []

    def admit(peer: Identity) -> Refusal:
        asked.append(peer)
        return Refusal("moved", "it has moved", moved=moved)

    of_dialer, of_acceptor, frames = converse(make_dialer(), make_acceptor(admit=admit))
    assert of_dialer.refusal == of_acceptor.refusal == Refusal("moved", "it has moved", moved=moved)
    assert asked == [DAEMON_1.identity]
    assert split(frames[-1]) == (
        Kind.REFUSED,
        {"code": "moved", "text": "it has moved", "to": ["fd00::1", 29401], "epoch": 7},
    )
    assert len(frames[-1]) < 1024


def test_a_referral_of_one_that_has_not_proved_the_secret_is_not_believed() -> None:
    dialer = make_dialer()
    dialer.begin()
    header = {"code": "moved", "text": "come", "to": ["elsewhere", 1], "epoch": 1}
    assert dialer.receive(Kind.REFUSED, header).refusal == Refusal("moved", "come")


@pytest.mark.parametrize(
    "fields",
    [
        {"to": ["h", 1]},
        {"to": ["h", 1], "epoch": -1},
        {"to": ["h", 1], "epoch": True},
        {"to": ["h", 0], "epoch": 1},
        {"to": ["h", 65536], "epoch": 1},
        {"to": ["", 1], "epoch": 1},
        {"to": ["h" * 256, 1], "epoch": 1},
        {"to": ["h\n", 1], "epoch": 1},
        {"to": [b"h", 1], "epoch": 1},
        {"to": ["h"], "epoch": 1},
        {"to": "h:1", "epoch": 1},
    ],
)
def test_a_malformed_referral_is_a_plain_refusal(fields: dict[str, Any]) -> None:
    dialer, acceptor = make_dialer(), make_acceptor()
    challenge = acceptor.receive(*split(dialer.begin())).frame
    dialer.receive(*split(challenge))
    reply = dialer.receive(Kind.REFUSED, {"code": "moved", "text": "come", **fields})
    assert reply.refusal == Refusal("moved", "come")
