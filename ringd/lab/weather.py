"""When a packet arrives, if it does: rate, delay, jitter, loss and cuts of each path. Pure.

Time and chance are arguments. A packet from A to B is lost by chance or by a cut, or waits for B's
cable, which takes one after another at its rate; what finds a full queue waiting is lost. Then it
travels for the path's delay. A's cable to the switch is the kernel's business.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from ringd.lab.spec import LabSpec


@dataclass(slots=True)
class Path:
    """From one host to another, in this direction only."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    cut: bool = False
    last_due: float = 0.0
    """When the packet before this one arrives; none overtakes another."""


@dataclass(slots=True)
class Port:
    """A host's end of its cable, towards the host.

    Attributes:
        free_at: when all that was put on the cable so far is through.
    """

    rate_bps: int
    queue_bytes: int
    free_at: float = 0.0


@dataclass(slots=True)
class Counts:
    """What became of the packets that came to the switch."""

    passed: int = 0
    passed_bytes: int = 0
    lost: int = 0
    """By chance."""
    cut: int = 0
    overflowed: int = 0
    """As too many waited already."""


class Weather:
    """All paths of a lab.

    Args:
        spec: what holds until it is changed.
        rng: chance.
    """

    def __init__(self, spec: LabSpec, rng: random.Random) -> None:
        self._rng = rng
        self.counts = Counts()
        self.paths = [
            [Path(spec.delay_s, spec.jitter_s, spec.loss) for _ in range(spec.hosts)]
            for _ in range(spec.hosts)
        ]
        self.ports = [Port(spec.rate_bps, spec.queue_bytes) for _ in range(spec.hosts)]

    def due(self, source: int, target: int, size_bytes: int, now: float) -> float | None:
        """When a packet that comes to the switch now is at its target; None: never."""
        path = self.paths[source][target]
        if path.cut:
            self.counts.cut += 1
            return None
        if path.loss and self._rng.random() < path.loss:
            self.counts.lost += 1
            return None
        sent_at = self._through(self.ports[target], size_bytes, now)
        if sent_at is None:
            self.counts.overflowed += 1
            return None
        self.counts.passed += 1
        self.counts.passed_bytes += size_bytes
        at = sent_at + path.delay_s
        if path.jitter_s:
            at += self._rng.uniform(-path.jitter_s, path.jitter_s)
        path.last_due = at = max(at, path.last_due)
        return at

    def _through(self, port: Port, size_bytes: int, now: float) -> float | None:
        """When the cable has taken it; None: too many wait for that."""
        if not port.rate_bps:
            return now
        begin = max(now, port.free_at)
        if (begin - now) * port.rate_bps > 8 * port.queue_bytes:
            return None
        port.free_at = begin + 8 * size_bytes / port.rate_bps
        return port.free_at

    def change(
        self,
        sources: list[int],
        targets: list[int],
        *,
        delay_s: float | None = None,
        jitter_s: float | None = None,
        loss: float | None = None,
        cut: bool | None = None,
    ) -> None:
        """What is given holds from now on, from each source to each target."""
        for source in sources:
            for target in targets:
                path = self.paths[source][target]
                path.delay_s = path.delay_s if delay_s is None else delay_s
                path.jitter_s = path.jitter_s if jitter_s is None else jitter_s
                path.loss = path.loss if loss is None else loss
                path.cut = path.cut if cut is None else cut

    def change_rate(self, hosts: list[int], rate_bps: int) -> None:
        """These hosts' cables have another rate from now on."""
        for host in hosts:
            self.ports[host].rate_bps = rate_bps
