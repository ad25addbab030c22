"""A lab comes, and goes without a trace, however its maker ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ringd.errors import InvalidArgumentError
from ringd.lab import wiring
from ringd.lab.ending import RUN, exists, take_down
from ringd.lab.lab import find, temporary
from ringd.lab.spec import OWN_LOOPBACK, TWO_INTERFACES, LabSpec
from tests.lan.conftest import MakeLab
from tests.processes.harness import until

LIMIT_S = 60.0


def ringd(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    command = [sys.executable, "-m", "ringd", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def links_of_this_machine() -> set[str]:
    return set(os.listdir("/sys/class/net"))


@pytest.mark.parametrize("weather", ["", ",delay=1ms"])
def test_a_lab_is_up_until_it_is_taken_down_and_leaves_nothing(lab_name: str, weather: str) -> None:
    before = links_of_this_machine()
    words = ["--delay", "1ms"] if weather else ["--rate", "1gbit"]
    up = ringd("lab", "up", "--hosts", "3", "--name", lab_name, *words)
    assert up.returncode == 0, up.stderr
    assert up.stdout.splitlines()[2] == "host2 10.213.78.3"
    assert len(wiring.namespaces(lab_name)) == 4
    assert links_of_this_machine() == before, "all of it is in its own namespaces"
    status = json.loads(ringd("lab", "status", "--name", lab_name, "--json").stdout)[lab_name]
    assert status["hosts"] == {f"host{k}": f"10.213.78.{k + 1}" for k in range(3)}
    assert status["processes"] == 0
    down = ringd("lab", "down", "--name", lab_name)
    assert down.returncode == 0, down.stderr
    assert not exists(lab_name)
    assert not list(Path("/etc").glob(f"netns/*{lab_name}*"))
    assert not wiring.pids(lab_name)


def test_what_runs_on_its_hosts_ends_with_it_also_when_it_does_not_want_to(lab_name: str) -> None:
    with temporary(LabSpec(hosts=1, name=lab_name)) as lab:
        stubborn = "trap '' TERM; echo; while :; do sleep 1000 & wait; done"
        process = subprocess.Popen([*lab.enter(0), "sh", "-c", stubborn], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        until(lambda: len(wiring.pids(lab_name)) == 2, "the shell and its sleep are there")
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("switch", ["kernel", "user"])
def test_a_lab_ends_with_its_maker_however_that_ends(
    lab_name: str, number: signal.Signals, switch: str
) -> None:
    program = (
        "import time; from ringd.lab.lab import temporary; from ringd.lab.spec import LabSpec\n"
        f"with temporary(LabSpec(hosts=2, name={lab_name!r}, switch={switch!r})):\n"
        "    print(flush=True); time.sleep(1000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"\n"
        assert exists(lab_name)
        maker.send_signal(number)
    until(lambda: not exists(lab_name), "the lab is gone", LIMIT_S)
    assert not wiring.pids(lab_name)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_is_interrupted_while_it_puts_a_lab_up_leaves_nothing(
    lab_name: str, number: signal.Signals
) -> None:
    command = ["lab", "up", "--hosts", "20", "--delay", "1ms", "--name", lab_name]
    with subprocess.Popen([sys.executable, "-m", "ringd", *command]) as maker:
        until(lambda: len(wiring.namespaces(lab_name)) > 5, "it is amid its work")
        maker.send_signal(number)
    assert maker.returncode != 0, "it was too quick to be interrupted"
    until(lambda: not exists(lab_name), "the lab is gone", LIMIT_S)
    assert not wiring.pids(lab_name)


def test_what_is_left_without_its_folder_is_found_by_its_name(lab_name: str) -> None:
    wiring.make_namespaces(LabSpec(hosts=2, name=lab_name))
    assert ringd("lab", "up", "--hosts", "1", "--name", lab_name).returncode == 2
    status = ringd("lab", "status", "--name", lab_name)
    assert status.returncode == 2
    assert f"what is left of it goes by ringd lab down --name {lab_name}" in status.stderr
    take_down(lab_name)
    assert not exists(lab_name)


def test_two_labs_stand_beside_each_other_and_a_name_is_taken_once(lab_name: str) -> None:
    other = f"{lab_name}_b"
    with temporary(LabSpec(hosts=1, name=lab_name)):
        with temporary(LabSpec(hosts=2, name=other, switch="user")):
            again = ringd("lab", "up", "--hosts", "1", "--name", other)
            assert again.returncode == 2
            assert f"there is a lab {other!r}" in again.stderr
        assert not exists(other)
        assert len(wiring.namespaces(lab_name)) == 2
    assert RUN.exists() is bool(RUN.is_dir() and os.listdir(RUN)), "the last one takes the folder"


def test_a_command_on_a_host_sees_its_name_its_hosts_file_and_its_place(lab: MakeLab) -> None:
    made = lab("2", quirks=(OWN_LOOPBACK,))
    words = "hostname; getent hosts host0 host1; echo $LAB_HOST $LAB_HOSTS $LAB_ADDRESS; exit 7"
    script = words.replace("hostname;", "cat /proc/sys/kernel/hostname;")
    done = ringd("lab", "exec", "--name", made.spec.name, "--host", "1", "--", "sh", "-c", script)
    assert done.returncode == 7, done.stderr
    name, host0, host1, place = done.stdout.splitlines()
    assert name == "host1"
    assert host0.split() == ["10.213.78.1", "host0"]
    assert host1.split() == ["127.0.1.1", "host1"]
    assert place == "1 2 10.213.78.2"
    assert Path("/proc/sys/kernel/hostname").read_text().strip() != "host1"


def test_a_command_on_all_hosts_has_a_prefix_and_the_code_of_the_first_that_failed(
    lab: MakeLab,
) -> None:
    made = lab("3")
    script = "echo $LAB_HOST of $LAB_HOSTS; test $LAB_HOST -ne 2 || exit 9"
    done = ringd("lab", "exec", "--name", made.spec.name, "--all", "--", "sh", "-c", script)
    assert done.returncode == 9, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{k}] {k} of 3" for k in range(3)]


def test_ctrl_c_of_a_command_on_all_hosts_ends_all_of_it(lab: MakeLab) -> None:
    made = lab("2")
    command = ["lab", "exec", "--name", made.spec.name, "--all", "--", "sleep", "1000"]
    with subprocess.Popen([sys.executable, "-m", "ringd", *command]) as process:
        until(lambda: len(wiring.pids(made.spec.name)) == 2, "both run")
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert not wiring.pids(made.spec.name)


def test_the_interface_that_leads_nowhere_is_the_one_of_a_hosts_own_name(lab: MakeLab) -> None:
    made = lab("2", quirks=(TWO_INTERFACES,))
    assert made.spec.interface == "eth1"
    done = subprocess.run(
        [*made.enter(0), "getent", "hosts", "host0"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["10.213.79.1", "host0"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["up", "--hosts", "0"], "1 to 100 hosts"),
        (["up", "--hosts", "2", "--name", "a-b"], "not 'a-b'"),
        (["up", "--hosts", "2", "--rate", "fast"], "no rate"),
        (["up", "--hosts", "2", "--quirk", "haunted"], "known: own-loopback"),
        (["up", "--hosts", "2", "--switch", "kernel", "--delay", "1ms"], "has no delay"),
        (["exec", "--host", "0", "--", "true"], "there is no lab"),
        (["down", "--name", "../x"], "not '../x'"),
    ],
)
def test_what_can_not_be_is_said_in_one_line(lab_name: str, words: list[str], text: str) -> None:
    if "--name" not in words:
        words = [words[0], "--name", lab_name, *words[1:]]
    done = ringd("lab", *words)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_lab_that_does_not_exist_is_not_found(lab_name: str) -> None:
    text = f"there is no lab '{lab_name}'; ringd lab up makes it$"
    with pytest.raises(InvalidArgumentError, match=text):
        find(lab_name)
