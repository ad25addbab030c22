"""The proof of docs/wire-protocol.md: a peer written from it alone joins a real group.

The peer (``tests/wire/foreign``) has sockets, struct, hmac, hashlib and msgpack, and neither
threads nor asyncio. ringd is on the other side only: ``tests/wire/real_ranks.py``.
"""

from __future__ import annotations

import ast
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringd.vocabulary import OpSpec
from tests.wire.foreign.call import AllToAll, all_reduce
from tests.wire.foreign.frames import (
    DATA,
    ENVELOPE,
    PATIENCE_S,
    REFUSED,
    Failed,
    Frame,
    Refused,
    Wire,
)
from tests.wire.foreign.rank import ForeignRank
from tests.wire.foreign_job import Array, both, in_thread, sum_is_right, summing, two_inputs
from tests.wire.real_ranks import real_ranks

# Collectives


@pytest.mark.parametrize(
    ("dtype", "count", "algorithm"),
    [
        pytest.param("float32", 1001, "exchange", id="eager, one segment"),
        pytest.param("float32", 0, "exchange", id="empty"),
        pytest.param("float32", 1_310_723, "direct", id="by credit, segments, unequal chunks"),
        pytest.param("float32", 600_001, "ring", id="a ring of two"),
        pytest.param("float16", 600_001, "ring", id="wide partial sums of a 16-bit type"),
    ],
)
async def test_an_all_reduce_with_a_foreign_peer_is_right_on_both_sides(
    dtype: str, count: int, algorithm: str
) -> None:
    ours, theirs = two_inputs(dtype, count)
    expected = (ours.astype(np.float32) + theirs.astype(np.float32)).astype(dtype).tobytes()
    async with both() as (real, peer):
        ended = real.zero.call(summing(ours, algorithm), ours)
        call = all_reduce(peer.world, dtype, theirs.tobytes(), algorithm)
        assert await in_thread(call.run) == expected
        assert (await ended).code == "ok"
        assert ours.tobytes() == expected


async def test_calls_follow_each_other_whoever_is_first() -> None:
    async with both() as (real, peer):
        for turn in range(20):
            ours, theirs = two_inputs("float32", 100 + turn)
            expected = (ours + theirs).tobytes()
            call = all_reduce(peer.world, "float32", theirs.tobytes(), "exchange")
            if turn % 2:  # rank 0 has the peer's segment before its own call
                await in_thread(call.send_ahead)
            ended = real.zero.call(summing(ours), ours)
            assert await in_thread(call.run) == expected
            assert (await ended).code == "ok"
            assert ours.tobytes() == expected


async def test_different_calls_fail_on_both_sides_and_the_next_one_works() -> None:
    async with both() as (real, peer):
        ours, theirs = two_inputs("float32", 12)
        ended = real.zero.call(summing(ours[:11]), ours[:11])
        call = all_reduce(peer.world, "float32", theirs.tobytes(), "exchange")
        with pytest.raises(Failed) as failed:
            await in_thread(call.run)
        assert failed.value.code == "mismatch"
        assert (await ended).code == "mismatch"
        await sum_is_right(real, peer.world)


# all_to_all: rank 0 has rows 0, 1, ... for itself and the foreign rank; rank 1 has rows 1000, ...
ROW = 3


def rows(rank: int, count: int) -> Array:
    return np.arange(1000 * rank, 1000 * rank + ROW * count, dtype=np.float32).reshape(count, ROW)


@pytest.mark.parametrize("foreign_first", [False, True])
@pytest.mark.parametrize(
    ("of_zero", "of_one"),
    [
        pytest.param((2, 3), (1, 4), id="uneven"),
        pytest.param((0, 2), (0, 5), id="nothing for rank 0"),
        pytest.param((1, 60_000), (70_000, 2), id="by credit"),
    ],
)
async def test_an_all_to_all_with_uneven_splits_is_right_on_both_sides(
    of_zero: tuple[int, int], of_one: tuple[int, int], foreign_first: bool
) -> None:
    zero, one = rows(0, sum(of_zero)), rows(1, sum(of_one))
    keeps, gives = np.split(zero, [of_zero[0]])
    gets, stays = np.split(one, [of_one[0]])
    region = np.concatenate([zero, keeps, np.full_like(gets, np.nan)])
    splits = (*of_zero, of_zero[0], of_one[0])
    async with both() as (real, peer):
        parts = gets.tobytes(), stays.tobytes()
        theirs = AllToAll(peer.world, "float32", ROW, parts, (of_zero[1], of_one[1]))
        if foreign_first:
            await in_thread(theirs.call.send_ahead)
        ended = real.zero.call(OpSpec("all_to_all", "float32", "", (ROW,)), region, splits)
        assert await in_thread(theirs.run) == [gives.tobytes(), stays.tobytes()]
        assert (await ended).code == "ok"
        assert region[len(zero) :].tobytes() == np.concatenate([keeps, gets]).tobytes()
        await sum_is_right(real, peer.world)


