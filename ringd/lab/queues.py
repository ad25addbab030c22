"""What happens to packets at the ends of cables, made with ``tc``: rates, and netem's weather.

The rate of a cable is a token bucket at both its ends. Delay, jitter and loss are netem's, on the
switch's port of the host that is to get the packets; the bucket is below it there. On the sender's
side a packet that waits would count as unsent, and TCP would hold back what follows.
"""

from __future__ import annotations

from ringd.errors import UnsupportedPlatformError
from ringd.lab.spec import LabSpec
from ringd.lab.tools import call, ip, tc
from ringd.lab.wiring import port

_LEAST_BURST_BYTES = 20_000
_ROOT, _BELOW_NETEM = "root", "parent 1:1 handle 2:"
_NETEM = "root handle 1:"
_LIMIT_PACKETS = 1_000_000
"""Under way at once, as with a program as the switch: what a queue holds is the bucket's affair."""


def why_no_netem(namespace: str) -> str:
    """What ``tc`` says against netem, tried on a namespace's loopback device; "": it has it.

    The kernel loads the module by itself, if there is one.
    """
    try:
        tc(namespace, ["qdisc add dev lo root netem delay 1ms"])
        tc(namespace, ["qdisc delete dev lo root"])
    except UnsupportedPlatformError as exc:
        return str(exc)
    return ""


def set_rate(spec: LabSpec, host: int, rate_bps: int) -> None:
    """A host's cable has this rate from now on, in both directions; 0: as quick as it goes."""
    ends = [(spec.namespace(host), spec.interface, _ROOT)]
    if spec.in_kernel:
        place = _BELOW_NETEM if spec.switch == "netem" else _ROOT
        ends.append((spec.namespace(None), port(host), place))
    for namespace, device, place in ends:
        if rate_bps:
            tc(namespace, [f"qdisc replace dev {device} {place} {_bucket(spec, rate_bps)}"])
        elif _has_bucket(namespace, device):
            tc(namespace, [f"qdisc delete dev {device} {place}"])


def _bucket(spec: LabSpec, rate_bps: int) -> str:
    """A token bucket of 1 ms: less than that costs rate on a kernel that ticks rarely."""
    burst_bytes = max(_LEAST_BURST_BYTES, 2 * spec.frame_bytes, rate_bps // 8000)
    return f"tbf rate {rate_bps}bit burst {burst_bytes} limit {spec.queue_bytes + burst_bytes}"


def _has_bucket(namespace: str, device: str) -> bool:
    return " tbf " in call("tc", "-netns", namespace, "qdisc", "show", "dev", device)


def add_weather(spec: LabSpec) -> None:
    """Every port of the bridge gets netem; before any rate, which goes below it."""
    for host in range(spec.hosts):
        # One segment each: netem delays and loses what the sender's kernel would have split later.
        ip(spec.namespace(host), [f"link set {spec.interface} gso_max_segs 1"])
    ports = [f"qdisc add dev {port(host)} {_weather(spec)}" for host in range(spec.hosts)]
    tc(spec.namespace(None), ports)


def change_weather(spec: LabSpec) -> None:
    """All that is sent has the spec's delay, jitter and loss from now on."""
    ports = [f"qdisc change dev {port(host)} {_weather(spec)}" for host in range(spec.hosts)]
    tc(spec.namespace(None), ports)


def _weather(spec: LabSpec) -> str:
    """netem's words for a port."""
    words = [f"{_NETEM} netem limit {_LIMIT_PACKETS} delay {spec.delay_s * 1e6:.0f}us"]
    if spec.jitter_s:
        # With a rate, here one that costs nothing, netem lets no packet overtake another.
        words.append(f"{spec.jitter_s * 1e6:.0f}us rate 100gbit")
    if spec.loss:
        words.append(f"loss random {spec.loss * 100:.6g}%")
    return " ".join(words)
