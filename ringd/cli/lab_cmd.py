"""``ringd lab``: a LAN of several hosts on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringd.cli import options
from ringd.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ringd.lab.lab import Lab

app = typer.Typer(
    help="Several hosts on this machine, in network namespaces (root), to try and test with.",
    no_args_is_help=True,
)
COMMAND = {"allow_interspersed_args": False}
"""From the command's first word on, all belongs to it, options too."""
_SWITCHES = {
    "kernel": "the kernel's bridge",
    "netem": "the kernel's bridge, with netem",
    "user": "a program",
}

Name = Annotated[str, typer.Option("--name", help="Which lab.", metavar="NAME")]
Rate = Annotated[
    str | None,
    typer.Option("--rate", metavar="RATE", help="Of each cable, each way: 1gbit, 100mbit."),
]
Delay = Annotated[
    str | None,
    typer.Option("--delay", metavar="TIME", help="From host to host, one way: 1ms, 250us."),
]
Jitter = Annotated[
    str | None, typer.Option("--jitter", metavar="TIME", help="The delay is so much more or less.")
]
Loss = Annotated[
    str | None, typer.Option("--loss", metavar="SHARE", help="Packets that are lost: 0.1%.")
]


@app.command("up", epilog="Example: ringd lab up --hosts 4 --rate 1gbit --delay 1ms --loss 0.1%")
def up(
    ctx: typer.Context,
    hosts: Annotated[int, typer.Option("--hosts", metavar="N", help="How many.")],
    name: Name = "lab",
    rate: Rate = None,
    delay: Delay = None,
    jitter: Jitter = None,
    loss: Loss = None,
    mtu: Annotated[
        int, typer.Option("--mtu", metavar="BYTES", help="0: 1500, or 9000 through a program.")
    ] = 0,
    switch: Annotated[
        str,
        typer.Option(
            "--switch",
            metavar="KIND",
            help="kernel (a bridge), netem (the same with delay, jitter, loss), user (a program: "
            "also in one direction), or auto.",
        ),
    ] = "auto",
    quirk: Annotated[
        list[str] | None,
        typer.Option(
            "--quirk",
            metavar="NAME",
            help="own-loopback (own name is 127.0.1.1), two-interfaces (one leads nowhere), "
            "ipv6-only; may be given more than once.",
        ),
    ] = None,
    debug: options.Debug = None,
) -> None:
    """Put a lab up; it stays until `ringd lab down`."""
    ctx.meta[options.DEBUG] = bool(debug)

    from ringd.lab import lab
    from ringd.lab.spec import LabSpec

    weather = _weather(rate, delay, jitter, loss)
    spec = LabSpec(
        hosts=hosts,
        name=name,
        mtu=mtu,
        switch=_switch(switch),
        quirks=tuple(quirk or ()),
        **weather,
    )
    made = lab.up(spec)
    for host in range(hosts):
        print(spec.host_name(host), made.address(host))
    print("switch:", _SWITCHES[made.spec.switch])


@app.command(
    "exec", epilog="Example: ringd lab exec --host 1 -- ip address", context_settings=COMMAND
)
def exec_(
    ctx: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND [ARGS]...", help="What to run.")
    ],
    name: Name = "lab",
    host: Annotated[
        int | None, typer.Option("--host", metavar="K", help="On this host, from 0 on.")
    ] = None,
    on_all: Annotated[bool, typer.Option("--all", help="On all hosts, side by side.")] = False,
    debug: options.Debug = None,
) -> None:
    """Run a command on a host; it finds LAB_HOST, LAB_HOSTS and LAB_ADDRESS in its environment."""
    ctx.meta[options.DEBUG] = bool(debug)

    from ringd.config import environment
    from ringd.lab import running
    from ringd.lab.spec import check_hosts

    lab = _find(name)
    if (host is None) != on_all:
        raise InvalidArgumentError("say --host K, or --all, and not both")
    environ = environment.snapshot()
    if host is None:
        raise typer.Exit(running.on_all(lab, command, environ))
    check_hosts(lab.spec, [host])
    running.become(lab, host, command, environ)