@pytest.mark.parametrize("foreign_first", [False, True])
async def test_splits_that_do_not_agree_fail_on_both_sides(foreign_first: bool) -> None:
    """Rank 0 sends 3 rows and wants 2; rank 1 sends 2 and wants 4."""
    async with both() as (real, peer):
        theirs = AllToAll(peer.world, "float32", ROW, (rows(1, 2).tobytes(), b""), (4, 0))
        if foreign_first:
            await in_thread(theirs.call.send_ahead)
        spec = OpSpec("all_to_all", "float32", "", (ROW,))
        ended = real.zero.call(spec, np.zeros((5, ROW), np.float32), (0, 3, 0, 2))
        with pytest.raises(Failed) as failed:
            await in_thread(theirs.run)
        assert failed.value.code == "mismatch"
        assert (await ended).code == "mismatch"
        await sum_is_right(real, peer.world)


# Goodbyes


async def test_a_goodbye_is_understood() -> None:
    async with both() as (real, peer):
        await in_thread(peer.leave)
        region = np.ones(3, np.float32)
        error = (await real.zero.call(summing(region), region)).error
        assert error is not None
        assert (error.code, error.rank, error.case) == ("peer_lost", 1, "it left the job")


# Refusals


@pytest.mark.parametrize(
    ("who", "code"),
    [
        ({"job": "another"}, "job"),
        ({"world": 3}, "world_size"),
        ({"rank": 2}, "rank"),
        ({"rank": 0}, "rank_taken"),
    ],
)
async def test_a_stranger_is_refused_by_name(who: dict[str, Any], code: str) -> None:
    async with real_ranks() as real:
        stranger = ForeignRank(**who)
        try:
            with pytest.raises(Refused) as refused:
                await in_thread(stranger.join, real.address)
        finally:
            stranger.close()
        assert refused.value.code == code


async def test_another_version_is_refused_at_its_fifth_byte() -> None:
    def knock(address: tuple[str, int]) -> Frame:
        with socket.create_connection(address, PATIENCE_S) as sock:
            sock.sendall(b"RNGD\x02")
            return Wire(sock).read()

    async with real_ranks() as real:
        frame = await in_thread(knock, real.address)
        assert (frame.kind, frame.header["code"]) == (REFUSED, "version")


async def test_what_is_not_ringd_is_cut_off_without_an_answer() -> None:
    def knock(address: tuple[str, int]) -> bytes:
        with socket.create_connection(address, PATIENCE_S) as sock, suppress(ConnectionError):
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            return sock.recv(100)
        return b""

    async with real_ranks() as real:
        assert await in_thread(knock, real.address) == b""


ALL_TO_ALL = OpSpec("all_to_all", "float32", "", (ROW,)).packed


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        pytest.param(DATA, [1, 0, 0, ALL_TO_ALL, 900, [1]], id="a pair of one"),
        pytest.param(DATA, [1, 0, 0, ALL_TO_ALL, 900, [1, 2, 3]], id="a pair of three"),
        pytest.param(DATA, [1, 0, 0, ALL_TO_ALL, 900, [1, "2"]], id="a pair with a text"),
        pytest.param(DATA, [1, 0, 0, ALL_TO_ALL, 900, [True, 2]], id="a pair with a bool"),
        pytest.param(DATA, [1, 0, 0, ALL_TO_ALL, 900, None], id="a pair that is nil"),
        pytest.param(ENVELOPE, [1, 0, ALL_TO_ALL, 900, {}], id="an envelope's pair"),
        pytest.param(ENVELOPE, [1, 0, ALL_TO_ALL, 900, [1, 2], 3], id="more than a pair"),
        pytest.param(DATA, [1, 0, 0, ALL_TO_ALL], id="half an introduction"),
        pytest.param(DATA, [1, 0, 0, bytes(16 * 1024 + 1), 900], id="a spec over 16 KiB"),
    ],
)
async def test_a_malformed_introduction_costs_its_sender_the_link(
    kind: int, header: list[Any]
) -> None:
    async with both() as (real, peer):
        peer.links[0].note(kind, header, stream=1)
        with pytest.raises((EOFError, ConnectionResetError)):
            await in_thread(peer.until, lambda: False)
        ended = await real.zero.call(OpSpec("barrier", "", "", ()), np.empty(0))
        assert ended.code == "peer_lost"


# Independence


FOREIGN = sorted((Path(__file__).parent / "foreign").glob("*.py"))


@pytest.mark.parametrize("path", FOREIGN, ids=lambda path: path.name)
def test_the_peer_uses_nothing_of_ringd(path: Path) -> None:
    allowed = {"__future__", "collections", "dataclasses", "typing", "msgpack"}
    allowed |= {"itertools", "hashlib", "hmac", "os", "select", "socket", "struct", "time"}
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.startswith("tests.wire.foreign") or name.partition(".")[0] in allowed
