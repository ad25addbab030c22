"""A lab as a whole: put up, used, changed, taken down."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringd.errors import InvalidArgumentError, RingdError, UnsupportedPlatformError
from ringd.lab import queues, wiring
from ringd.lab.ending import RUN, exists, folder_of, take_down
from ringd.lab.spec import LabSpec, check_hosts
from ringd.lab.switch import FACTS, ask
from ringd.lab.tools import check_possible
from ringd.launch.python import own_module

START_LIMIT_S = 30.0
_AS_HOST = 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"'


class Lab:
    """A lab that stands. Get one from :func:`up`, :func:`temporary` or :func:`find`."""

    def __init__(self, spec: LabSpec) -> None:
        self.spec = spec

    def address(self, host: int) -> str:
        """Where other hosts reach this one."""
        return self.spec.address(host)

    def enter(self, host: int) -> list[str]:
        """What a command begins with that is to run on this host.

        The process that is started is the command's own, so its id and signals are too. It sees the
        host's network, /etc/hosts and name; files, users and processes are this machine's.
        """
        namespace, name = self.spec.namespace(host), self.spec.host_name(host)
        as_host = ["unshare", "--uts", "--", "sh", "-c", _AS_HOST, name]
        return ["ip", "netns", "exec", namespace, *as_host]

    def change(
        self,
        *,
        sources: Iterable[int] | None = None,
        targets: Iterable[int] | None = None,
        **weather: Any,
    ) -> None:
        """Change delay_s, jitter_s, loss or cut, from each source to each target (None: all).

        Raises:
            InvalidArgumentError: no such host, or not with this lab's switch: netem knows no single
                directions, and the kernel's bridge without it none of this.
            RingdError: the switch does not answer.
        """
        if self.spec.switch == "netem":
            if sources is not None or targets is not None or "cut" in weather:
                raise self._unable("and netem, which delay and lose for all alike")
            self.spec = replace(self.spec, **weather)
            queues.change_weather(self.spec)
            _write_facts(self.spec)
        elif self.spec.in_kernel:
            raise self._unable("which has no delay, jitter or loss")
        else:
            self._order(sources=self._hosts(sources), targets=self._hosts(targets), **weather)

    def _unable(self, which: str) -> RingdError:
        return InvalidArgumentError(
            f"the switch of the lab {self.spec.name!r} is the kernel's bridge {which}; beside that "
            f"it can cut a host off and change its rate; put the lab up with --switch user"
        )

    def change_rate(self, hosts: Iterable[int] | None, rate_bps: int) -> None:
        """These hosts' cables (None: all) have another rate from now on, in both directions.

        Raises:
            InvalidArgumentError: no such host.
            RingdError: ``tc`` or the switch failed.
        """
        chosen = self._hosts(hosts)
        for host in chosen:
            queues.set_rate(self.spec, host, rate_bps)
        if not self.spec.in_kernel:
            self._order(sources=[], targets=chosen, rate_bps=rate_bps)

    def cut(self, hosts: Iterable[int]) -> None:
        """Every packet from and to these hosts is lost from now on, without a word."""
        self._set_cut(hosts, cut=True)

    def heal(self, hosts: Iterable[int]) -> None:
        """Their packets pass again, in both directions."""
        self._set_cut(hosts, cut=False)

    def _set_cut(self, hosts: Iterable[int], *, cut: bool) -> None:
        chosen = self._hosts(hosts)
        if self.spec.in_kernel:
            for host in chosen:
                wiring.set_plugged(self.spec, host, plugged=not cut)
            return
        self.change(sources=chosen, cut=cut)
        self.change(targets=chosen, cut=cut)

    def status(self) -> dict[str, Any]:
        """What it is, its hosts' addresses, how many processes are in it, what its switch did."""
        switch = self.spec.switch if self.spec.in_kernel else self._order()
        hosts = range(self.spec.hosts)
        return {
            "spec": self.spec.to_json(),
            "hosts": {self.spec.host_name(host): self.address(host) for host in hosts},
            "interface": self.spec.interface,
            "processes": len(wiring.pids(self.spec.name)) - (not self.spec.in_kernel),
            "switch": switch,
        }

    def down(self) -> None:
        """End what runs in it, and remove it."""
        take_down(self.spec.name)

    def _hosts(self, hosts: Iterable[int] | None) -> list[int]:
        return check_hosts(self.spec, range(self.spec.hosts) if hosts is None else hosts)

    def _order(self, **order: Any) -> dict[str, Any]:
        try:
            return ask(folder_of(self.spec.name), order)
        except OSError as exc:
            raise RingdError(
                f"the switch of the lab {self.spec.name!r} does not answer ({exc}); "
                f"ringd lab down --name {self.spec.name}"
            ) from None