@app.command("change", epilog="Example: ringd lab change --from 1 --to 0 --cut")
def change(
    ctx: typer.Context,
    name: Name = "lab",
    host: Annotated[
        list[int] | None,
        typer.Option("--host", metavar="K", help="What this host sends and receives."),
    ] = None,
    source: Annotated[
        int | None, typer.Option("--from", metavar="K", help="Only what this host sends,")
    ] = None,
    target: Annotated[
        int | None, typer.Option("--to", metavar="K", help="and only what goes to this one.")
    ] = None,
    rate: Rate = None,
    delay: Delay = None,
    jitter: Jitter = None,
    loss: Loss = None,
    cut: Annotated[
        bool | None,
        typer.Option("--cut/--heal", help="All packets are lost, without a word; or pass again."),
    ] = None,
    debug: options.Debug = None,
) -> None:
    """Change the network while it is in use: everywhere, of a host, or in one direction."""
    ctx.meta[options.DEBUG] = bool(debug)
    lab = _find(name)
    one_way = source is not None or target is not None
    if one_way and host:
        raise InvalidArgumentError("--host goes with neither --from nor --to")
    if one_way and rate is not None:
        raise InvalidArgumentError("a rate is a cable's, in both directions: --host, not --from")
    found = _weather(rate, delay, jitter, loss)
    if "rate_bps" in found:
        lab.change_rate(host, found.pop("rate_bps"))
    if one_way:
        if cut is not None:
            found["cut"] = cut
        sources = None if source is None else [source]
        lab.change(sources=sources, targets=None if target is None else [target], **found)
        return
    if cut is not None:
        (lab.cut if cut else lab.heal)(host or range(lab.spec.hosts))
    if found and not host:
        lab.change(**found)
    elif found:
        lab.change(sources=host, **found)
        lab.change(targets=host, **found)


@app.command("status", epilog="Example: ringd lab status --json")
def status(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only this one. (default: all)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: options.Debug = None,
) -> None:
    """Say which labs there are, and what their switches did."""
    ctx.meta[options.DEBUG] = bool(debug)

    from ringd.lab.ending import names

    found = {each: _find(each).status() for each in ([name] if name else names())}
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for each, facts in found.items():
        print(f"lab {each}: {facts['processes']} processes, switch {facts['switch']}")
        for host, address in facts["hosts"].items():
            print(f"  {host} {address} {facts['interface']}")


@app.command("down", epilog="Example: ringd lab down --name lab")
def down(ctx: typer.Context, name: Name = "lab", debug: options.Debug = None) -> None:
    """End what runs in a lab and remove it, whatever is left of it."""
    ctx.meta[options.DEBUG] = bool(debug)

    from ringd.lab.ending import take_down
    from ringd.lab.tools import check_possible

    check_possible()
    take_down(_known(name))


def _find(name: str) -> Lab:
    from ringd.lab.lab import find
    from ringd.lab.tools import check_possible

    check_possible()
    return find(_known(name))


def _known(name: str) -> str:
    """A name that can be a lab's: it becomes part of paths."""
    from ringd.lab.spec import LabSpec

    return LabSpec(hosts=1, name=name).name


def _switch(kind: str) -> Any:
    from ringd.lab.spec import SWITCHES

    if kind not in SWITCHES:
        raise InvalidArgumentError(f"--switch {kind!r} is unknown; known: {', '.join(SWITCHES)}")
    return kind


def _weather(
    rate: str | None, delay: str | None, jitter: str | None, loss: str | None
) -> dict[str, Any]:
    """What was given of them, as :class:`LabSpec` calls it."""
    from ringd.lab.spec import parse_duration, parse_loss, parse_rate

    found: dict[str, Any] = {}
    if rate is not None:
        found["rate_bps"] = parse_rate(rate)
    if delay is not None:
        found["delay_s"] = parse_duration(delay)
    if jitter is not None:
        found["jitter_s"] = parse_duration(jitter)
    if loss is not None:
        found["loss"] = parse_loss(loss)
    return found
