"""The error tree: one file, one code per class, each round-trips the wire.

Every class says whether the same call may be tried again (``retry``):

- ``never``       the call itself is wrong, or the object is gone;
- ``same_epoch``  the group stands; the next call on it is an ordinary one;
- ``new_epoch``   the group of this epoch is over; go on by ``reform()``, or close, and connect
                  again.

An instance carries its facts as ``fields`` (also readable as attributes) beside
the text, so that a program can act on what a person reads.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Retry = Literal["never", "same_epoch", "new_epoch"]

_MAX_TEXT = 4096
"""Bound on the text of an error that came over a wire."""


class RingdError(Exception):
    """Base of all errors that ringd raises on purpose."""

    code: ClassVar[str] = "ringd"
    retry: ClassVar[Retry] = "never"

    def __init__(self, message: str, /, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __str__(self) -> str:
        return self.message

    @property
    def in_place(self) -> bool:
        """Whether the call worked in the caller's own memory: its contents are undefined now."""
        return bool(self.fields.get("in_place"))

    def to_wire(self) -> dict[str, Any]:
        """The error as plain data for msgpack."""
        return {"code": self.code, "message": self.message[:_MAX_TEXT], "fields": self.fields}

    def copy(self) -> RingdError:
        """A fresh instance with the same facts, so that each raise has its own traceback."""
        return type(self)(self.message, **self.fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.to_wire(),))


class ConfigError(RingdError, ValueError):
    """A setting is unknown, malformed or out of range."""

    code: ClassVar[str] = "config"


class UnsupportedPlatformError(RingdError):
    """ringd runs on Linux only (memfd, pidfd, SEQPACKET Unix sockets)."""

    code: ClassVar[str] = "platform"


class RendezvousError(RingdError):
    """The group could not be formed; says who joined, who is missing, and the last cause."""

    code: ClassVar[str] = "rendezvous"
    retry: ClassVar[Retry] = "new_epoch"


class HandshakeRefusedError(RendezvousError):
    """The other side of a TCP connection refused us, or we refused it, by name."""

    code: ClassVar[str] = "handshake_refused"
    retry: ClassVar[Retry] = "never"


class QuorumLostError(RendezvousError):
    """This side of the job may not go on as it is: the others may, without it.

    Who was cut off is let in as a newcomer by another ``reform()``, when it can reach them.

    Fields: epoch (that is over), here, missing (ranks).
    """

    code: ClassVar[str] = "quorum_lost"


class AddressInUseError(RingdError):
    """A port is taken; the text has host:port."""

    code: ClassVar[str] = "address_in_use"


class InvalidTensorError(RingdError, ValueError):
    """A tensor that can't be an output: read-only, or overlapping itself."""

    code: ClassVar[str] = "invalid_tensor"
    retry: ClassVar[Retry] = "same_epoch"


class InvalidArgumentError(RingdError, ValueError):
    """An argument's value is outside what the call takes."""

    code: ClassVar[str] = "invalid_argument"
    retry: ClassVar[Retry] = "same_epoch"


class UnsupportedTypeError(RingdError, TypeError):
    """Not a tensor, or a dtype or operation that ringd does not reduce."""

    code: ClassVar[str] = "unsupported_type"
    retry: ClassVar[Retry] = "same_epoch"


class UnsupportedReductionError(UnsupportedTypeError, ValueError):
    """A reduce op that a dtype does not have; both a TypeError and a ValueError.

    Fields: op, dtype.
    """

    code: ClassVar[str] = "unsupported_reduction"


class CollectiveError(RingdError):
    """A collective that had begun did not complete. Fields: op, group, epoch, seq."""

    code: ClassVar[str] = "collective"
    retry: ClassVar[Retry] = "same_epoch"


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """The call's deadline passed, or a peer whose bytes are waited for was silent too long."""

    code: ClassVar[str] = "timeout"


class CollectiveMismatchError(CollectiveError):
    """Ranks called different things at the same sequence number."""

    code: ClassVar[str] = "mismatch"


class PeerLostError(CollectiveError):
    """A rank is gone without which the operation can't complete. Field: rank."""

    code: ClassVar[str] = "peer_lost"
    retry: ClassVar[Retry] = "new_epoch"


class MembershipChangedError(CollectiveError):
    """The epoch in which the operation was posted is over."""

    code: ClassVar[str] = "membership_changed"
    retry: ClassVar[Retry] = "new_epoch"


class ProtocolError(CollectiveError):
    """A peer broke the wire protocol; its connection was closed."""

    code: ClassVar[str] = "protocol"
    retry: ClassVar[Retry] = "new_epoch"


class GroupFreedError(CollectiveError):
    """The process group of the call was freed, here or on the rank that it needs."""

    code: ClassVar[str] = "group_freed"
    retry: ClassVar[Retry] = "never"


class ObjectTooLargeError(RingdError, ValueError):
    """An object is over the cap of the object collectives.

    Fields: rank, size_bytes, limit_bytes.
    """

    code: ClassVar[str] = "object_too_large"
    retry: ClassVar[Retry] = "same_epoch"


class TooManyOperationsError(RingdError):
    """More operations in flight than the bound; wait for some first."""

    code: ClassVar[str] = "too_many_operations"
    retry: ClassVar[Retry] = "same_epoch"


class MemoryInUseError(RingdError):
    """The daemon may still use the memory of this call for an earlier one. Field: argument."""

    code: ClassVar[str] = "memory_in_use"
    retry: ClassVar[Retry] = "same_epoch"


class ReentrantCallError(RingdError):
    """A call in a signal handler that has interrupted another call in the middle of a step."""

    code: ClassVar[str] = "reentrant"
    retry: ClassVar[Retry] = "same_epoch"


class DaemonLostError(RingdError):
    """The trainer's own daemon is gone, does not read, or does not answer a question."""

    code: ClassVar[str] = "daemon_lost"
    retry: ClassVar[Retry] = "new_epoch"


class ArenaFullError(RingdError, MemoryError):
    """The shared-memory arena has no room; says its cap and what holds it."""

    code: ClassVar[str] = "arena_full"
    retry: ClassVar[Retry] = "same_epoch"


class ResourceError(RingdError):
    """A process of one rank has no file descriptor, or no memory, left for what was asked.

    A collective that ends with it is void on all ranks, and has taken its place in the order.
    Fields: resource ("file descriptors" or "memory"), limit (None: not known), rank (None: not
    known).
    """

    code: ClassVar[str] = "resource"
    retry: ClassVar[Retry] = "same_epoch"


class CommunicatorClosedError(RingdError):
    """The communicator was closed, or belongs to the parent of this process."""

    code: ClassVar[str] = "closed"


def _subclasses(cls: type[RingdError]) -> dict[str, type[RingdError]]:
    found = {cls.code: cls}
    for child in cls.__subclasses__():
        found.update(_subclasses(child))
    return found


BY_CODE: dict[str, type[RingdError]] = _subclasses(RingdError)


def from_wire(data: object) -> RingdError:
    """The error that ``to_wire`` described; an unknown code becomes a plain RingdError."""
    if not isinstance(data, dict):
        return RingdError("a peer sent an error that can't be read")
    cls = BY_CODE.get(str(data.get("code")), RingdError)
    fields = data.get("fields")
    fields = {str(k): v for k, v in fields.items()} if isinstance(fields, dict) else {}
    fields.pop("message", None)
    return cls(str(data.get("message", ""))[:_MAX_TEXT], **fields)


def _rebuild(data: dict[str, Any]) -> RingdError:
    return from_wire(data)
