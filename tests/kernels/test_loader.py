"""torch comes in the background, once, or not at all."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib.util import find_spec

import pytest

from ringd.kernels import TorchLoader, kernel_for, loader, torch_is_ready
from ringd.kernels.numpy_kernels import NUMPY_CONVERSIONS, WideningKernel

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def torch_is_not_ready_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_torch_is_ready", False)


def run_python(text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_ready_before_the_start() -> None:
    waiting = TorchLoader(lambda: None)
    assert not waiting.ready
    assert not waiting.wait(0.0)
    assert waiting.failure is None


def test_start_returns_at_once_and_ready_comes_at_the_end() -> None:
    may_end = threading.Event()
    loading = TorchLoader(lambda: assert_waited(may_end))
    loading.start()
    assert not loading.ready
    assert not torch_is_ready()
    may_end.set()
    assert loading.wait(WAIT_S)
    assert loading.ready
    assert torch_is_ready()


def assert_waited(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


def test_a_second_start_does_nothing() -> None:
    calls: list[int] = []
    loading = TorchLoader(lambda: calls.append(1))
    loading.start()
    loading.start()
    loading.wait(WAIT_S)
    loading.start()
    loading.wait(WAIT_S)
    assert calls == [1]


@pytest.mark.parametrize("error", [ImportError("no torch"), OSError("libgomp.so.1 is missing")])
def test_a_failure_is_recorded_and_numpy_stays(error: Exception) -> None:
    def fail() -> None:
        raise error

    loading = TorchLoader(fail)
    loading.start()
    assert not loading.wait(WAIT_S)
    assert loading.failure == f"{type(error).__name__}: {error}"
    assert not torch_is_ready()
    kernel = kernel_for("bfloat16", "sum", 2, every_rank_folds=False)
    assert isinstance(kernel, WideningKernel)
    assert kernel.conversions is NUMPY_CONVERSIONS["bfloat16"]


def test_a_thread_that_cannot_start_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    loading = TorchLoader(lambda: None)
    loading.start()
    assert loading.failure == "RuntimeError: can't start new thread"
    assert not loading.wait(0.0)


def test_importing_and_using_the_package_does_not_import_torch() -> None:
    run_python(
        "import sys, numpy as np\n"
        "from ringd.kernels import kernel_for, TorchLoader\n"
        "a = np.ones(9, np.uint16)\n"
        "kernel_for('bfloat16', 'sum', 2, every_rank_folds=False).fold([a, a], a)\n"
        "TorchLoader()\n"
        "assert 'torch' not in sys.modules\n"
    )


def test_an_absent_torch_is_a_failure_and_no_crash() -> None:
    text = run_python(
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from ringd.kernels import TorchLoader\n"
        "loading = TorchLoader(); loading.start()\n"
        "assert not loading.wait(60)\n"
        "print(loading.failure)\n"
    )
    assert text.startswith("ModuleNotFoundError")


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@needs_torch
@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.08])
def test_an_exit_in_the_middle_of_the_import_is_clean(delay_s: float) -> None:
    run_python(
        "import time\n"
        "from ringd.kernels import TorchLoader\n"
        "TorchLoader().start()\n"
        f"time.sleep({delay_s})\n"
    )


def test_a_program_that_is_done_does_not_wait_for_the_import() -> None:
    text = run_python(
        "import atexit, logging, time\n"
        "from ringd.kernels import TorchLoader\n"
        "loading = TorchLoader(lambda: time.sleep(600)); loading.start()\n"
        "print('all is written')\n"
        "loading.end_process()\n"
    )
    assert text.strip() == "all is written"


def test_a_program_that_is_done_ends_as_usual_when_nothing_is_imported() -> None:
    text = run_python(
        "import atexit\n"
        "from ringd.kernels import TorchLoader\n"
        "atexit.register(print, 'in order')\n"
        "TorchLoader().end_process()\n"
        "loading = TorchLoader(lambda: None); loading.start(); loading.wait(60)\n"
        "loading.end_process()\n"
    )
    assert text.strip() == "in order"


@needs_torch
def test_the_real_one_brings_torch_for_one_core() -> None:
    run_python(
        "import sys\n"
        "from ringd.kernels import TorchLoader, kernel_for\n"
        "before = kernel_for('bfloat16', 'sum', 2, every_rank_folds=False)\n"
        "loading = TorchLoader(); loading.start()\n"
        "assert loading.wait(60), loading.failure\n"
        "assert sys.modules['torch'].get_num_threads() == 1\n"
        "after = kernel_for('bfloat16', 'sum', 2, every_rank_folds=False)\n"
        "assert before is not after\n"
    )
