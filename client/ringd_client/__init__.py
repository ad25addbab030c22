"""The client of ringd: collective communication for torch tensors and numpy arrays.

    import ringd_client

    with ringd_client.connect() as comm:
        comm.all_reduce(tensor, op="avg")

``connect`` finds the daemon that ``ringd run`` has started for this rank. The communicator has
every collective, messages between two ranks, msgpack objects and groups. There is an asyncio twin,
``connect_async``. What a caller may rely on: docs/semantics.md.
"""

from __future__ import annotations

import sys

from ringd.errors import (
    ArenaFullError,
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    CommunicatorClosedError,
    ConfigError,
    DaemonLostError,
    GroupFreedError,
    HandshakeRefusedError,
    InvalidArgumentError,
    InvalidTensorError,
    MembershipChangedError,
    MemoryInUseError,
    ObjectTooLargeError,
    PeerLostError,
    ProtocolError,
    QuorumLostError,
    ReentrantCallError,
    RendezvousError,
    ResourceError,
    RingdError,
    TooManyOperationsError,
    UnsupportedPlatformError,
    UnsupportedReductionError,
    UnsupportedTypeError,
)

if sys.platform != "linux":
    raise UnsupportedPlatformError(
        f"ringd runs on Linux only, this is {sys.platform}: it needs memfd, pidfd and SEQPACKET "
        "sockets. A container or a virtual machine with Linux will do"
    )

from ringd import __version__
from ringd_client._epochs import Reform
from ringd_client._handle import Handle
from ringd_client._messages import Recv, Send
from ringd_client._reductions import PremulSum, premul_sum
from ringd_client.aio import AsyncCommunicator, AsyncHandle, connect_async
from ringd_client.communicator import Communicator, connect

__all__ = [
    "ArenaFullError",
    "AsyncCommunicator",
    "AsyncHandle",
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "Communicator",
    "CommunicatorClosedError",
    "ConfigError",
    "DaemonLostError",
    "GroupFreedError",
    "Handle",
    "HandshakeRefusedError",
    "InvalidArgumentError",
    "InvalidTensorError",
    "MembershipChangedError",
    "MemoryInUseError",
    "ObjectTooLargeError",
    "PeerLostError",
    "PremulSum",
    "ProtocolError",
    "QuorumLostError",
    "Recv",
    "ReentrantCallError",
    "Reform",
    "RendezvousError",
    "ResourceError",
    "RingdError",
    "Send",
    "TooManyOperationsError",
    "UnsupportedPlatformError",
    "UnsupportedReductionError",
    "UnsupportedTypeError",
    "__version__",
    "connect",
    "connect_async",
    "premul_sum",
]