def find(name: str) -> Lab:
    """The lab of this name.

    Raises:
        InvalidArgumentError: there is none.
    """
    path = folder_of(name) / FACTS
    try:
        return Lab(LabSpec.from_json(json.loads(path.read_text())))
    except (OSError, ValueError) as exc:
        left = f"; what is left of it goes by ringd lab down --name {name}" if exists(name) else ""
        raise InvalidArgumentError(
            f"there is no lab {name!r}{left or '; ringd lab up makes it'}"
        ) from exc


def up(spec: LabSpec) -> Lab:
    """Put a lab up that stays until :meth:`Lab.down`, also when this process ends.

    Raises:
        UnsupportedPlatformError: not root, or something is missing; nothing is left.
        InvalidArgumentError: there is a lab of this name.
    """
    with _keeper(spec) as keeper:
        lab = _build(spec)
        _keep(keeper)
    return lab


@contextlib.contextmanager
def temporary(spec: LabSpec) -> Iterator[Lab]:
    """A lab that is down when the block ends, or this process, however it does.

    Raises:
        UnsupportedPlatformError, InvalidArgumentError: as :func:`up`.
    """
    with _keeper(spec) as keeper:
        yield _build(spec)
        take_down(spec.name)
        _keep(keeper)


@contextlib.contextmanager
def _keeper(spec: LabSpec) -> Iterator[subprocess.Popen[str]]:
    """The lab's name is ours, and somebody takes it down if we can't."""
    check_possible()
    if wiring.namespaces(spec.name):
        raise _taken(spec)
    RUN.mkdir(exist_ok=True)
    try:
        folder_of(spec.name).mkdir(mode=0o700)
    except FileExistsError:
        raise _taken(spec) from None
    command = own_module("ringd.lab.keeper", spec.name)
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
    assert keeper.stdin is not None
    try:
        yield keeper
    finally:
        keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            keeper.wait(START_LIMIT_S)


def _taken(spec: LabSpec) -> RingdError:
    return InvalidArgumentError(
        f"there is a lab {spec.name!r}: ringd lab down --name {spec.name}, or another --name"
    )


def _keep(keeper: subprocess.Popen[str]) -> None:
    """Tell the keeper that it has nothing to do."""
    assert keeper.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        keeper.stdin.write("keep\n")
        keeper.stdin.flush()


def _build(spec: LabSpec) -> Lab:
    folder = folder_of(spec.name)
    wiring.make_namespaces(spec)
    spec = _settled(spec)
    _write_facts(spec)
    if spec.in_kernel:
        wiring.cables_to_bridge(spec)
    else:
        _start_switch(spec, folder)
        wiring.cables_to_program(spec)
    wiring.address_hosts(spec)
    if spec.switch == "netem":
        queues.add_weather(spec)
    if spec.rate_bps:
        for host in range(spec.hosts):
            queues.set_rate(spec, host, spec.rate_bps)
    return Lab(spec)


def _settled(spec: LabSpec) -> LabSpec:
    """Which switch it is to have, now that there is a namespace to ask the kernel in."""
    if spec.switch != "netem" and not (spec.switch == "auto" and spec.has_weather):
        return spec.settled(netem=False)
    why_not = queues.why_no_netem(spec.namespace(None))
    if spec.switch == "netem" and why_not:
        raise UnsupportedPlatformError(
            f"this kernel has no netem: {why_not}; --switch user needs none"
        )
    return spec.settled(netem=not why_not)


def _write_facts(spec: LabSpec) -> None:
    """Whole, or not at all: others may read it at any time."""
    path = folder_of(spec.name) / FACTS
    new = path.with_suffix(".new")
    new.write_text(json.dumps(spec.to_json()))
    new.replace(path)


def _start_switch(spec: LabSpec, folder: Path) -> None:
    """Until it says that its devices are there. It ends with the lab, as all in its namespace."""
    module = own_module("ringd.lab.switch", folder)
    log = folder / "switch.log"
    with log.open("wb") as errors:
        switch = subprocess.Popen(
            ["ip", "netns", "exec", spec.namespace(None), *module],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    assert switch.stdout is not None
    with switch.stdout as pipe:
        started = select.select([pipe], [], [], START_LIMIT_S)[0] and os.read(pipe.fileno(), 64)
    if not started:
        said = log.read_text(errors="replace").strip().rpartition("\n")[2] or "it says nothing"
        raise UnsupportedPlatformError(f"the switch of the lab can't be started: {said}")
