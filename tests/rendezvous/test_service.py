"""The service and its agents: over loopback TCP and in memory, the same scenes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from ringd.errors import AddressInUseError, HandshakeRefusedError, RendezvousError
from ringd.rendezvous.hearing import MAX_PAIRS
from ringd.rendezvous.news import Claim
from ringd.rendezvous.observer import ask_status, observer_credentials
from ringd.rendezvous.service import RendezvousService
from ringd.transport.base import Address
from ringd.transport.connection import Connection, FrameCollector
from ringd.transport.handshaking import fresh_nonce, shake_hands_as_dialer
from ringd.wire.control import message
from ringd.wire.frame import Kind, Limits, encode
from ringd.wire.handshake import DAEMON, LINK, RENDEZVOUS, Credentials, Expectation, Identity
from ringd.wire.raised import Raised
from tests.rendezvous.scene import (
    DATA_PORT,
    JOB,
    LOG,
    SECRET,
    MemoryWorld,
    Scene,
    TcpWorld,
    World,
)

WORLDS: dict[str, Callable[[], World]] = {
    "tcp": TcpWorld,
    "tcp on uvloop": lambda: TcpWorld(uvloop.new_event_loop),
    "memory": MemoryWorld,
}
Play = Callable[..., None]


@pytest.fixture(params=WORLDS)
def play(request: pytest.FixtureRequest) -> Play:
    """Runs a scene to its end in a world, and cleans up."""
    return player(WORLDS[request.param]())


@pytest.fixture
def play_in_memory() -> Play:
    return player(MemoryWorld())


def player(world: World) -> Play:
    def run(act: Callable[[Scene], Awaitable[None]], world_size: int, **settings: Any) -> None:
        async def main() -> None:
            scene = await Scene(world, world_size, **settings).start()
            try:
                await act(scene)
            finally:
                await scene.close()

        world.run(main())

    return run


async def refused(scene: Scene, rank: int, **changes: Any) -> HandshakeRefusedError:
    """The refusal that this daemon gets; at once, without another try."""
    member = scene.member(rank, **changes)
    with pytest.raises(HandshakeRefusedError) as info:
        await member.join()
    assert len(member.transport.dialled) == 1
    assert not member.agent.connected
    return info.value


# Joining


def test_all_hear_the_same_members_and_start_together(play: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        expected = {
            rank: Address(scene.world.host(f"host{rank}"), DATA_PORT + rank) for rank in range(3)
        }
        for member in members:
            assert member.diary.of("members") == [(expected,)]
            assert member.diary.of("start") == [(1,)]
        assert scene.service.status()["running"] == [0, 1, 2]

    play(act, 3)


@pytest.mark.parametrize(("seat", "alone"), [(None, True), (0, False)])
def test_who_holds_the_service_is_not_among_the_others(
    play_in_memory: Play, seat: int | None, alone: bool
) -> None:
    async def act(scene: Scene) -> None:
        assert not scene.service.serves_others
        await scene.member(0).join()
        assert scene.service.serves_others is alone
        await scene.member(1).join()
        assert scene.service.serves_others

    play_in_memory(act, 2, seat=seat)


def test_those_who_are_early_hear_who_is_missing(play: Play) -> None:
    async def act(scene: Scene) -> None:
        early = [scene.member(0), scene.member(2)]
        for member in early:
            await member.join()
            member.agent.attach()
        for member in early:
            await member.diary.wrote("waiting", [0, 2], [0, 2])
            assert member.diary.of("members") == []
        late = scene.member(1)
        await late.join()
        late.agent.attach()
        for member in (*early, late):
            await member.diary.wrote("start", 1)

    play(act, 3)


def test_wrong_daemons_are_refused_by_name_and_the_good_ones_start(play: Play) -> None:
    async def act(scene: Scene) -> None:
        first = scene.member(1)
        await first.join()
        taken = await refused(scene, 1)
        assert taken.text.startswith(f"rank 1 already taken by {first.transport.dialled[0].local}")
        assert "(pid 1001 on host1, listens on " in taken.text
        assert taken.refused_by == "acceptor"
        assert "rank 5 is out of range for world size 2" in str(await refused(scene, 5))
        sizes = "the daemon of rank 0 has 3, the rendezvous has 2"
        assert sizes in str(await refused(scene, 0, world_size=3))
        assert "job 'other' is not" in str(await refused(scene, 0, job_id="other"))
        assert "wrong job secret" in str(await refused(scene, 0, secret=b"guessed"))
        assert "unexpected role 'link'" in str(await refused(scene, 0, role=LINK))
        second = scene.member(0)
        await second.join()
        for member in (first, second):
            member.agent.attach()
        for member in (first, second):
            await member.diary.wrote("start", 1)

    play(act, 2)


def test_sixty_four_daemons_may_join_at_once(play: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        assert len(members) == 64

    play(act, 64)


def test_a_place_is_taken_anew_after_a_kill_and_the_next_epoch_starts(play: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        members[1].transport.reset()
        for rank in (0, 2):
            lost, *_ = await members[rank].diary.heard("lost")
            assert (lost.rank, lost.case, lost.epoch) == (1, "daemon lost", 1)
            assert "reset" in lost.detail
            members[rank].agent.detach("raised", "PeerLostError", 1, {0: 4})
            members[rank].agent.attach()
        new = scene.member(1)
        await new.join()
        new.agent.attach()
        for member in (members[0], members[2], new):
            await member.diary.wrote("start", 2)
        assert len(members[0].diary.of("members")) == 2

    play(act, 3)


# Going


def test_a_goodbye_and_a_death_are_told_apart(play: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        members[0].agent.detach("goodbye", "", 1, {3: 2, 0: 7, 1: 0})
        raised = Raised("ValueError", "x", "/job/train.py", 3)
        members[1].agent.detach("raised", "ValueError: x, train.py:3", 1, {0: 5}, raised)
        await members[2].diary.wrote("left", 0, 1, {0: 7, 3: 2, 1: 0})
        lost, *_ = await members[2].diary.heard("lost")
        assert (lost.rank, lost.case) == (1, "trainer raised")
        assert lost.detail == "ValueError: x, train.py:3"
        assert lost.raised == raised
        assert lost.to_fields()["exception"] == raised.words()
        await members[0].diary.heard("lost")
        assert members[1].diary.of("lost") == []

    play(act, 3)


def test_a_daemon_that_leaves_is_told_as_left_and_hears_no_more(play: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        members[1].agent.leave()
        members[1].agent.leave()
        lost, *_ = await members[0].diary.heard("lost")
        assert (lost.rank, lost.case) == (1, "daemon left")
        assert members[1].diary.of("coordinator lost") == []
        assert not members[1].agent.connected

    play(act, 2)


def test_the_end_of_the_service_is_told_once_to_every_daemon(play: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        await scene.service.stop()
        for member in members:
            await member.diary.heard("coordinator lost")
            member.agent.attach()  # nobody hears it, nothing breaks
            assert not member.agent.connected
            with pytest.raises(RendezvousError):
                await member.agent.request_status()
        assert [len(m.diary.of("coordinator lost")) for m in members] == [1, 1]

    play(act, 2)


def test_a_start_that_crosses_giving_up_is_not_for_the_next_trainer(
    play_in_memory: Play,
) -> None:
    async def act(scene: Scene) -> None:
        zero, one = await scene.formed()
        assert isinstance(scene.world, MemoryWorld)
        scene.world.network.delay("service", "host1", 0.5)
        one.agent.attach()
        zero.agent.attach()
        await scene.until(lambda: scene.service.status()["epoch"] == 1)
        assert one.diary.of("start") == []  # it is on its way
        one.agent.detach("gave_up", "waited too long", 0)
        one.agent.attach()
        await zero.diary.wrote("left", 1, 1, {0: 0})
        assert one.diary.of("start") == []
        zero.agent.detach("goodbye", "", 1)
        zero.agent.attach()
        await zero.diary.wrote("start", 2)
        await one.diary.wrote("start", 2)
        assert one.diary.of("start") == [(2,)]

    play_in_memory(act, 2)


# What is passed on


def test_an_error_goes_to_all_once_the_reporter_among_them(play: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        error = {"code": "mismatch", "message": "differs", "fields": {"op": "barrier"}}
        for seq in (9, 9, 10):
            members[1].agent.op_failed(1, 0, [0, 1, 2], seq, error)
        for member in members:
            fields = {"op": "barrier", "verdict": "1.2"}
            await member.diary.wrote("abort", 1, 0, 0, 10, {**error, "fields": fields})
            assert len(member.diary.of("abort")) == 2

    play(act, 3)


def test_errors_of_two_groups_with_one_number_both_arrive(play: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        for rank, group in ((1, [0, 1]), (3, [3, 2])):
            error = {"code": "mismatch", "message": f"differs on rank {rank}"}
            members[rank].agent.op_failed(1, 1, group, 6, error)
        for member in members:
            await member.diary.heard("abort", 2)
            heard = {(entry[2], entry[4]["message"]) for entry in member.diary.of("abort")}
            assert heard == {(0, "differs on rank 1"), (2, "differs on rank 3")}

    play(act, 4)


def test_a_timeout_is_asked_about_and_all_hear_the_verdict_that_the_answers_give(
    play: Play,
) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        error = {"code": "timeout", "message": "late", "fields": {"op": "barrier"}}
        for rank in (1, 0):
            members[rank].agent.op_failed(1, 0, [0, 1, 2], 9, error)
        for rank, member in enumerate(members):
            await member.diary.wrote("inquiry", 1, 1, 0, 0, 9)
            member.agent.op_answer(1, answer(state="absent" if rank == 2 else "waiting", on=2))
        for member in members:
            epoch, group, lowest, seq, verdict = await member.diary.heard("abort")
            assert (epoch, group, lowest, seq) == (1, 0, 0, 9)
            assert verdict["fields"]["culprits"] == [2]
            assert verdict["fields"]["stacks"] == {"2": ["train.py:7 in step"]}
            assert verdict["fields"]["verdict"] == "1.1"
            assert len(member.diary.of("inquiry")) == 1

    play(act, 3)


def answer(*, state: str, on: int) -> dict[str, Any]:
    """A daemon's word on an operation, as it travels."""
    return {
        "state": state,
        "entered_s": 1.0,
        "idle_s": 1.0 if state == "absent" else 0.0,
        "waiting_on": [on] if state == "waiting" else [],
        "bytes_done": 0,
        "bytes_total": 8,
        "flows": [[on, 8, 0, 0, 1.0]] if state == "waiting" else [],
        "trainer": "sleeping",
        "pid": 44,
        "stack": ["train.py:7 in step"],
        "next_seq": 9,
    }


