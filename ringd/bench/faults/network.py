"""A network for one job on this machine: a namespace for each host, a bridge in one of its own.

What is cut off here loses its packets without a word, as with a pulled cable behind a switch: no
carrier is lost, no ICMP comes. Every namespace belongs to a process that waits for its input to
end, so nothing is left over however we end. Needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence

from ringd.errors import UnsupportedPlatformError

_SUBNET = "10.213.77"
_LIMIT_S = 20.0
_HOLD = "echo; exec cat"
"""What runs in a namespace: says that it is there, and waits."""
_TOOLS = ("ip", "unshare", "nsenter")


class Network:
    """Hosts that reach each other through a switch; a context manager.

    Args:
        hosts: their names; each gets an address of its own.

    Raises:
        UnsupportedPlatformError: (on entry) the system does not let us, or lacks a tool.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = list(hosts)
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    def address(self, host: str) -> str:
        """Where others reach it."""
        return f"{_SUBNET}.{self._hosts.index(host) + 1}"

    def enter(self, host: str) -> list[str]:
        """What a command begins with that is to run on this host."""
        return _within(self._holders[host])

    def __enter__(self) -> Network:
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing:
            raise UnsupportedPlatformError(f"a network of its own needs {', '.join(missing)}")
        try:
            for name in ("", *self._hosts):
                self._holders[name] = _hold()
            self._wire()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wire(self) -> None:
        self._on_switch("link add bridge0 type bridge", "link set bridge0 up")
        for number, host in enumerate(self._hosts):
            pid = self._holders[host].pid
            port = self._port(host)
            self._on_switch(
                f"link add {port} type veth peer name eth0 netns {pid}",
                f"link set {port} master bridge0 up",
            )
            _ip(
                _within(self._holders[host]),
                "link set lo up",
                f"address add {_SUBNET}.{number + 1}/24 dev eth0",
                "link set eth0 up",
            )

    def cut(self, host: str) -> None:
        """From now on every packet from and to this host is lost."""
        self._on_switch(f"link set {self._port(host)} nomaster")

    def heal(self, host: str) -> None:
        """Its packets pass again."""
        self._on_switch(f"link set {self._port(host)} master bridge0")

    def _port(self, host: str) -> str:
        return f"port{self._hosts.index(host)}"

    def _on_switch(self, *commands: str) -> None:
        _ip(_within(self._holders[""]), *commands)

    def __exit__(self, *_: object) -> None:
        for holder in self._holders.values():
            for pipe in (holder.stdin, holder.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        for holder in self._holders.values():
            holder.wait(_LIMIT_S)
        self._holders.clear()


def _hold() -> subprocess.Popen[bytes]:
    """A process in a network namespace of its own; it ends when its standard input does."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", _HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert holder.stdout is not None and holder.stderr is not None
    if not holder.stdout.readline():
        why = holder.stderr.read().decode(errors="replace").strip()
        holder.wait()
        raise UnsupportedPlatformError(f"no network of our own can be made here (root may): {why}")
    holder.stderr.close()
    return holder


def _within(holder: subprocess.Popen[bytes]) -> list[str]:
    # exec: the process that is started is the command's own, so signals reach it.
    return ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"]


def _ip(prefix: Sequence[str], *commands: str) -> None:
    done = subprocess.run(
        [*prefix, "ip", "-batch", "-"],
        input="\n".join(commands).encode() + b"\n",
        capture_output=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()
        raise UnsupportedPlatformError(f"a network of our own can't be made here: {why}")


def is_possible() -> bool:
    """Whether such a network may be had; a quick look, :class:`Network` says why not."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in _TOOLS)
