"""One port for links, and for daemons and observers as long as it is a rendezvous' too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringd.errors import HandshakeRefusedError
from ringd.sim.clock import VirtualLoop, run
from ringd.sim.weather import CalmWeather
from ringd.transport.base import Address
from ringd.transport.handshaking import Door, fresh_nonce, shake_hands_as_dialer
from ringd.transport.memory import MemoryNetwork, MemoryTransport
from ringd.wire.handshake import (
    DAEMON,
    LINK,
    OBSERVER,
    RENDEZVOUS,
    Credentials,
    Expectation,
    Identity,
    Refusal,
)
from tests.transport.test_handshaking import SERVICE, Ears, reception

LINK_0 = Credentials("digits", 0, 2, LINK, b"the secret")
LINK_1 = replace(LINK_0, rank=1)
DAEMON_0 = replace(LINK_0, role=DAEMON)
AT = Address("there", 4000)


class Port:
    """A listener for links that may have a second door, and who was let in where."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.network = MemoryNetwork(self.loop, CalmWeather())
        self.links, self.guests = Ears(), Ears()
        self.door: Door | None = None

    def open(self, refusal: Refusal | None = None) -> None:
        roles = frozenset({DAEMON, OBSERVER})
        self.door = Door(SERVICE, roles, lambda peer: refusal, self.guests.establish)

    async def listen(self) -> None:
        entrance = reception(
            self.links.establish, roles=frozenset({LINK}), second=lambda: self.door
        )
        entrance._door = replace(entrance._door, credentials=LINK_1)
        transport = MemoryTransport(self.network, AT.host)
        await transport.listen(AT, entrance.on_channel)

    async def come(self, credentials: Credentials, expect: Expectation) -> Identity:
        channel = await MemoryTransport(self.network, "here").dial(AT, deadline=1e9)
        _, peer = await shake_hands_as_dialer(
            channel,
            credentials,
            expect=expect,
            establish=Ears().establish,
            deadline=1e9,
            nonce=fresh_nonce(),
        )
        return peer

    def play(self, main: Any) -> None:
        async def whole() -> None:
            await self.listen()
            await main()

        run(whole(), loop=self.loop)


def test_each_role_is_received_by_who_it_came_for() -> None:
    port = Port()

    async def main() -> None:
        port.open()
        assert (await port.come(LINK_0, Expectation(LINK, 1))).role == LINK
        peer = await port.come(DAEMON_0, Expectation(RENDEZVOUS))
        assert (peer.role, peer.rank) == (RENDEZVOUS, -1)
        assert [p.role for p in port.links.peers] == [LINK]
        assert [p.role for p in port.guests.peers] == [DAEMON]

    port.play(main)


@pytest.mark.parametrize("opened", [False, True])
def test_who_has_no_door_is_refused_by_role_and_who_is_not_admitted_by_name(opened: bool) -> None:
    port = Port()

    async def main() -> None:
        if opened:
            port.open(Refusal("not_rendezvous", "this daemon is not the rendezvous"))
        with pytest.raises(HandshakeRefusedError) as info:
            await port.come(DAEMON_0, Expectation(RENDEZVOUS))
        assert info.value.fields["reason"] == ("not_rendezvous" if opened else "role")
        assert not port.guests.all
        assert (await port.come(LINK_0, Expectation(LINK, 1))).rank == 1

    port.play(main)


def test_another_secret_is_refused_at_the_second_door_too() -> None:
    port = Port()

    async def main() -> None:
        port.open()
        with pytest.raises(HandshakeRefusedError) as info:
            await port.come(replace(DAEMON_0, secret=b"another"), Expectation(RENDEZVOUS))
        assert info.value.fields["reason"] == "secret"
        assert not port.guests.all

    port.play(main)


def test_a_door_is_there_from_one_channel_to_the_next() -> None:
    port = Port()

    async def main() -> None:
        with pytest.raises(HandshakeRefusedError):
            await port.come(DAEMON_0, Expectation(RENDEZVOUS))
        port.open()
        await port.come(DAEMON_0, Expectation(RENDEZVOUS))
        port.door = None
        with pytest.raises(HandshakeRefusedError):
            await port.come(DAEMON_0, Expectation(RENDEZVOUS))

    port.play(main)
