"""Delay, jitter and loss by the kernel: netem, where ``tc`` has it.

A stand-in for ``tc`` notes what it is told, and does it with another queue in the place of netem,
which the kernel that this was written on has not. What netem makes of it, only the last test sees.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ringd.errors import InvalidArgumentError
from ringd.lab import wiring
from ringd.lab.ending import exists
from ringd.lab.lab import find
from ringd.lab.queues import why_no_netem
from ringd.lab.spec import LabSpec
from tests.lan.conftest import MakeLab
from tests.lan.test_lab import ringd
from tests.lan.test_network import arrives, measure, server

STAND_IN = """#!/bin/sh
# Called as: tc -netns NAMESPACE (-batch - | qdisc show dev DEVICE)
[ "$3" = -batch ] || exec {real} "$@"
while read -r line; do
    echo "$2 $line" >>{log}
    case $line in
    *netem*) {netem} ;;
    *) echo "$line" ;;
    esac
done >{log}.batch || exit 2
exec {real} -netns "$2" -batch {log}.batch
"""
QUEUE = "echo ${line%netem*} tbf rate 10gbit burst 2000000 limit 4000000"
UNKNOWN = "{ echo 'Error: Specified qdisc kind is unknown.' >&2; exit 2; }"


class Tc:
    """The stand-in: what it was told, as "NAMESPACE COMMAND"."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.log = folder / "log"
        self._real = shutil.which("tc")
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        self.is_there(netem=True)

    def is_there(self, *, netem: bool) -> None:
        """From now on the kernel has netem, or has not."""
        text = STAND_IN.format(real=self._real, log=self.log, netem=QUEUE if netem else UNKNOWN)
        (self.folder / "tc").write_text(text)
        (self.folder / "tc").chmod(0o755)
        self.log.write_text("")

    def told(self) -> list[str]:
        """All of it so far."""
        return self.log.read_text().splitlines()


@pytest.fixture
def tc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tc:
    return Tc(tmp_path, monkeypatch)


def test_where_the_kernel_has_netem_it_makes_the_weather_and_is_gone_with_the_lab(
    tc: Tc, lab_name: str
) -> None:
    words = ["--rate", "80mbit", "--delay", "1ms", "--jitter", "0.5ms", "--loss", "0.1%"]
    up = ringd("lab", "up", "--hosts", "2", "--name", lab_name, *words)
    assert up.returncode == 0, up.stderr
    assert up.stdout.splitlines()[-1] == "switch: the kernel's bridge, with netem"
    switch, netem = f"ringd-{lab_name}-switch", "netem limit 1000000 delay 1000us 500us"
    told = tc.told()
    assert told[:4] == [
        f"{switch} qdisc add dev lo root netem delay 1ms",
        f"{switch} qdisc delete dev lo root",
        *(
            f"{switch} qdisc add dev port{k} root handle 1: {netem} rate 100gbit loss random 0.1%"
            for k in range(2)
        ),
    ]
    assert [line.partition(" tbf ")[0] for line in told[4:]] == [
        f"ringd-{lab_name}-0 qdisc replace dev eth0 root",
        f"{switch} qdisc replace dev port0 parent 1:1 handle 2:",
        f"ringd-{lab_name}-1 qdisc replace dev eth0 root",
        f"{switch} qdisc replace dev port1 parent 1:1 handle 2:",
    ]
    made = find(lab_name)
    assert made.status()["switch"] == "netem"
    assert not wiring.pids(lab_name), "no program is the switch"
    with server(made, 1):
        assert 40e6 < measure(made, 0, 1, "rate", 8_000_000) < 82e6

    assert ringd("lab", "down", "--name", lab_name).returncode == 0
    assert not exists(lab_name)
    assert not any("delete dev port" in line for line in tc.told()), "the namespaces took it along"


def test_netem_is_changed_for_all_and_hosts_can_be_cut_off_but_no_single_direction(
    tc: Tc, lab: MakeLab
) -> None:
    made = lab("2,delay=1ms,loss=1%")
    before = len(tc.told())
    done = ringd("lab", "change", "--name", made.spec.name, "--delay", "2ms")
    assert done.returncode == 0, done.stderr
    find(made.spec.name).change(loss=0.0)
    switch = made.spec.namespace(None)
    assert tc.told()[before:] == [
        f"{switch} qdisc change dev port{k} root handle 1: netem limit 1000000 delay 2000us{loss}"
        for loss in (" loss random 1%", "")
        for k in range(2)
    ]
    for paths in ({"sources": [0]}, {"targets": [1]}):
        with pytest.raises(InvalidArgumentError, match="for all alike.*--switch user"):
            made.change(delay_s=0.001, **paths)
    with pytest.raises(InvalidArgumentError, match="--switch user"):
        made.change(cut=True)
    made.cut([1])
    assert not arrives(made, 0, 1)
    made.heal([1])
    assert arrives(made, 0, 1)


def test_where_the_kernel_has_none_a_program_makes_the_weather(tc: Tc, lab_name: str) -> None:
    tc.is_there(netem=False)
    up = ringd("lab", "up", "--hosts", "2", "--name", lab_name, "--delay", "1ms")
    assert up.returncode == 0, up.stderr
    assert up.stdout.splitlines()[-1] == "switch: a program"
    assert find(lab_name).spec.switch == "user"
    assert tc.told() == [f"ringd-{lab_name}-switch qdisc add dev lo root netem delay 1ms"]
    assert ringd("lab", "down", "--name", lab_name).returncode == 0


def test_who_asks_for_netem_is_told_that_there_is_none(tc: Tc, lab_name: str) -> None:
    tc.is_there(netem=False)
    words = ["--hosts", "2", "--name", lab_name, "--delay", "1ms", "--switch", "netem"]
    up = ringd("lab", "up", *words)
    assert up.returncode != 0
    assert "this kernel has no netem: " in up.stderr
    assert "Specified qdisc kind is unknown" in up.stderr
    assert len(up.stderr.splitlines()) == 1
    assert not exists(lab_name)


def test_on_this_kernel_a_round_trip_takes_twice_netems_delay(lab_name: str, lab: MakeLab) -> None:
    wiring.make_namespaces(LabSpec(hosts=1, name=lab_name))
    reason = why_no_netem(f"ringd-{lab_name}-switch")
    wiring.remove(lab_name)
    if reason:
        pytest.skip(f"this kernel has no netem: {reason}")
    made = lab("2,delay=20ms,switch=netem")
    with server(made, 1):
        times = measure(made, 0, 1, "round_trips", 20)
        made.change(delay_s=0.0)
        quick = measure(made, 0, 1, "round_trips", 20)
    assert min(times) >= 0.040
    assert min(quick) < min(times)
