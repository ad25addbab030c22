"""docs/wire-protocol.md says what the code does: its examples, its numbers, its lists of words."""

from __future__ import annotations

import re
import struct
import typing
from pathlib import Path

import pytest

from ringd.engine import (
    early,
    endings,
    engine,
    groups,
    link,
    mail_frames,
    mail_lane,
    reunion,
    run_ahead,
)
from ringd.engine.engine import EngineOptions
from ringd.rendezvous import agent, hearing, inquiries, intake, verdicts
from ringd.transport import handshaking
from ringd.vocabulary import (
    ALGORITHMS,
    DTYPES,
    MAX_DIMS,
    MAX_SPEC_BYTES,
    MAX_TAG,
    REDUCE_OPS,
    SEND,
    OpSpec,
)
from ringd.wire import frame, handshake, ipc

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / "docs/wire-protocol.md").read_text()
FLAT = " ".join(PAGE.split())
HEX_PAIRS = re.compile(r"\s*((?:[0-9a-f]{2} ?)+)(?:  |$)")


def block_after(heading: str) -> str:
    return PAGE.partition(heading)[2].partition("```\n")[2].partition("```")[0]


def hex_bytes(block: str) -> bytes:
    """The bytes at the begin of each line."""
    found = (HEX_PAIRS.match(line) for line in block.splitlines())
    return b"".join(bytes.fromhex(m[1]) for m in found if m)


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_frame_byte_by_byte_is_what_ringd_sends() -> None:
    spec = OpSpec("all_reduce", "float32", "sum", (2,))
    head = frame.encode(
        frame.Kind.DATA,
        [1, 0, 0, spec.packed, 300_000],
        stream=1,
        payload_bytes=8,
        frame_no=2,
        ack=3,
    )
    assert hex_bytes(block_after("### A frame, byte by byte")) == head + struct.pack("<2f", 1, 2)


def test_the_macs_of_the_example_are_ringds() -> None:
    secret, first, second = b"0123456789abcdef", bytes(range(32)), bytes(range(32, 64))
    dialer = handshake.Dialer(
        handshake.Credentials("job", 1, 2, "daemon", secret),
        expect=handshake.Expectation("rendezvous"),
        nonce=first,
    )
    acceptor = handshake.Acceptor(
        handshake.Credentials("job", -1, 2, "rendezvous", secret),
        roles=frozenset({"daemon"}),
        admit=lambda _: None,
        nonce=second,
    )

    def header(data: bytes) -> dict[str, object]:
        found = frame.unpack_header(data[frame.PREAMBLE_BYTES :])
        assert isinstance(found, dict)
        return found

    challenge = header(acceptor.receive(frame.Kind.HELLO, header(dialer.begin())).frame)
    proof = header(dialer.receive(frame.Kind.CHALLENGE, challenge).frame)
    for kind, mac in (("CHALLENGE", challenge["mac"]), ("PROOF", proof["mac"])):
        assert isinstance(mac, bytes)
        assert [kind, f"`{mac.hex()}`"] in rows()


def test_every_kind_of_frame_is_listed_with_its_number() -> None:
    listed = [row[:2] for row in rows()]
    for kind in frame.Kind:
        assert [str(int(kind)), kind.name] in listed


def test_every_message_of_the_control_connection_is_listed() -> None:
    from_daemon = {*intake._READERS, "status", "state"}
    from_rendezvous = set(agent._HEARINGS)
    section = PAGE.partition("## Control connection")[2].partition("\n##")[0]
    first, second = section.split("Rendezvous to daemon:")
    for part, expected in ((first, from_daemon), (second, from_rendezvous)):
        assert set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) == expected


def test_every_message_of_the_local_protocol_is_listed_with_its_number() -> None:
    names = ("HELLO", "SEGMENT", "DROP_SEGMENT", "SUBMIT", "POISON", "STATUS", "GOODBYE")
    names += ("FREE_GROUP", "DUMP", "DUMP_REPLY", "REFORM", "NEWCOMERS", "OPEN_GROUP")
    names += ("WELCOME", "REFUSED", "DONE", "STATUS_REPLY", "BYE")
    section = PAGE.partition("## Part two")[2]
    found = dict(re.findall(r"^\| (\d+) \| `\[(\w+)[,\]]", section, re.MULTILINE))
    assert found == {str(getattr(ipc, name)): name for name in names}


def test_every_reason_for_a_refusal_is_listed() -> None:
    sources = ("wire/handshake.py", "rendezvous/service.py", "daemon/mesh.py")
    code = "".join((TOP / "ringd" / name).read_text() for name in sources)
    reasons = set(re.findall(r'(?:_Refused|Refusal)\("(\w+)"', code))
    section = PAGE.partition("| code | refused because |")[2].partition("\n\n")[0]
    assert reasons <= set(re.findall(r"`(\w+)`", section))
    assert reasons >= {"version", "protocol", "job", "secret", "rank_taken"}


def test_every_field_and_state_of_an_answer_is_listed() -> None:
    section = PAGE.partition("All fields of `op_answer`")[2].partition("\nOf a flow")[0]
    fields = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    asked = {"inquiry", "state", "trainer", "pid", "stack"}
    assert set(re.findall(r"\w+", " ".join(fields))) == {*engine.NO_ANSWER, *asked}
    for word in (*intake._STATES, *typing.get_args(verdicts.State)):
        assert f"`{word}`" in section


