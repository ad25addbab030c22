"""Strangers on the ports of a running job: they are shown the door, and the job goes on."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from ringd.errors import HandshakeRefusedError
from ringd.transport.base import Address
from ringd.transport.handshaking import fresh_nonce, shake_hands_as_dialer
from ringd.transport.tcp import TcpTransport
from ringd.wire.frame import MAGIC, PREAMBLE, VERSION
from ringd.wire.handshake import DAEMON, LINK, RENDEZVOUS, Credentials, Expectation
from tests.processes.harness import WIDER, Daemons, until
from tests.processes.inventory import private_bytes
from tests.processes.programs import faults

Standing = Callable[[int], Daemons]
HUGE = 2**63 - 1
HELLOS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: ringd\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + secrets.token_bytes(160),
    "our magic and a length of 2^63-1": PREAMBLE.pack(MAGIC, VERSION, 1, 0, 8, 0, HUGE, 1, 0),
    "our magic and a header of 4 GB": PREAMBLE.pack(MAGIC, VERSION, 1, 0, 2**32 - 1, 0, 0, 1, 0),
    "another version": PREAMBLE.pack(MAGIC, VERSION + 1, 1, 0, 8, 0, 0, 1, 0),
    "noise": secrets.token_bytes(4096),
}

PROVOKES_COMPLAINTS = True


@contextlib.contextmanager
def at_work(group: Daemons) -> Iterator[None]:
    """All ranks sum without a pause meanwhile, and nothing comes in between."""
    group.start(faults.soak, rounds=400, max_count=20_000, skew_ms=1)
    until(lambda: group.status(0)["completed"], "the job is at work")
    yield
    for told in group.results():
        assert told["wrong"] == []
        assert told["slowest_s"] < 1.0 * WIDER


def ports_of(group: Daemons) -> list[tuple[str, tuple[str, int]]]:
    """Every TCP port of a job: whose, which is also its log's name, and where."""
    places = {"rendezvous": group.rendezvous}
    places |= {f"daemon{rank}": group.status(rank)["address"] for rank in range(group.n)}
    return [
        (name, (at.rpartition(":")[0], int(at.rpartition(":")[2]))) for name, at in places.items()
    ]


def closed_within(sock: socket.socket, limit_s: float) -> bool:
    """Whether the other side ends the connection in time."""
    sock.settimeout(limit_s)
    deadline = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline:
            if not sock.recv(4096):
                return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return False


def test_garbage_on_every_port_is_refused_before_anything_is_allocated(standing: Standing) -> None:
    group = standing(2)
    before = [private_bytes(group.daemon_pid(rank)) for rank in range(2)]
    with at_work(group):
        for name, where in ports_of(group):
            for what, hello in HELLOS.items():
                with socket.create_connection(where) as sock:
                    me = "{}:{}".format(*sock.getsockname())
                    sock.sendall(hello)
                    assert closed_within(sock, 1.0 * WIDER), f"{what} at the {name}"
                until(lambda name=name, me=me: me in group.log(name), f"{me} in the log of {name}")
                assert group.log(name).count(me) == 1
    after = [private_bytes(group.daemon_pid(rank)) for rank in range(2)]
    assert max(b - a for a, b in zip(before, after, strict=True)) < 10e6


def test_silence_and_half_a_head_on_every_port_are_ended_within_the_limit_of_a_handshake(
    standing: Standing,
) -> None:
    group = standing(2)
    with at_work(group), contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(where))
            for _, where in ports_of(group)
            for _ in range(20)
        ]
        for sock in silent[::2]:
            sock.sendall(HELLOS["another version"][:3])
        for sock in silent:
            assert closed_within(sock, 5.0 * WIDER)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"secret": b"another secret of another job, 32 bytes"}, "secret"),
        ({"job_id": "leftover"}, "job"),
        ({"world_size": 3}, "world size"),
        ({"rank": 1}, "rank 1"),
    ],
)
def test_another_jobs_leftover_is_refused_by_name(
    standing: Standing, changed: dict[str, object], word: str
) -> None:
    group = standing(2)
    secret = (group.folder / "secret").read_bytes().strip()

    async def knock(where: str, role: str, expect: Expectation) -> str:
        given = {"job_id": "test", "rank": 0, "world_size": 2, "role": role, "secret": secret}
        host, _, port = where.rpartition(":")
        deadline = asyncio.get_running_loop().time() + 10
        channel = await TcpTransport().dial(Address(host, int(port)), deadline=deadline)
        with pytest.raises(HandshakeRefusedError) as refused:
            await shake_hands_as_dialer(
                channel,
                Credentials(**{**given, **changed}),
                expect=expect,
                establish=lambda connection, peer: pytest.fail("it let us in"),
                deadline=deadline,
                nonce=fresh_nonce(),
            )
        return str(refused.value)

    with at_work(group):
        texts = [asyncio.run(knock(group.rendezvous, DAEMON, Expectation(RENDEZVOUS)))]
        peer = group.status(1)["address"]
        texts.append(asyncio.run(knock(peer, LINK, Expectation(LINK, 1))))
    for text in texts:
        assert word in text
