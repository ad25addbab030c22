"""torch's own tests of process groups, as its wheel ships them, for any backend.

They decide by the backend's name what to expect, most of it when their module is imported. So it
is imported under gloo's name, and every decorator gives what it gives for gloo. Then the name is
that of the backend under test, which says yes where a test asks whether it is gloo's. No test is
changed. What is, beside the name:

- Ranks are forked from a process that has imported torch, not spawned: that import takes longer
  than most tests.
- ringd is among the backends whose calls a profiler shows, so it is held to that as gloo is.
- Tests of RPC have the word "gloo" in their calls; the backend under test takes its place.
- Their ranks wait for each other at the end of init_process_group, as TORCH_DIST_INIT_BARRIER has
  it. Otherwise RPC may call a rank that has not noted its group yet ("Default process group has
  not been initialized"): a race of those tests, which gloo loses too on a busy machine.
- Tests that torch skips for fewer than 4 or 8 ranks get so many.

A test that "passes" may have run nothing in any rank. So each rank writes down what became of it.
"""

from __future__ import annotations

import functools
import inspect
import json
import multiprocessing
import os
import re
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

USUAL_SIZE = 3
"""How many ranks most tests get: as in torch's own CI without GPUs."""
SIZES = {"@require_world_size(4)": 4, "@require_exact_world_size(4)": 4, "@skip_if_small_world": 8}
"""How many those get that torch skips otherwise, by their decorators."""

os.environ |= {
    "BACKEND": "gloo",
    "WORLD_SIZE": "4",  # read by decorators; a test has what size_of says
    "INIT_METHOD": "file://",  # tests of timeouts want a store that is a file
    "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "100",  # below our own limit: torch shows where ranks hang
    "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
    "OMP_NUM_THREADS": "1",
}
for _name in ("SANDCASTLE", "TW_JOB_USER"):  # where torch's tests pass instead of being skipped
    os.environ.pop(_name, None)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_distributed import (  # noqa: E402
    TEST_SKIPS,
    MultiProcessTestCase,
)
from torch.testing._internal.distributed import distributed_test, rpc_utils  # noqa: E402
from torch.testing._internal.distributed.rpc import (  # noqa: E402
    tensorpipe_rpc_agent_test_fixture as tensorpipe,
)

_made: list[str] = []
"""The backends of the default groups that this rank has made, as torch tells them."""

_SKIPS: dict[Any, str] = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


class AsGloo(str):
    """A backend's name that is equal to gloo's, too."""

    def __eq__(self, other: object) -> bool:
        return str(self) == other or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class Recorded(MultiProcessTestCase):
    """A case whose ranks are forked, and write down how the test ended.

    Attributes:
        records: a folder; a file per rank.
    """

    records: Path

    def _spawn_processes(self) -> None:
        self._start_processes(multiprocessing.get_context("fork").Process)

    def run_test(self, test_name: str, parent_pipe: Any) -> None:
        """For torch, in each rank.

        A fork leaves torch's pool of threads broken, and the first thread that needs it makes
        another: unlocked, so of two that are first one aborts ("Invalid thread pool!"). RPC and
        distributed autograd start theirs at once. So the pool is made here, by the only thread.
        """
        torch.set_num_threads(1)
        test = getattr(self, test_name)
        setattr(self, test_name, functools.partial(self._recorded, test))
        super().run_test(test_name, parent_pipe)

    def _recorded(self, test: Callable[[], None]) -> None:
        self._write("begun", "")
        try:
            test()
        except unittest.SkipTest as exc:
            self._write("skipped", str(exc))
            raise
        except SystemExit as exc:
            if exc.code in _SKIPS:
                self._write("skipped", _SKIPS[exc.code])
            else:
                self._write("failed" if exc.code else "passed", f"exit({exc.code})")
            raise
        except BaseException as exc:
            self._write("failed", f"{type(exc).__name__}: {exc}")
            raise
        self._write("passed", "")

    def _write(self, outcome: str, reason: str) -> None:
        told = {"rank": self.rank, "outcome": outcome, "reason": reason, "groups": _made}
        written = self.records / f".{self.rank}"
        written.write_text(json.dumps(told))
        written.rename(self.records / str(self.rank))  # whole, should we be killed


class TestDistributed(
    Recorded, distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
):
    """``distributed_test``: calls, groups, messages, objects, DDP, joins, hooks."""

    def setUp(self) -> None:
        super().setUp()
        distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]  # as a spawned rank reads it
        self._spawn_processes()


_WITH_RPC = [
    type(cls.__name__, (Recorded, cls), {})
    for cls in rpc_utils.generate_tests(
        "",
        tensorpipe.TensorPipeRpcAgentTestFixture,
        rpc_utils.GENERIC_TESTS + rpc_utils.TENSORPIPE_TESTS,
        __name__,
    ).values()
]


def cases() -> dict[str, unittest.TestCase]:
    """All tests of process groups, by name."""
    found = {}
    for cls in (TestDistributed, *_WITH_RPC):
        for name in unittest.defaultTestLoader.getTestCaseNames(cls):
            if cls is TestDistributed or _uses_groups(cls, name):
                found[f"{cls.__name__}.{name}"] = cls
    return {name: cls(name.partition(".")[2]) for name, cls in found.items()}


def _uses_groups(cls: type, name: str, known: frozenset[str] = frozenset()) -> bool:
    """Whether a test of RPC makes a process group, itself or in a method that it calls."""
    source = inspect.getsource(getattr(cls, name))
    if re.search(r"\b(init_process_group|initialize_pg)\(", source):
        return True
    called = {n for n in re.findall(r"self\.(\w+)\(", source) if n in vars(cls) or hasattr(cls, n)}
    return any(
        _uses_groups(cls, other, known | {name})
        for other in called - known - {name}
        if inspect.isfunction(getattr(cls, other))
        and getattr(cls, other).__module__.startswith("torch.testing._internal.distributed")
    )


def size_of(case: unittest.TestCase) -> int:
    """How many ranks a test is to have."""
    if not isinstance(case, TestDistributed):
        return int(case.world_size)  # type: ignore[attr-defined]
    source = inspect.getsource(getattr(type(case), case._testMethodName))
    return max((size for word, size in SIZES.items() if word in source), default=USUAL_SIZE)


def run(case: unittest.TestCase, backend: str, records: Path) -> unittest.TestResult:
    """Run a test under a backend in this process, which is to do nothing else.

    Args:
        records: an empty folder, where each rank writes how it ended.
    """
    torch.set_num_threads(1)
    os.environ |= {"BACKEND": backend, "WORLD_SIZE": str(size_of(case))}
    distributed_test.BACKEND = AsGloo(backend)
    for known in (
        distributed_test.PROFILING_SUPPORTED_BACKENDS,
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
    ):
        known.append(backend)
    type(case).records = records  # type: ignore[attr-defined]
    result = unittest.TestResult()
    create = dist.init_process_group

    def create_under_test(*args: Any, **kwargs: Any) -> None:
        if isinstance(case, TestDistributed):
            create(*args, **kwargs)
        else:
            kwargs["backend"] = backend
            with mock.patch.dict(os.environ, TORCH_DIST_INIT_BARRIER="1"):
                create(*args, **kwargs)
        _made.append(dist.get_backend())

    with mock.patch.object(dist, "init_process_group", create_under_test):
        case.run(result)
    return result