ALGORITHM_NAMES = sorted({name for names in ALGORITHMS.values() for name in names})


@pytest.mark.parametrize("word", [*DTYPES, *REDUCE_OPS, *ALGORITHMS, SEND, *ALGORITHM_NAMES])
def test_every_word_of_a_fingerprint_is_there(word: str) -> None:
    assert f"`{word}`" in PAGE


def test_the_moves_of_every_algorithm_are_listed() -> None:
    section = PAGE.partition("### Moves")[2].partition("\n### ")[0]
    table = re.findall(r"^\| `(\w+)`([^|]*)\|", section, re.MULTILINE)
    for collective, names in ALGORITHMS.items():
        listed = {name for name, of in table if collective in of or not of.strip(" ()")}
        assert set(names) - {"auto"} <= listed


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (frame.PREAMBLE_BYTES, "a preamble of {} bytes"),
        (frame.Limits.for_handshake().header_bytes, "the handshake runs | {:,} | 0"),
        (frame.Limits().header_bytes // 1024, "a link | {} KiB | 16 MiB"),
        (frame.Limits().payload_bytes >> 20, "a link | 64 KiB | {} MiB"),
        (frame.Limits.for_control().header_bytes >> 20, "a control connection | {} MiB | 0"),
        (handshake.MAX_JOB_BYTES, "the job id, text of 1 to {} bytes"),
        (handshake.MAX_TEXT_BYTES, "Text is at most {} bytes"),
        (int(handshaking.HANDSHAKE_TIMEOUT_S), "must be done within {} s of"),
        (handshaking.MAX_PENDING, "At most {} connections wait in mid-handshake"),
        (link.ACK_EVERY_FRAMES, "acknowledge after {} frames or 4 MiB"),
        (link.ACK_EVERY_BYTES >> 20, "acknowledge after 64 frames or {} MiB"),
        (frame.Limits.for_handshake().header_bytes, "until RESUME | {:,} | 0"),
        (reunion.NUMBER_BYTES, "bin of {} bytes, chosen by the dialer"),
        (int(reunion.LIMIT_S), "ringd waits {} s for the word"),
        (int(EngineOptions().resume_s), "ringd gives a link {} s to come back"),
        (EngineOptions().inline_bytes >> 10, "for payloads of at most {} KiB. ringd gives"),
        (int(engine.CALL_AGAIN_S), "still takes for up, for more than {} s"),
        (int(engine.LINK_GRACE_S), "ringd waits {} s for `lost`"),
        (round(inquiries.INQUIRY_S * 1000), "must answer within {} ms by `op_answer`"),
        (round(endings.VERDICT_S * 1000), "(ringd waits {} ms)"),
        (intake.MAX_FRAMES, "innermost frame first, at most {} count"),
        (intake.MAX_WAITS, "at most {} count. Each is a map"),
        (round(inquiries.WALK_S * 1000), "asked about in the first {} ms only"),
        (inquiries.MAX_HOPS, "and at most {}. `chain`"),
        (early.MAX_EARLY_BYTES >> 20, "ringd keeps up to {} MiB"),
        (early.MAX_EARLY_FRAMES_OF_PEER, "payload and {:,} frames"),
        (run_ahead.RUN_AHEAD_BYTES >> 20, "take the count over {} MiB"),
        (run_ahead.RUN_AHEAD_TOTAL_BYTES >> 20, "the bound is {} MiB div (N−1)"),
        (
            run_ahead.RUN_AHEAD_TOTAL_BYTES // run_ahead.RUN_AHEAD_BYTES + 1,
            "With more than {} ranks",
        ),
        (run_ahead.RUN_AHEAD_OPERATIONS, "at most {:,} operations are counted"),
        (4 * EngineOptions().max_in_flight, "for seq up to {:,} beyond"),
        (mail_lane.MAX_UNTAKEN_MESSAGES, "Beyond {:,} messages, or 4 MiB"),
        (run_ahead.RUN_AHEAD_BYTES >> 20, "Beyond 1,024 messages, or {} MiB"),
        (
            mail_lane.OFFERS_FACTOR * EngineOptions().max_in_flight,
            "more than {:,} offers waiting (4 times `max_in_flight`)",
        ),
        (mail_frames.MAX_KEPT_FRAMES, "of each peer up to {:,} frames and 4 times"),
        (mail_frames.KEPT_ALLOWANCES, "16,384 frames and {} times the bytes above"),
        (hearing.MAX_PAIRS, "pairs of whole numbers, at most {:,}"),
        (MAX_SPEC_BYTES >> 10, "At most {} KiB. A scalar"),
        (MAX_DIMS, "array of at most {} sizes"),
        (MAX_TAG.bit_length(), "`tag` is from 0 to 2^{} − 1"),
        (groups.MAX_NUMBER.bit_length() - 1, "Numbers are below 2^{}."),
        (EngineOptions().eager_bytes >> 10, "`eager_bytes` ({} KiB by default)"),
        (EngineOptions().segment_bytes >> 20, "`segment_bytes` ({} MiB by default)"),
        (ipc.MAX_MESSAGE_BYTES >> 10, "of at most {} KiB. HELLO"),
    ],
)
def test_the_numbers_are_the_codes(value: int, sentence: str) -> None:
    assert sentence.format(value) in FLAT.replace("2³¹", "2^31")
