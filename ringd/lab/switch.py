"""``python -m ringd.lab.switch``: a lab's switch as a program, for weather that the kernel lacks.

Every host's interface is a TAP device: what the host sends is read here, and what is written here
the host receives. One thread, one loop: read what is there, ask the weather when it is due, keep
it until then. Orders come through a Unix socket, one JSON line and one answer for a connection.

Its first argument is the lab's folder, which has ``lab.json``. It says "ready" when the devices
are there, and ends at SIGTERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringd.lab.spec import LabSpec
from ringd.lab.weather import Weather
from ringd.lab.wiring import mac, port

SOCKET, FACTS = "switch.sock", "lab.json"
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_HEADER_BYTES = 18
"""Of Ethernet, a VLAN's included."""
_BURST = 64
"""So many packets are read from one host before the others have their turn."""
_ORDER_LIMIT_S = 1.0
_PRIORITY = -10
"""Before what is measured through us, as a switch is no part of the hosts."""
_PR_SET_TIMERSLACK = 29


class Switch:
    """Passes packets on until its process ends.

    Args:
        spec: the lab.
        listener: where orders come in.
    """

    def __init__(self, spec: LabSpec, listener: socket.socket) -> None:
        self._spec = spec
        self._listener = listener
        self._weather = Weather(spec, random.Random())
        self._taps = [_tap(port(host)) for host in range(spec.hosts)]
        self._hosts = {tap: host for host, tap in enumerate(self._taps)}
        self._by_mac = {bytes.fromhex(mac(h).replace(":", "")): [h] for h in range(spec.hosts)}
        self._others = [[o for o in range(spec.hosts) if o != h] for h in range(spec.hosts)]
        self._air: list[tuple[float, int, int, bytes]] = []
        """Packets under way: when each is due, a number that breaks ties, its target, itself."""
        self._number = 0

    def run(self) -> None:
        """The loop."""
        sources = [*self._taps, self._listener.fileno()]
        while True:
            wait_s = max(0.0, self._air[0][0] - time.monotonic()) if self._air else None
            # select and not epoll: its time-out is one of microseconds.
            for found in select.select(sources, (), (), wait_s)[0]:
                if found in self._hosts:
                    self._take(found)
                else:
                    self._obey()
            self._deliver()

    def _take(self, tap: int) -> None:
        """What a host has sent, and what becomes of it."""
        source, most = self._hosts[tap], self._spec.frame_bytes + _HEADER_BYTES
        for _ in range(_BURST):
            try:
                packet = os.read(tap, most)
            except OSError:  # no more, or the device is not up yet
                return
            now = time.monotonic()
            for target in self._by_mac.get(packet[:6], self._others[source]):
                due = self._weather.due(source, target, len(packet), now)
                if due is not None and due <= now:
                    self._write(target, packet)
                elif due is not None:
                    self._number += 1
                    heapq.heappush(self._air, (due, self._number, target, packet))

    def _deliver(self) -> None:
        """All that is due."""
        now = time.monotonic()
        while self._air and self._air[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._air)
            self._write(target, packet)

    def _write(self, target: int, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # its host takes nothing: the packet is lost
            os.write(self._taps[target], packet)

    def _obey(self) -> None:
        """One order; whoever is slow with it is not waited for."""
        with contextlib.suppress(OSError, ValueError):
            sock, _ = self._listener.accept()
            with sock:
                sock.settimeout(_ORDER_LIMIT_S)
                order = json.loads(sock.makefile().readline())
                sock.sendall(json.dumps(self._answer(**order)).encode() + b"\n")

    def _answer(
        self,
        sources: list[int] | None = None,
        targets: list[int] | None = None,
        rate_bps: int | None = None,
        **change: Any,
    ) -> dict[str, Any]:
        """Change what there is to change; the counts."""
        if sources is not None and targets is not None:
            self._weather.change(sources, targets, **change)
            if rate_bps is not None:
                self._weather.change_rate(targets, rate_bps)
        return asdict(self._weather.counts) | {"under_way": len(self._air)}


def ask(folder: Path, order: dict[str, Any]) -> dict[str, Any]:
    """Give a lab's switch an order; what it answers.

    Raises:
        OSError: it is not there, or does not answer in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(10.0)
        sock.connect(str(folder / SOCKET))
        sock.sendall(json.dumps(order).encode() + b"\n")
        answer: dict[str, Any] = json.loads(sock.makefile().readline() or "{}")
    return answer


def _tap(name: str) -> int:
    """A new TAP device; it lasts as long as its descriptor."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1])
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # ns; else each delay is 50 µs longer
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / SOCKET))
        listener.listen(16)
        switch = Switch(LabSpec.from_json(json.loads((folder / FACTS).read_text())), listener)
        os.write(sys.stdout.fileno(), b"ready\n")  # at once: our maker reads once, and closes it
        switch.run()


if __name__ == "__main__":
    main()
