"""The faults that a test can command, as the code on the hosts sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ringd.sim.clock import StandStill, VirtualLoop, run
from ringd.sim.weather import CalmWeather
from ringd.transport.base import Address, Channel, Receiver
from ringd.transport.memory import Death, MemoryNetwork, MemoryTransport

DELAY_S = 0.125  # of the calm weather, a power of two: sums are exact
PIPE_BYTES = 1000


class Inbox:
    """A receiver that keeps what it was told, and when."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._memory = memoryview(bytearray(1 << 16))
        self.data = b""
        self.times: list[float] = []
        self.drains: list[float] = []
        self.endings: list[tuple[float, BaseException | None]] = []

    def next_buffers(self) -> list[memoryview]:
        return [self._memory]

    def received(self, count: int) -> None:
        self.data += bytes(self._memory[:count])
        self.times.append(self._loop.time())

    def drained(self) -> None:
        self.drains.append(self._loop.time())

    def ended(self, error: BaseException | None) -> None:
        self.endings.append((self._loop.time(), error))

    def was_reset(self) -> bool:
        return bool(self.endings) and isinstance(self.endings[0][1], ConnectionResetError)


class Net:
    """Three hosts in calm weather; each listens at port 1."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(start_s=0.0)
        self.network = MemoryNetwork(
            self.loop, CalmWeather(DELAY_S), pipe_bytes=PIPE_BYTES, trace=[]
        )
        self.loop.diagnose.append(self.network.describe)
        self.accepted: list[tuple[Channel, Inbox]] = []

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        async def listen_first() -> None:
            for host in ("a", "b", "c"):
                await self.listen(host)
            await main

        run(listen_first(), loop=self.loop)
        assert not self.loop.unhandled

    async def listen(self, host: str) -> None:
        await MemoryTransport(self.network, host).listen(Address(host, 1), self._accept)

    def _accept(self, channel: Channel) -> None:
        inbox = Inbox(self.loop)
        channel.attach(inbox)
        self.accepted.append((channel, inbox))

    async def dial(self, host: str, peer: str, timeout_s: float = 10.0) -> tuple[Channel, Inbox]:
        deadline = self.loop.time() + timeout_s
        transport = MemoryTransport(self.network, host)
        channel = await transport.dial(Address(peer, 1), deadline=deadline)
        inbox = Inbox(self.loop)
        receiver: Receiver = inbox
        channel.attach(receiver)
        return channel, inbox

    @asynccontextmanager
    async def pair(
        self, host: str, peer: str
    ) -> AsyncIterator[tuple[Channel, Inbox, Channel, Inbox]]:
        near, near_inbox = await self.dial(host, peer)
        await asyncio.sleep(DELAY_S)
        yield near, near_inbox, *self.accepted[-1]


@pytest.fixture
def net() -> Net:
    return Net()


def test_a_dial_takes_two_ways_and_bytes_take_one(net: Net) -> None:
    async def main() -> None:
        begin = net.loop.time()
        near, _ = await net.dial("a", "b")
        assert net.loop.time() == begin + 2 * DELAY_S
        near.send([b"hello"], 5)
        await asyncio.sleep(1)
        assert net.accepted[0][1].times == [begin + 3 * DELAY_S]

    net.run(main())


def test_a_cut_holds_bytes_both_ways_until_it_is_healed(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, near_inbox, far, far_inbox):
            net.network.cut("a", "b")
            near.send([b"there"], 5)
            far.send([b"back"], 4)
            await asyncio.sleep(60)
            assert far_inbox.data == near_inbox.data == b""
            assert far_inbox.endings == near_inbox.endings == []
            net.network.heal("a", "b")
            healed_at = net.loop.time()
            await asyncio.sleep(1)
            assert (far_inbox.data, near_inbox.data) == (b"there", b"back")
            assert far_inbox.times == near_inbox.times == [healed_at]

    net.run(main())


def test_a_cut_one_way_lets_bytes_back_until_the_pipe_is_full_of_unacknowledged(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, near_inbox, far, far_inbox):
            net.network.cut("a", "b", both=False)
            near.send([b"lost"], 4)
            far.send([bytes(3 * PIPE_BYTES)], 3 * PIPE_BYTES)
            await asyncio.sleep(60)
            assert far_inbox.data == b""
            assert len(near_inbox.data) == PIPE_BYTES
            assert far.backlog_bytes == 2 * PIPE_BYTES
            net.network.heal("a", "b", both=False)
            await asyncio.sleep(1)
            assert far_inbox.data == b"lost"
            assert len(near_inbox.data) == 3 * PIPE_BYTES
            assert len(far_inbox.drains) == 1

    net.run(main())


def test_a_cut_leaves_other_paths_alone(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "c") as (near, _, _, far_inbox):
            net.network.cut("a", "b")
            net.network.cut("b", "c")
            near.send([b"around"], 6)
            await asyncio.sleep(1)
            assert far_inbox.data == b"around"

    net.run(main())


def test_bytes_that_had_arrived_before_a_cut_can_still_be_read(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, _, _, far_inbox):
            net.network.stall("b")
            near.send([b"early"], 5)
            await asyncio.sleep(1)
            net.network.cut("a", "b")
            net.network.resume("b")
            await asyncio.sleep(1)
            assert far_inbox.data == b"early"

    net.run(main())


def test_an_end_of_stream_is_repeated_after_a_cut(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, _, _, far_inbox):
            net.network.cut("a", "b")
            near.send([b"last"], 4)
            near.close()
            await asyncio.sleep(60)
            assert far_inbox.endings == []
            net.network.heal("a", "b")
            await asyncio.sleep(1)
            assert far_inbox.data == b"last"
            assert [error for _, error in far_inbox.endings] == [None]

    net.run(main())


def test_a_lost_reset_is_learnt_by_the_next_send(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, _, far, far_inbox):
            net.network.cut("a", "b")
            near.abort()
            await asyncio.sleep(60)
            net.network.heal("a", "b")
            await asyncio.sleep(60)
            assert far_inbox.endings == [], "half open, as with TCP"
            far.send([b"anybody?"], 8)
            sent_at = net.loop.time()
            await asyncio.sleep(1)
            assert far_inbox.was_reset()
            assert far_inbox.endings[0][0] == sent_at + 2 * DELAY_S

    net.run(main())


def test_a_dial_over_a_cut_path_goes_through_once_healed(net: Net) -> None:
    async def main() -> None:
        net.network.cut("b", "a", both=False)
        net.loop.call_later(5, lambda: net.network.heal("a", "b"))
        begin = net.loop.time()
        await net.dial("a", "b")
        assert net.loop.time() == begin + 5
        net.network.cut("a", "b")
        begin = net.loop.time()
        with pytest.raises(TimeoutError, match="b:1 did not answer"):
            await net.dial("a", "b", timeout_s=3.0)
        assert net.loop.time() == begin + 3

    net.run(main())


def test_a_reset_of_a_pair_is_seen_at_both_ends_of_all_its_channels(net: Net) -> None:
    async def main() -> None:
        ends = [await net.dial("a", "b"), await net.dial("b", "a"), await net.dial("a", "c")]
        await asyncio.sleep(DELAY_S)
        net.network.reset(("a", "b"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        inboxes = [inbox for _, inbox in (*ends, *net.accepted)]
        assert [inbox.was_reset() for inbox in inboxes] == [True, True, False] * 2
        await asyncio.sleep(1)
        assert [len(inbox.endings) for inbox in inboxes] == [1, 1, 0] * 2

    net.run(main())


def test_a_reset_of_one_channel_spares_its_neighbours(net: Net) -> None:
    async def main() -> None:
        one, other = await net.dial("a", "b"), await net.dial("a", "b")
        first = next(c for c in net.network.channels("a") if c.local == one[0].local)
        net.network.reset(first)
        await asyncio.sleep(1)
        assert one[1].was_reset()
        assert other[1].endings == []
        assert net.network.channels("a") != []

    net.run(main())


def test_what_was_on_the_wire_is_lost_in_a_reset(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, _, _, far_inbox):
            near.send([b"in flight"], 9)
            net.network.reset(("a", "b"))
            await asyncio.sleep(1)
            assert far_inbox.data == b""
            assert far_inbox.was_reset()

    net.run(main())


@pytest.mark.parametrize(
    ("how", "told"), [("reset", [ConnectionResetError]), ("eof", [type(None)]), ("silence", [])]
)
def test_a_crash_shows_at_its_peers_as_asked(net: Net, how: Death, told: list[type]) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, near_inbox, far, far_inbox):
            far.send([b"taken by the kernel"], 19)
            net.network.crash("b", how)
            crashed_at = net.loop.time()
            near.send([b"to the dead"], 11)
            await asyncio.sleep(1)
            assert near_inbox.data == b"taken by the kernel"
            assert [type(error) for _, error in near_inbox.endings] == told
            assert all(when == crashed_at + DELAY_S for when, _ in near_inbox.endings)
            assert far_inbox.data == b"", "no callback into a dead host"
            assert far_inbox.endings == []

    net.run(main())


def test_a_dead_host_refuses_dials_and_a_vanished_one_is_silent(net: Net) -> None:
    async def main() -> None:
        net.network.crash("b")
        with pytest.raises(ConnectionRefusedError):
            await net.dial("a", "b")
        net.network.crash("c", "silence")
        with pytest.raises(TimeoutError):
            await net.dial("a", "c")

    net.run(main())


def test_a_host_that_starts_again_is_a_new_one(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, near_inbox, _, _):
            net.network.crash("b", "silence")
            await asyncio.sleep(60)
            assert near_inbox.endings == []
            near.send([bytes(3 * PIPE_BYTES)], 3 * PIPE_BYTES)
            await asyncio.sleep(60)
            assert near.backlog_bytes == 2 * PIPE_BYTES, "nobody acknowledges"
            await net.listen("b")
            await asyncio.sleep(1)
            assert near_inbox.was_reset(), "the new life does not know the old channel"
            again, _ = await net.dial("a", "b")
            again.send([b"new"], 3)
            await asyncio.sleep(1)
            assert net.accepted[-1][1].data == b"new"

    net.run(main())


def test_nobody_repeats_what_a_vanished_host_had_sent_into_a_cut(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (_, near_inbox, far, _):
            net.network.cut("a", "b")
            far.send([b"last words"], 10)
            net.network.crash("b", "silence")
            await asyncio.sleep(60)
            net.network.heal("a", "b")
            await asyncio.sleep(60)
            assert near_inbox.data == b""
            assert near_inbox.endings == []

    net.run(main())


def test_a_dead_hosts_own_code_gets_nowhere(net: Net) -> None:
    async def main() -> None:
        transport = MemoryTransport(net.network, "a")
        async with net.pair("a", "b") as (near, _, _, far_inbox):
            net.network.crash("a")
            near.send([b"from a ghost"], 12)
            near.close()
            deadline = net.loop.time() + 5
            with pytest.raises(TimeoutError):
                await transport.dial(Address("b", 1), deadline=deadline)
            assert net.loop.time() == deadline
            assert far_inbox.data == b""
            assert len(net.accepted) == 1

    net.run(main())


def test_a_stalled_host_reads_nothing_and_its_pipes_fill_up(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, near_inbox, far, far_inbox):
            net.network.stall("b")
            near.send([bytes(3 * PIPE_BYTES)], 3 * PIPE_BYTES)
            far.send([b"stays behind"], 12)
            await asyncio.sleep(60)
            assert far_inbox.data == near_inbox.data == b""
            assert near.backlog_bytes == 2 * PIPE_BYTES
            net.network.resume("b")
            await asyncio.sleep(10)
            assert len(far_inbox.data) == 3 * PIPE_BYTES
            assert near_inbox.data == b"stays behind"
            assert near.backlog_bytes == far.backlog_bytes == 0
            assert len(near_inbox.drains) == len(far_inbox.drains) == 1

    net.run(main())


def test_a_stalled_host_sends_what_its_kernel_had_taken(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (_, near_inbox, far, _):
            far.send([b"x" * 1500], 1500)
            net.network.stall("b")
            await asyncio.sleep(60)
            assert len(near_inbox.data) == PIPE_BYTES

    net.run(main())


def test_a_stalled_hosts_kernel_accepts_and_its_code_hears_later(net: Net) -> None:
    async def main() -> None:
        net.network.stall("b")
        channel, inbox = await net.dial("a", "b")
        channel.send([b"knock"], 5)
        await asyncio.sleep(60)
        assert net.accepted == []
        net.network.resume("b")
        await asyncio.sleep(1)
        assert net.accepted[0][1].data == b"knock"
        net.network.stall("b")
        channel, inbox = await net.dial("a", "b")
        net.network.crash("b")
        await asyncio.sleep(1)
        assert inbox.was_reset()
        assert len(net.accepted) == 1

    net.run(main())


def test_an_end_is_told_to_a_stalled_host_when_it_goes_on(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, _, _, far_inbox):
            net.network.stall("b")
            near.abort()
            await asyncio.sleep(60)
            assert far_inbox.endings == []
            net.network.resume("b")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert far_inbox.was_reset()

    net.run(main())


def test_a_clogged_path_takes_nothing_and_what_it_took_arrives(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, near_inbox, far, far_inbox):
            near.send([b"taken"], 5)
            net.network.clog("a", "b")
            near.send([b" kept back"], 10)
            far.send([b"the other way"], 13)
            await asyncio.sleep(60)
            assert (far_inbox.data, near.backlog_bytes) == (b"taken", 10)
            assert near_inbox.data == b"the other way"
            net.network.unclog("a", "b")
            freed_at = net.loop.time()
            await asyncio.sleep(1)
            assert far_inbox.data == b"taken kept back"
            assert far_inbox.times[-1] == freed_at + DELAY_S
            assert near_inbox.endings == far_inbox.endings == []
            assert len(near_inbox.drains) == 1

    net.run(main())


def test_a_slow_reader_reads_so_much_at_a_time_and_its_sender_backs_up(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, _, _, far_inbox):
            net.network.slow("b", 0.5, 100)
            begin = net.loop.time()
            near.send([bytes(2 * PIPE_BYTES)], 2 * PIPE_BYTES)
            await asyncio.sleep(1)
            assert far_inbox.times == [begin + DELAY_S + 0.5]
            assert near.backlog_bytes == PIPE_BYTES - 100
            await asyncio.sleep(10)
            assert len(far_inbox.data) == 2 * PIPE_BYTES
            gaps = {b - a for a, b in zip(far_inbox.times, far_inbox.times[1:], strict=False)}
            assert gaps == {0.5}
            net.network.slow("b", 0.0)
            near.send([b"quick"], 5)
            sent_at = net.loop.time()
            await asyncio.sleep(1)
            assert far_inbox.times[-1] == sent_at + DELAY_S

    net.run(main())


def test_a_fuse_resets_the_pair_after_so_many_bytes_of_one_way(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, near_inbox, far, far_inbox):
            net.network.fuse("a", "b", 10)
            far.send([bytes(50)], 50)
            near.send([b"nine left"], 9)
            await asyncio.sleep(1)
            assert (far_inbox.data, far_inbox.endings) == (b"nine left", [])
            near.send([b"!"], 1)
            await asyncio.sleep(1)
            assert near_inbox.was_reset()
            assert far_inbox.was_reset()
            assert far_inbox.data == b"nine left", "what lights the fuse is lost with it"
        async with net.pair("a", "b") as (near, _, _, far_inbox):
            near.send([bytes(50)], 50)
            await asyncio.sleep(1)
            assert far_inbox.endings == [], "it burns once"

    net.run(main())


def test_lifting_undoes_all_faults_but_crashes(net: Net) -> None:
    async def main() -> None:
        network = net.network
        async with net.pair("a", "b") as (near, _, _, far_inbox):
            network.cut("a", "b")
            network.clog("a", "b")
            network.delay("a", "b", 5.0)
            network.slow("b", 5.0, 1)
            network.stall("b")
            network.refuse("b", 1)
            network.fuse("a", "b", 1)
            network.crash("c")
            network.lift()
            near.send([b"as ever"], 7)
            sent_at = net.loop.time()
            await asyncio.sleep(1)
            assert far_inbox.times == [sent_at + DELAY_S]
            await net.dial("a", "b")
            with pytest.raises(ConnectionRefusedError):
                await net.dial("a", "c")

    net.run(main())


def test_a_delay_is_added_and_keeps_the_order(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, _, _, far_inbox):
            net.network.delay("a", "b", 2.0, both=False)
            begin = net.loop.time()
            near.send([b"slow "], 5)
            net.network.delay("a", "b", 0.0)
            near.send([b"but first"], 9)
            await asyncio.sleep(10)
            assert far_inbox.data == b"slow but first"
            assert far_inbox.times == [begin + 2 + DELAY_S]

    net.run(main())


def test_a_port_can_refuse_though_something_listens(net: Net) -> None:
    async def main() -> None:
        net.network.refuse("b", 1)
        with pytest.raises(ConnectionRefusedError):
            await net.dial("a", "b")
        await net.dial("a", "c")
        net.network.refuse("b", 1, refused=False)
        await net.dial("a", "b")

    net.run(main())


def test_a_stand_still_names_the_faults_and_the_full_pipes(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, _, _, _):
            net.network.stall("b")
            net.network.cut("c", "a", both=False)
            near.send([bytes(1200)], 1200)
            await net.loop.create_future()

    with pytest.raises(StandStill) as caught:
        net.run(main())
    text = str(caught.value)
    assert "host b is stalled" in text
    assert "cut c to a" in text
    assert "b:1: backlog 200, wire 0, inbox 1000 bytes" in text


def test_the_trace_tells_what_happened_and_when(net: Net) -> None:
    async def main() -> None:
        async with net.pair("a", "b") as (near, _, _, _):
            near.send([b"12345"], 5)
            near.close()
            await asyncio.sleep(1)
            net.network.crash("c")

    net.run(main())
    assert net.network.trace is not None
    events = [event for _, event, *_ in net.network.trace]
    told = ["start", "dial", "connect", "take", "close", "deliver", "end", "crash"]
    assert [event for event in events if event != "start"] == told[1:]
    assert (0.5, "deliver", "a:50000>b:1", 5) in net.network.trace


def test_nothing_is_kept_of_channels_that_are_over(net: Net) -> None:
    async def main() -> None:
        for _ in range(10):
            async with net.pair("a", "b") as (near, _, far, _):
                near.send([b"bye"], 3)
                near.close()
                await asyncio.sleep(1)
                far.close()
            near, _ = await net.dial("b", "a")
            near.abort()
        await asyncio.sleep(1)
        assert net.network.channels("a") == net.network.channels("b") == []
        assert net.network.describe() == ""
        assert not net.network._pipes

    net.run(main())
