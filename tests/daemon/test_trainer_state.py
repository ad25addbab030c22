"""What a trainer is doing is told without its cooperation, and without disturbing it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from ringd.daemon import trainer_state
from ringd.daemon.trainer_state import (
    MAX_FRAMES,
    Inspector,
    KernelView,
    TrainerState,
    parse_stack,
    parse_status,
    view,
)
from ringd.errors import InvalidArgumentError

STACK_SIGNAL = int(signal.SIGRTMIN) + 7

# ---------------------------------------------------------------- reading what the kernel says

STATUS = """\
Name:\tpython
Umask:\t0022
State:\t{state}
Tgid:\t4711
SigQ:\t1/63432
SigPnd:\t{pending}
ShdPnd:\t0000000000000000
SigBlk:\t{blocked}
SigIgn:\t0000000001001000
SigCgt:\t{caught}
"""
NONE, FORTY_ONE = "0" * 16, "0000010000000002"
"""No signal; signals 41 and 2."""


def status(
    state: str = "S (sleeping)", pending: str = NONE, blocked: str = NONE, caught: str = FORTY_ONE
) -> KernelView:
    return parse_status(STATUS.format(state=state, pending=pending, blocked=blocked, caught=caught))


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("R (running)", "running"),
        ("S (sleeping)", "sleeping"),
        ("D (disk sleep)", "sleeping"),
        ("T (stopped)", "stopped"),
        ("t (tracing stop)", "stopped"),
        ("Z (zombie)", "gone"),
        ("X (dead)", "gone"),
        ("? (odd)", "unknown"),
    ],
)
def test_the_kernels_letters_become_words(text: str, state: str) -> None:
    assert status(text).state == state


def test_a_signal_is_heard_only_by_a_handler_that_can_run_now() -> None:
    assert status().hears(41)
    assert status("R (running)").hears(41)
    assert not status(caught=NONE).hears(41), "its default is to end the process"
    assert not status().hears(40)
    assert not status(blocked=FORTY_ONE).hears(41)
    assert not status("T (stopped)").hears(41)
    assert not status("Z (zombie)").hears(41)


def test_what_is_pending_and_what_is_blocked_is_told_apart() -> None:
    assert status(pending=FORTY_ONE).owes(41)
    assert not status(pending=FORTY_ONE).handles(41)
    assert status(blocked=FORTY_ONE).handles(41)
    assert not status(blocked=FORTY_ONE).owes(41)


@pytest.mark.parametrize("text", ["", "State:", "SigCgt:\tnonsense", "\0\xff"])
def test_a_status_that_says_nothing_is_unknown(text: str) -> None:
    assert parse_status(text) == KernelView("unknown")


def test_processes_that_can_not_be_looked_at() -> None:
    assert view(0).state == "unknown"
    assert view(2**22 + 1).state == "gone"
    assert view(os.getpid()).state == "running"


# ---------------------------------------------------------------- reading what faulthandler writes


def dump(*frames: str) -> str:
    return "".join(["Stack (most recent call first):\n", *(f"  {line}\n" for line in frames)])


SITE = "/opt/env/lib/python3.11/site-packages"


def test_a_stack_is_told_innermost_first_with_short_paths() -> None:
    text = dump(
        'File "/usr/lib/python3.11/threading.py", line 327 in wait',
        'File "/home/somebody/work/project/src/data.py", line 12 in <lambda>',
        'File "/tmp/job/train.py", line 7 in main',
        'File "train.py", line 88 in <module>',
    )
    assert parse_stack(text) == (
        "threading.py:327 in wait",
        ".../project/src/data.py:12 in <lambda>",
        "/tmp/job/train.py:7 in main",
        "train.py:88 in <module>",
    )


def test_below_the_innermost_frame_only_the_programs_own_are_told() -> None:
    text = dump(
        'File "/opt/ringd/client/ringd_client/_transport.py", line 91 in receive',
        'File "/opt/ringd/client/ringd_client/torch/work.py", line 7 in wait',
        f'File "{SITE}/torch/distributed/distributed_c10d.py", line 2799 in recv',
        f'File "{SITE}/torch/distributed/c10d_logger.py", line 83 in wrapper',
        'File "/job/train.py", line 3 in step',
        f'File "{SITE}/torch/autograd/function.py", line 5 in apply',
        'File "/job/train.py", line 9 in <module>',
        'File "<frozen runpy>", line 88 in _run_code',
        'File "/usr/lib/python3.11/runpy.py", line 198 in run_path',
    )
    assert parse_stack(text) == (
        "ringd_client.wait (waiting)",
        "/job/train.py:3 in step",
        "/job/train.py:9 in <module>",
    )


def test_a_program_that_is_installed_itself_has_all_its_frames() -> None:
    text = dump(
        f'File "{SITE}/torch/utils/data/dataloader.py", line 5 in f',
        f'File "{SITE}/trainer/main.py", line 8 in main',
        "...",
    )
    assert parse_stack(text) == (
        "torch/utils/data/dataloader.py:5 in f",
        "trainer/main.py:8 in main",
        "...",
    )


def test_the_clients_own_frames_at_the_top_become_one() -> None:
    inside = "/opt/ringd/client/ringd_client/"
    text = dump(
        f'File "{inside}_transport.py", line 91 in receive',
        f'File "{inside}_connection.py", line 277 in _receive',
        f'File "{inside}communicator.py", line 85 in barrier',
        'File "/job/train.py", line 3 in step',
        f'File "{inside}aio.py", line 1 in callback',
        'File "/job/train.py", line 9 in <module>',
    )
    assert parse_stack(text) == (
        "ringd_client.barrier (waiting)",
        "/job/train.py:3 in step",
        "/job/train.py:9 in <module>",
    )
    copying = dump(f'File "{inside}_regions.py", line 9 in load')
    assert parse_stack(copying) == ("ringd_client.load (working)",)


def test_of_a_long_stack_the_middle_is_left_out() -> None:
    frames = [f'File "deep.py", line {n} in f' for n in range(1, 40)]
    told = parse_stack(dump(*frames))
    assert len(told) == MAX_FRAMES
    assert told[0] == "deep.py:1 in f"
    assert told[8:] == ("...", *(f"deep.py:{n} in f" for n in (37, 38, 39)))
    assert parse_stack(dump(*frames[:MAX_FRAMES]))[-1] == f"deep.py:{MAX_FRAMES} in f"


def test_of_a_stack_that_faulthandler_has_cut_the_outermost_frames_are_not_made_up() -> None:
    frames = [f'File "deep.py", line {n} in f' for n in range(100)]
    told = parse_stack(dump(*frames, "..."))
    assert told == (*(f"deep.py:{n} in f" for n in range(MAX_FRAMES - 1)), "...")


def test_of_several_stacks_the_last_one_counts() -> None:
    assert parse_stack(dump('File "a.py", line 1 in f') + dump('File "b.py", line 2 in g')) == (
        "b.py:2 in g",
    )


@pytest.mark.parametrize("text", ["", "nonsense\n", dump("<no Python frame>"), dump()])
def test_what_is_no_stack_gives_none(text: str) -> None:
    assert parse_stack(text) == ()


def test_lines_that_name_nothing_are_told_as_they_are() -> None:
    assert parse_stack(dump('File "a.py", line ??? in ???')) == ("a.py:??? in ???",)
    assert len(parse_stack(dump(f'File "{"x" * 500}", line 1 in f'))[0]) < 120


# ---------------------------------------------------------------- real processes

OFFER = "import os, sys, threading, time; from tests.daemon.offering import ready\n"


@dataclass
class Program:
    """A child process that has offered its stack."""

    process: subprocess.Popen[bytes]
    stack_signal: int
    fd: int

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Program]]:
    """Start a program; it calls ``ready()`` and then does something."""
    programs: list[Program] = []

    def begin(code: str) -> Program:
        file = tmp_path / "program.py"
        file.write_text(OFFER + textwrap.dedent(code).strip())
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = subprocess.Popen(
                [sys.executable, str(file), str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
            theirs.close()
            said, fds, _, _ = socket.recv_fds(ours, 16, 1)
        programs.append(Program(process, int(said), fds[0]))
        return programs[-1]

    before = len(os.listdir("/proc/self/fd"))
    yield begin
    for program in programs:
        program.process.kill()
        program.process.wait()
        program.stdin.close()
    assert len(os.listdir("/proc/self/fd")) == before, "the inspector closes what it took over"


def inspector(program: Program) -> Inspector:
    loop = asyncio.get_running_loop()
    return Inspector(loop, program.pid, stack_signal=program.stack_signal, fd=program.fd)


async def look(at: Inspector) -> TrainerState:
    told: asyncio.Future[TrainerState] = asyncio.get_running_loop().create_future()
    at.inspect(told.set_result)
    assert not told.done(), "never from within the call"
    return await asyncio.wait_for(told, 10)


async def stack_with(at: Inspector, function: str, state: str = "") -> TrainerState:
    """Look until the program has come to ``function`` (and is in ``state``)."""
    for _ in range(1000):
        seen = await look(at)
        there = any(frame.endswith(f" in {function}") for frame in seen.stack)
        if there and state in ("", seen.state):
            return seen
    raise AssertionError(f"not in {function}: {seen}")


async def sleeps(at: Inspector) -> TrainerState:
    """Look until the program sleeps. It has been seen to before: at its start it wakes again."""
    for _ in range(1000):
        seen = await look(at)
        if seen.state == "sleeping":
            return seen
    raise AssertionError(f"it does not sleep: {seen}")


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process will make true."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("does", "state"),
    [
        ("time.sleep(600)", "sleeping"),
        ("threading.Lock().acquire() and lock.acquire()", "sleeping"),
        ("pow(3, 10**7) and pow(3, 10**9)", "running"),
        ("[None for _ in iter(int, 1)]", "running"),
    ],
    ids=["sleep", "lock", "a call that holds the GIL", "a loop"],
)
async def test_the_line_that_the_main_thread_is_in(
    start: Callable[[str], Program], does: str, state: str
) -> None:
    program = start(f"""
        lock = threading.Lock()
        lock.acquire()
        def inner():
            {does}
        def outer():
            inner()
        ready()
        outer()
    """)
    at = inspector(program)
    seen = await stack_with(at, "inner", state)
    inner = next(i for i, frame in enumerate(seen.stack) if frame.endswith(" in inner"))
    assert [frame.rpartition("/")[2] for frame in seen.stack[inner:]] == [
        "program.py:5 in inner",
        "program.py:7 in outer",
        "program.py:9 in <module>",
    ]
    assert seen.pid == program.pid
    at.close()


async def test_other_threads_that_work_are_not_shown_and_not_harmed(
    start: Callable[[str], Program],
) -> None:
    program = start("""
        def recurse(n):
            return n and 1 + recurse(n - 1)
        def work():
            while True:
                scope = {}
                exec(compile("def f(g): return g(200)", "gone.py", "exec"), scope)
                scope["f"](recurse)
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        def main():
            time.sleep(600)
        ready()
        main()
    """)
    at = inspector(program)
    await stack_with(at, "main")
    for _ in range(20):
        seen = await look(at)
        assert seen.stack[0].endswith(" in main")
        assert b" in work" not in os.pread(program.fd, 1 << 20, 0), "to read it would be a race"
    assert program.process.poll() is None
    at.close()


async def test_a_main_thread_that_is_through_waits_for_the_others(
    start: Callable[[str], Program],
) -> None:
    program = start("""
        threading.Thread(target=time.sleep, args=(600,)).start()
        ready()
    """)
    at = inspector(program)
    seen = await stack_with(at, "_shutdown")
    assert seen.stack[-1].startswith("threading.py:")
    at.close()


async def test_a_loop_that_waits_is_shown_and_goes_on(start: Callable[[str], Program]) -> None:
    program = start("""
        import asyncio
        async def main():
            ready()
            await asyncio.to_thread(sys.stdin.read)
            os._exit(7)
        asyncio.run(main())
    """)
    at = inspector(program)
    seen = await stack_with(at, "select", "sleeping")
    assert seen.stack[-1].endswith("in <module>")
    program.stdin.close()
    assert await asyncio.to_thread(program.process.wait, 10) == 7
    at.close()


async def test_a_stopped_program_is_not_signalled_and_goes_on_afterwards(
    start: Callable[[str], Program],
) -> None:
    program = start("""
        def main():
            time.sleep(600)
        ready()
        main()
    """)
    at = inspector(program)
    await stack_with(at, "main", "sleeping")
    program.process.send_signal(signal.SIGSTOP)
    until(lambda: view(program.pid).state == "stopped")
    assert await look(at) == TrainerState(program.pid, "stopped", ())
    assert not view(program.pid).owes(STACK_SIGNAL)
    program.process.send_signal(signal.SIGCONT)
    await stack_with(at, "main", "sleeping")
    at.close()


async def test_a_program_that_is_gone_is_said_to_be(start: Callable[[str], Program]) -> None:
    program = start("ready(); time.sleep(600)")
    at = inspector(program)
    program.process.kill()
    program.process.wait()
    assert await look(at) == TrainerState(program.pid, "gone", ())
    at.close()


async def test_a_program_that_was_replaced_is_not_killed_by_the_signal(
    start: Callable[[str], Program],
) -> None:
    program = start('ready(); os.execvp("sleep", ["sleep", "600"])')
    at = inspector(program)
    until(lambda: Path(f"/proc/{program.pid}/comm").read_text() == "sleep\n")
    for _ in range(3):
        assert await sleeps(at) == TrainerState(program.pid, "sleeping", ())
    assert program.process.poll() is None
    at.close()


async def test_a_main_thread_that_blocks_the_signal_is_not_sent_any(
    start: Callable[[str], Program],
) -> None:
    program = start(f"""
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [{STACK_SIGNAL}])
        ready()
        time.sleep(600)
    """)
    at = inspector(program)
    until(lambda: view(program.pid).state == "sleeping")
    assert await sleeps(at) == TrainerState(program.pid, "sleeping", ())
    assert not view(program.pid).owes(STACK_SIGNAL)
    at.close()


async def test_a_handler_that_writes_nothing_ends_the_patience_and_no_more(
    start: Callable[[str], Program],
) -> None:
    program = start(f"""
        import signal
        ready()
        signal.signal({STACK_SIGNAL}, lambda *_: None)
        time.sleep(600)
    """)
    at = inspector(program)
    until(lambda: view(program.pid).state == "sleeping")
    for _ in range(3):
        assert (await look(at)).stack == ()
    assert program.process.poll() is None
    at.close()


async def test_a_system_call_is_taken_up_again(start: Callable[[str], Program]) -> None:
    program = start("""
        def main():
            return os.read(0, 100)
        ready()
        os._exit(7 if main() == b"at last" else 1)
    """)
    at = inspector(program)
    for _ in range(20):
        await stack_with(at, "main", "sleeping")
    program.stdin.write(b"at last")
    program.stdin.flush()
    assert await asyncio.to_thread(program.process.wait, 10) == 7
    at.close()


async def test_an_older_kernel_signals_the_process_and_so_its_main_thread(
    start: Callable[[str], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_state, "_TO_THE_MAIN_THREAD", 1 << 30)  # refused: unknown
    program = start("""
        def main():
            time.sleep(600)
        threading.Thread(target=time.sleep, args=(600,)).start()
        ready()
        main()
    """)
    at = inspector(program)
    await stack_with(at, "main", "sleeping")
    at.close()


async def test_all_who_ask_at_once_get_one_answer(start: Callable[[str], Program]) -> None:
    program = start("""
        ready()
        time.sleep(600)
    """)
    at = inspector(program)
    await stack_with(at, "<module>")
    assert len(set(await asyncio.gather(*(look(at) for _ in range(5))))) == 1
    at.close()


async def test_who_waits_when_the_session_ends_is_told_and_so_is_who_asks_later(
    start: Callable[[str], Program],
) -> None:
    program = start("ready(); time.sleep(600)")
    at = inspector(program)
    told: list[TrainerState] = []
    at.inspect(told.append)
    at.close()
    at.close()
    assert told == []
    later = await look(at)
    assert [seen.pid for seen in told] == [program.pid], "once"
    assert later.stack == ()


async def test_the_file_does_not_grow_without_bound(start: Callable[[str], Program]) -> None:
    program = start("ready(); time.sleep(600)")
    at = inspector(program)
    await stack_with(at, "<module>")
    os.write(program.fd, b"x" * 300_000)
    await stack_with(at, "<module>")
    assert os.fstat(program.fd).st_size < 10_000
    at.close()


@pytest.mark.parametrize("number", [0, 9, 33, 65, -1, "41", True])
async def test_only_a_real_time_signal_is_taken(number: object) -> None:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    with pytest.raises(InvalidArgumentError, match="real-time signal"):
        Inspector(asyncio.get_running_loop(), os.getpid(), stack_signal=number, fd=fd)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


async def test_only_a_memfd_is_read() -> None:
    reader, writer = os.pipe()
    with contextlib.closing(os.fdopen(writer)), pytest.raises(InvalidArgumentError, match="memfd"):
        Inspector(asyncio.get_running_loop(), os.getpid(), stack_signal=STACK_SIGNAL, fd=reader)
    with pytest.raises(InvalidArgumentError, match="a file"):
        Inspector(asyncio.get_running_loop(), os.getpid(), stack_signal=STACK_SIGNAL)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


async def test_without_an_offer_the_state_alone_is_told(sleeper: subprocess.Popen[bytes]) -> None:
    at = Inspector(asyncio.get_running_loop(), sleeper.pid)
    assert await sleeps(at) == TrainerState(sleeper.pid, "sleeping", ())
    sleeper.kill()
    sleeper.wait()
    assert await look(at) == TrainerState(sleeper.pid, "gone", ())
    at.close()


async def test_of_a_process_of_another_namespace_nothing_is_known() -> None:
    at = Inspector(asyncio.get_running_loop(), 0)
    assert await look(at) == TrainerState(0, "unknown", ())
    at.close()