def test_the_lower_rank_dials(play: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.formed()
        members[2].agent.want_link(0)
        await members[0].diary.wrote("dial", 2)

    play(act, 3)


def test_unequal_sizes_are_refused_to_all(play: Play) -> None:
    async def act(scene: Scene) -> None:
        members = [scene.member(0, sizes=(1, 2)), scene.member(1, sizes=(1, 3))]
        for member in members:
            await member.join()
        for member in members:
            text, *_ = await member.diary.heard("refused")
            assert "rank 1 has segment_bytes and eager_bytes [1, 3]" in text

    play(act, 2)


def test_a_broken_link_is_judged_after_150_ms(play_in_memory: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        loop = asyncio.get_running_loop()
        began = loop.time()
        members[1].agent.link_lost(2, "reset by peer", 1)
        members[2].agent.link_lost(1, "end of stream", 1)
        for member in members:
            lost, *_ = await member.diary.heard("lost")
            assert (lost.rank, lost.case, lost.link) == (2, "link lost", (1, 2))
            assert "the link 1→2 broke" in lost.detail
        assert loop.time() - began == pytest.approx(0.150, abs=0.002)

    play_in_memory(act, 4)


# Silence


def test_a_daemon_that_vanishes_is_lost_at_the_limit(play_in_memory: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        world = scene.world
        assert isinstance(world, MemoryWorld)
        began = world.loop.time()
        world.network.cut("host1", "service")
        lost, *_ = await members[0].diary.heard("lost")
        assert (lost.rank, lost.case, lost.detail) == (1, "daemon lost", "silent for 3 s")
        assert 2.0 <= world.loop.time() - began <= 3.01

    play_in_memory(act, 3)


def test_daemons_that_beat_stand_for_an_hour(play_in_memory: Play) -> None:
    async def act(scene: Scene) -> None:
        await scene.running()
        await asyncio.sleep(3600)
        assert scene.service.status()["running"] == [0, 1]

    play_in_memory(act, 2)


@pytest.mark.parametrize("name", ["tcp", "tcp on uvloop"])
def test_nobody_is_called_silent_because_the_service_itself_was_held_up(name: str) -> None:
    async def main() -> None:
        scene = await Scene(TcpWorld(), 2, dead_after_s=0.3).start()
        members = [scene.member(rank, heartbeat_s=0.05) for rank in range(2)]
        for member in members:
            await member.join()
        time.sleep(0.9)  # noqa: ASYNC251
        await asyncio.sleep(0.2)
        assert scene.service.status()["joined"] == [0, 1]
        await scene.close()

    WORLDS[name]().run(main())


@pytest.mark.parametrize("away_s", [2.0, 2.9, 3.5, 8.0, 60.0])
def test_a_service_that_was_out_of_reach_ends_no_epoch(play_in_memory: Play, away_s: float) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        world = scene.world
        assert isinstance(world, MemoryWorld)
        for rank, member in enumerate(members):
            member.diary.claim = Claim(1, (0, 1, 2), running=True)
            await asyncio.sleep(0.3 * (rank < 2))  # they do not beat all at once
        world.network.stall("service")
        await asyncio.sleep(away_s)
        world.network.resume("service")
        await asyncio.sleep(10)
        assert all(member.agent.connected for member in members)
        assert [member.diary.of("lost") for member in members] == [[], [], []]
        assert scene.service.status()["running"] == [0, 1, 2]
        # It judges as before.
        members[2].transport.reset()
        lost, *_ = await members[0].diary.heard("lost")
        assert (lost.rank, lost.case) == (2, "daemon lost")

    play_in_memory(act, 3)


def test_who_was_killed_while_the_service_was_out_of_reach_is_named(play_in_memory: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        world = scene.world
        assert isinstance(world, MemoryWorld)
        for member in members:
            member.diary.claim = Claim(1, (0, 1, 2), running=True)
        world.network.stall("service")
        world.network.crash("host1", "eof")
        await asyncio.sleep(4)
        world.network.resume("service")
        for rank in (0, 2):
            lost, *_ = await members[rank].diary.heard("lost")
            assert (lost.rank, lost.case) == (1, "daemon lost")
            assert "did not come back" in lost.detail

    play_in_memory(act, 3)


# Status


def test_a_daemon_and_an_observer_get_the_whole_groups_state(play: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        members[1].diary.state = {"seq": 41}
        look = ask_status(
            scene.world.transport("elsewhere"),
            observer_credentials(JOB, SECRET),
            scene.address,
            deadline=asyncio.get_running_loop().time() + 5,
        )
        seen = await asyncio.gather(look, members[0].agent.request_status())
        for status in seen:
            assert status["epoch"] == 1
            assert status["unanswered"] == []
            assert [r["rank"] for r in status["reports"]] == [0, 1, 2]
            assert status["reports"][1]["state"] == {"seq": 41}
            assert status["daemons"][2]["host"] == "host2"

    play(act, 3)


def test_the_status_comes_in_two_seconds_and_names_who_did_not_answer(
    play_in_memory: Play,
) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        world = scene.world
        assert isinstance(world, MemoryWorld)
        world.network.cut("host1", "service")
        began = world.loop.time()
        asked = [members[0].agent.request_status() for _ in range(3)]
        for status in await asyncio.gather(*asked):
            assert status["unanswered"] == [1]
            assert [r["rank"] for r in status["reports"]] == [0, 2]
        assert world.loop.time() - began == pytest.approx(2.0, abs=0.002)
        members[1].transport.reset()
        world.network.heal("host1", "service")
        await members[0].diary.heard("lost")
        assert (await members[0].agent.request_status())["unanswered"] == []

    play_in_memory(act, 3)


def test_a_daemon_lost_meanwhile_is_not_waited_for(play_in_memory: Play) -> None:
    async def act(scene: Scene) -> None:
        members = await scene.running()
        loop = asyncio.get_running_loop()
        began = loop.time()
        asked = members[0].agent.request_status()
        members[1].transport.reset()
        status = await asked
        assert loop.time() - began < 0.1
        assert [r["rank"] for r in status["reports"]] == [0]

    play_in_memory(act, 2)


@pytest.mark.parametrize("changes", [{"secret": b"guessed"}, {"job_id": "other"}])
def test_an_observer_without_the_secret_of_the_job_sees_nothing(
    play: Play, changes: dict[str, Any]
) -> None:
    async def act(scene: Scene) -> None:
        await scene.formed()
        with pytest.raises(HandshakeRefusedError):
            await ask_status(
                scene.world.transport("elsewhere"),
                replace(observer_credentials(JOB, SECRET), **changes),
                scene.address,
                deadline=asyncio.get_running_loop().time() + 5,
            )

    play(act, 2)


def test_an_observer_of_nothing_gets_a_rendezvous_error(play: Play) -> None:
    async def act(scene: Scene) -> None:
        await scene.service.stop()
        with pytest.raises(
            RendezvousError, match=f"no status from the rendezvous at {scene.address}"
        ):
            await ask_status(
                scene.world.transport("elsewhere"),
                observer_credentials(JOB, SECRET),
                scene.address,
                deadline=asyncio.get_running_loop().time() + 5,
            )

    play(act, 2)


# Misbehaviour behind a good handshake


class Rude(FrameCollector):
    """A daemon that says what it likes."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def on_message(self, kind: int, header: Any) -> None:
        pass

    def on_closed(self, error: BaseException | None) -> None:
        self.ended.set()


async def rude_daemon(scene: Scene, rank: int) -> tuple[Connection, Rude]:
    rude = Rude()

    def establish(connection: Connection, peer: Identity) -> tuple[Rude, Limits]:
        return rude, Limits.for_control()

    channel = await scene.world.transport("rude").dial(scene.address, deadline=1e9)
    connection, _ = await shake_hands_as_dialer(
        channel,
        Credentials(JOB, rank, scene.world_size, DAEMON, SECRET),
        expect=Expectation(RENDEZVOUS),
        establish=establish,
        deadline=1e9,
        nonce=fresh_nonce(),
    )
    return connection, rude


@pytest.mark.parametrize(
    "frame",
    [
        encode(Kind.DATA, [1, 1, 0]),
        encode(Kind.CONTROL, ["no map"]),
        encode(Kind.CONTROL, {"no": "type"}),
        message("nonsense"),
        message("attach"),
        message("attach", attempt=1),
        message("status", request="x"),
        message("state", request=1, state=None),
        message("detach", how="goodbye", detail="", epoch=0, next_seq=0, groups=[[1]]),
        message("op_failed", epoch=0, group=1, seq=0, error={}),
        encode(Kind.CONTROL, {"type": "heartbeat"}, payload_bytes=1) + b"x",
    ],
)
def test_a_daemon_that_breaks_the_protocol_loses_its_place_only(play: Play, frame: bytes) -> None:
    async def act(scene: Scene) -> None:
        good = scene.member(0)
        await good.join()
        connection, rude = await rude_daemon(scene, 1)
        connection.send_frame(frame)
        async with asyncio.timeout(5):
            await rude.ended.wait()
        second = scene.member(1)
        await second.join()
        for member in (good, second):
            member.agent.attach()
        for member in (good, second):
            await member.diary.wrote("start", 1)

    play(act, 2)


@pytest.mark.parametrize(
    "frame",
    [
        message("nonsense"),
        message("start", epoch=1),
        message("members", members=[[0, "a", 1], [1]]),
        message("lost", rank=0, case="x", detail="", epoch=1, link=[1]),
        message("left", rank=1, epoch=1, next_seq=0),
        message("left", rank=1, epoch=1, next_seq=0, groups=[[1, None]]),
        message("left", rank=1, epoch=1, next_seq=0, groups=[[1, 0]] * (MAX_PAIRS + 1)),
        message("abort", epoch=1, group=1, seq=0, error={}),
        encode(Kind.PING),
    ],
)
def test_an_agent_gives_up_a_rendezvous_that_breaks_the_protocol(play: Play, frame: bytes) -> None:
    async def act(scene: Scene) -> None:
        member = scene.member(0)
        await member.join()
        scene.service._daemons[0].send_frame(frame)
        reason, *_ = await member.diary.heard("coordinator lost")
        assert reason
        assert not member.agent.connected

    play(act, 2)


# Set-up


async def test_a_port_in_use_is_named() -> None:
    scene = await Scene(TcpWorld(), 2).start()
    other = Scene(TcpWorld(), 2)
    other.address = scene.address
    with pytest.raises(AddressInUseError, match=str(scene.address)):
        await other.start()
    await other.close()
    await scene.close()


@pytest.mark.parametrize("changes", [{"role": DAEMON}, {"rank": 0}, {"world_size": 0}])
def test_a_service_needs_the_credentials_of_one(changes: dict[str, Any]) -> None:
    credentials = replace(Credentials(JOB, -1, 2, RENDEZVOUS, SECRET), **changes)
    with pytest.raises(ValueError, match="a rendezvous has"):
        RendezvousService(TcpWorld().transport("x"), credentials, log=LOG)
