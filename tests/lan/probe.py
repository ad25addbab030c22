"""Measures a network from within: ``probe.py serve ADDRESS``, ``probe.py rate ADDRESS BYTES`` …

A program by itself, with the standard library only. The server answers a byte with a byte, and
counts datagrams; all figures go to the standard output, as JSON.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

PORT = 5000
_SO_RCVBUFFORCE = 33
_LIMIT_S = 60.0


def serve(address: str) -> None:
    """Echo single bytes, swallow the rest, and tell each client at its end how much that was."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server((address, PORT), family=family) as listener,
        socket.socket(family, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 26)
        datagrams.bind((address, PORT))
        print("ready", flush=True)
        while True:
            sock, _ = listener.accept()
            with sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while piece := sock.recv(1 << 20):
                    if piece == b"?":
                        sock.sendall(b"!")
                    elif piece == b"d":
                        sock.sendall(json.dumps(_received(datagrams)).encode())
                sock.sendall(b"!")


def _received(datagrams: socket.socket) -> int:
    """How many datagrams have come; the last are on their way when this is asked."""
    count = 0
    while select.select([datagrams], [], [], 0.5)[0]:
        datagrams.recv(65536)
        count += 1
    return count


def _connect(address: str) -> socket.socket:
    sock = socket.create_connection((address, PORT), timeout=_LIMIT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def rate(address: str, size_bytes: int) -> float:
    """Bits per second of so many bytes, from the first to the answer to the last."""
    with _connect(address) as sock:
        begun = time.perf_counter()
        sock.sendall(bytes(size_bytes))
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)
        return 8 * size_bytes / (time.perf_counter() - begun)


def round_trips(address: str, count: int) -> list[float]:
    """Seconds of so many round trips, one after another."""
    times = []
    with _connect(address) as sock:
        for _ in range(count):
            begun = time.perf_counter()
            sock.sendall(b"?")
            sock.recv(1)
            times.append(time.perf_counter() - begun)
    return times


def datagrams(address: str, count: int) -> int:
    """How many of so many datagrams arrive."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with _connect(address) as sock, socket.socket(family, socket.SOCK_DGRAM) as sender:
        for number in range(count):
            sender.sendto(bytes(100), (address, PORT))
            if number % 50 == 0:
                time.sleep(0.001)  # so that no queue overflows: only what is lost by chance counts
        sock.sendall(b"d")
        arrived: int = json.loads(sock.recv(64))
        return arrived


def main() -> None:
    """See the module."""
    what, address, *numbers = sys.argv[1:]
    if what == "serve":
        serve(address)
    measure = {"rate": rate, "round_trips": round_trips, "datagrams": datagrams}[what]
    print(json.dumps(measure(address, int(numbers[0]))))


if __name__ == "__main__":
    main()
