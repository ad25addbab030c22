"""What a daemon tells its peers of where it listens, and whether they can reach that."""

from __future__ import annotations

from ringd.errors import RendezvousError
from ringd.rendezvous.addresses import is_loopback, loopback_text
from ringd.rendezvous.agent_events import Advertise
from ringd.rendezvous.reach import describe
from ringd.transport.base import Address, Channel


async def advertised(rank: int, channel: Channel, advertise: Advertise) -> Address:
    """What ``advertise`` says, seen from the rendezvous at the other end of ``channel``.

    Raises:
        RendezvousError: we can't listen, or would advertise loopback to other hosts.
        RingdError: raised by ``advertise``.
    """
    try:
        told = await advertise(channel.local)
    except OSError as exc:  # not to be taken for a fault of the way to the rendezvous
        text = f"rank {rank} can't listen for its peers: {describe(exc)}"
        raise RendezvousError(text, rank=rank) from exc
    if is_loopback(told.host) and not is_loopback(channel.peer.host):
        other = f"the rendezvous (at {channel.peer}) and what joins there"
        text = loopback_text(rank, told, other)
        raise RendezvousError(text, rank=rank, address=str(told))
    return told
