"""What is refused locally: the error, the poison that tells the peers, and the call after it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ringd_client
from ringd.errors import (
    InvalidArgumentError,
    InvalidTensorError,
    ResourceError,
    RingdError,
    UnsupportedReductionError,
    UnsupportedTypeError,
)
from ringd.vocabulary import OpSpec
from ringd_client import Communicator, premul_sum
from tests.client.conftest import eventually
from tests.client.stub_daemon import StubDaemon


def read_only() -> Any:
    array = np.ones(3)
    array.flags.writeable = False
    return array


class Sour:
    """Whatever it is asked, it raises."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __index__(self) -> int:
        raise KeyError("index")

    __float__ = __index__  # type: ignore[assignment]


WAY_OUT = re.compile(
    r"\b(pass|use|take|make|convert|reshape|leave|call|known are|it (has|takes)|ranks are 0 to"
    r"|(is|are|takes) (a|the|one|to be|True|from|each|whole|numbers|not negative|not different))\b",
    re.IGNORECASE,
)
"""What to do, or what would have been right."""

ONES = torch.ones(3)
REFUSED: list[tuple[str, Callable[[Communicator], Any], type[RingdError], str]] = [
    ("all_reduce", lambda c: c.all_reduce([1.0, 2.0]), UnsupportedTypeError, "not list"),
    ("all_reduce", lambda c: c.all_reduce(None), UnsupportedTypeError, "not NoneType"),
    (
        "all_reduce",
        lambda c: c.all_reduce(torch.ones(2, dtype=torch.uint16)),
        UnsupportedTypeError,
        "torch.uint16 is none of ringd's: float32",
    ),
    (
        "all_reduce",
        lambda c: c.all_reduce(np.ones(2, ">f4")),
        UnsupportedTypeError,
        r'>f4 has .* pass array.astype\("<f4"\)',
    ),
    ("all_reduce", lambda c: c.all_reduce(np.ones(2, "U1")), UnsupportedTypeError, "<U1"),
    ("all_reduce", lambda c: c.all_reduce(np.ma.masked_array([1.0])), UnsupportedTypeError, "mask"),
    (
        "all_reduce",
        lambda c: c.all_reduce(torch.ones(2, device="meta")),
        UnsupportedTypeError,
        "on meta",
    ),
    (
        "all_reduce",
        lambda c: c.all_reduce(torch.ones(2, 2).to_sparse()),
        UnsupportedTypeError,
        "sparse",
    ),
    (
        "all_reduce",
        lambda c: c.all_reduce(torch.ones(2, dtype=torch.int64), "avg"),
        UnsupportedReductionError,
        "not be a whole number",
    ),
    (
        "reduce_scatter",
        lambda c: c.reduce_scatter(np.ones(1, np.int32), np.ones(3, np.int32), "avg"),
        UnsupportedReductionError,
        "not be a whole number",
    ),
    ("all_reduce", lambda c: c.all_reduce(read_only()), InvalidTensorError, "read-only"),
    ("all_reduce", lambda c: c.all_reduce(torch.ones(1).expand(3)), InvalidTensorError, "overlaps"),
    (
        "all_reduce",
        lambda c: c.all_reduce(torch.ones(9).as_strided((3, 4), (2, 1))),
        InvalidTensorError,
        "overlaps",
    ),
    (
        "all_reduce",
        lambda c: c.all_reduce(np.lib.stride_tricks.as_strided(np.ones(3), (3, 3), (0, 8))),
        InvalidTensorError,
        "overlaps",
    ),
    ("broadcast", lambda c: c.broadcast(torch.ones(1).expand(3), 0), InvalidTensorError, "overlap"),
    (
        "all_gather",
        lambda c: c.all_gather(read_only(), np.ones(1)),
        InvalidTensorError,
        "read-only",
    ),
    (
        "all_gather",
        lambda c: c.all_gather(torch.ones(4), torch.ones(2)),
        InvalidTensorError,
        r"output of shape \(4,\) has 4 elements; 3 ranks times input of shape \(2,\) are 6",
    ),
    (
        "all_gather",
        lambda c: c.all_gather(torch.ones(6).double(), torch.ones(2)),
        InvalidTensorError,
        r"output is float64, input is float32; convert first: tensor.to\(dtype\), array.astype",
    ),
    (
        "reduce_scatter",
        lambda c: c.reduce_scatter(torch.ones(2), torch.ones(5)),
        InvalidTensorError,
        "input of shape",
    ),
    (
        "reduce_scatter",
        lambda c: c.reduce_scatter("no", torch.ones(5)),
        UnsupportedTypeError,
        "output is to be a torch tensor",
    ),
    (
        "all_reduce",
        lambda c: c.all_reduce(ONES, "summ"),
        InvalidArgumentError,
        "did you mean 'sum'",
    ),
    ("all_reduce", lambda c: c.all_reduce(ONES, ["sum"]), InvalidArgumentError, "op is one of"),
    ("all_reduce", lambda c: c.all_reduce(ONES, torch.add), InvalidArgumentError, "op is one of"),
    (
        "all_reduce",
        lambda c: c.all_reduce(ONES, algorithm="rnig"),
        InvalidArgumentError,
        "did you mean 'ring'",
    ),
    (
        "broadcast",
        lambda c: c.broadcast(ONES, 0, algorithm="ring"),
        InvalidArgumentError,
        "known are auto, tree",
    ),
    ("barrier", lambda c: c.barrier(algorithm="ring"), InvalidArgumentError, "known are auto"),
    (
        "all_reduce",
        lambda c: c.all_reduce(ONES, algorithm="ring", deterministic=True),
        InvalidArgumentError,
        "use one of auto, direct, exchange",
    ),
    (
        "all_reduce",
        lambda c: c.all_reduce(ONES, deterministic="yes"),
        InvalidArgumentError,
        "True or False",
    ),
    (
        "all_reduce",
        lambda c: c.all_reduce(ONES, "premul_sum"),
        InvalidArgumentError,
        "needs a factor",
    ),
    (
        "all_reduce",
        lambda c: c.all_reduce(torch.ones(2, dtype=torch.int8), premul_sum(0.5)),
        UnsupportedTypeError,
        "whole number for int8",
    ),
    (
        "all_reduce",
        lambda c: c.all_reduce(torch.ones(2, dtype=torch.int8), premul_sum(128)),
        InvalidArgumentError,
        "range of int8: take one from -128 to 127",
    ),
    ("reduce", lambda c: c.reduce(ONES, 0, premul_sum(1j)), UnsupportedTypeError, "real number"),
    (
        "reduce",
        lambda c: c.reduce(torch.ones(2) + 0j, 0, "max"),
        UnsupportedReductionError,
        "no order",
    ),
    (
        "all_reduce",
        lambda c: c.all_reduce(ONES, "band"),
        UnsupportedReductionError,
        "band is not defined for float32",
    ),
    (
        "all_reduce",
        lambda c: c.all_reduce((torch.ones(3) + 1j).conj()),
        InvalidTensorError,
        "lazily conjugated",
    ),
    ("reduce", lambda c: c.reduce(ONES, 7), InvalidArgumentError, "root 7 is no rank"),
    ("reduce", lambda c: c.reduce(read_only(), 1), InvalidTensorError, "read-only"),
    ("gather", lambda c: c.gather(None, ONES, 1), InvalidTensorError, "which is the root"),
    ("gather", lambda c: c.gather(ONES, ONES, 0), InvalidTensorError, "is to be None here"),
    ("gather", lambda c: c.gather(torch.ones(8), ONES, 1), InvalidTensorError, "are 9"),
    (
        "gather",
        lambda c: c.gather([ONES, ONES], ONES, 1),
        InvalidTensorError,
        "list of 2 tensors; 3 ranks",
    ),
    ("scatter", lambda c: c.scatter(ONES, None, 1), InvalidTensorError, "which is the root"),
    ("scatter", lambda c: c.scatter(ONES, [ONES] * 3, 2), InvalidTensorError, "None here"),
    ("scatter", lambda c: c.scatter([ONES], None, 2), UnsupportedTypeError, "not list"),
    (
        "all_gather",
        lambda c: c.all_gather([ONES, ONES.double(), ONES], ONES),
        InvalidTensorError,
        "it has float32, float64",
    ),
    ("all_gather", lambda c: c.all_gather([], ONES), InvalidTensorError, "it is empty"),
    (
        "all_gather",
        lambda c: c.all_gather([ONES, torch.ones(3, 2), ONES], ONES),
        InvalidTensorError,
        "first dimension only",
    ),
    (
        "all_gather",
        lambda c: c.all_gather(torch.ones(6), ONES, counts=[1, 2, 3]),
        InvalidArgumentError,
        r"counts\[1\] is 2",
    ),
    (
        "all_gather",
        lambda c: c.all_gather(torch.ones(6), ONES, counts=[3, 3]),
        InvalidArgumentError,
        "3 numbers, not 2",
    ),
    (
        "all_gather",
        lambda c: c.all_gather(torch.ones(6), ONES, counts=[-1, 3, 4]),
        InvalidArgumentError,
        "not negative",
    ),
    (
        "all_gather",
        lambda c: c.all_gather(torch.ones(6), ONES, counts=[0.5, 3, 4]),
        InvalidArgumentError,
        "whole numbers",
    ),
    (
        "all_gather",
        lambda c: c.all_gather(torch.ones(6), ONES, counts=[1, 3, 3]),
        InvalidTensorError,
        "7 rows of shape",
    ),
    (
        "reduce_scatter",
        lambda c: c.reduce_scatter(ONES, [ONES, ONES, torch.ones(2)], counts=[3, 3, 3]),
        InvalidTensorError,
        "counts are",
    ),
    (
        "all_to_all",
        lambda c: c.all_to_all(torch.ones(4), torch.ones(3)),
        InvalidTensorError,
        "4 rows, which 3 ranks can't share",
    ),
    (
        "all_to_all",
        lambda c: c.all_to_all(torch.ones(3, 2), torch.ones(3)),
        InvalidTensorError,
        "rows of one shape",
    ),
    (
        "all_to_all",
        lambda c: c.all_to_all(ONES, ONES, input_splits=[1, 1, 2]),
        InvalidArgumentError,
        "input_splits are the rows",
    ),
    (
        "all_to_all",
        lambda c: c.all_to_all(ONES, ONES, input_splits=[0, 2, 1]),
        InvalidArgumentError,
        "rank 1 sends itself 2 rows and expects 1",
    ),
    (
        "all_to_all",
        lambda c: c.all_to_all([ONES] * 3, ONES),
        InvalidTensorError,
        "pass two tensors, or two lists",
    ),
    (
        "all_to_all",
        lambda c: c.all_to_all([ONES] * 3, [ONES] * 2),
        InvalidTensorError,
        "input is a list of 2 tensors",
    ),
    ("all_reduce", lambda c: c.all_reduce(ONES, None), InvalidArgumentError, "op is .*, not None"),
    (
        "all_gather",
        lambda c: c.all_gather(ONES[:1], ONES),
        InvalidTensorError,
        r"\(output comes first\)",
    ),
    ("all_gather", lambda c: c.all_gather_object(np.arange(2)), UnsupportedTypeError, "tolist"),
    (
        "all_gather",
        lambda c: c.all_gather_object({"loss": np.float32(1)}),
        UnsupportedTypeError,
        "item",
    ),
    ("broadcast", lambda c: c.broadcast(ONES, Sour()), InvalidArgumentError, "root is the number"),
    ("barrier", lambda c: c.barrier(timeout_s=Sour()), InvalidArgumentError, "timeout_s is a pos"),
    ("new_group", lambda c: c.new_group([0, 0]), InvalidArgumentError, "not different ranks"),
    ("new_group", lambda c: c.new_group([3]), InvalidArgumentError, "a member 3 is no rank"),
    (
        "new_group",
        lambda c: c.new_group(1),
        InvalidArgumentError,
        r"numbers of ranks, like \[0, 2\], not 1",
    ),
    ("all_gather", lambda c: c.split(0.5), InvalidArgumentError, "color is a whole number"),
    ("all_gather", lambda c: c.split(1, 1 << 63), InvalidArgumentError, "does not fit 64 bits"),
    (
        "all_gather",
        lambda c: c.all_gather_object({1, 2}),
        UnsupportedTypeError,
        "msgpack can't carry",
    ),
    (
        "all_gather",
        lambda c: c.all_gather_object(1, max_object_bytes=0),
        InvalidArgumentError,
        "max_object_bytes",
    ),
    ("all_gather", lambda c: c.gather_object(1, 3), InvalidArgumentError, "root 3 is no rank"),
    (
        "all_reduce",
        lambda c: c.broadcast_object({(1, 2): 3}, 1),
        UnsupportedTypeError,
        "msgpack can't carry",
    ),
    ("all_reduce", lambda c: c.scatter_object([1, 2], 1), InvalidArgumentError, "not 2 of them"),
    ("all_reduce", lambda c: c.scatter_object(None, 1), InvalidArgumentError, "not None"),
    ("broadcast", lambda c: c.broadcast(ONES, 3), InvalidArgumentError, "ranks are 0 to 2"),
    ("broadcast", lambda c: c.broadcast(ONES, -1), InvalidArgumentError, "ranks are 0 to 2"),
    ("broadcast", lambda c: c.broadcast(ONES, 0.5), InvalidArgumentError, "number of a rank"),
    ("barrier", lambda c: c.barrier(timeout_s=0), InvalidArgumentError, "timeout_s is a positive"),
    ("barrier", lambda c: c.barrier(recv_timeout_ms=-5), InvalidArgumentError, "recv_timeout_ms"),
    ("barrier", lambda c: c.barrier(timeout_s="soon"), InvalidArgumentError, "timeout_s"),
]


@pytest.mark.parametrize(("collective", "call", "error", "text"), REFUSED)
def test_a_refused_call_raises_and_takes_its_place_in_the_order(
    comm: Communicator,
    daemon: StubDaemon,
    collective: str,
    call: Callable[[Communicator], Any],
    error: type[RingdError],
    text: str,
) -> None:
    with pytest.raises(error, match=text) as caught:
        call(comm)
    assert isinstance(caught.value, TypeError if issubclass(error, TypeError) else ValueError)
    assert caught.value.retry == "same_epoch"
    assert WAY_OUT.search(caught.value.message)
    tensor = torch.ones(3)
    comm.all_reduce(tensor)
    assert tensor.tolist() == [3, 3, 3]
    ((spec, told),) = daemon.poisons
    assert spec == OpSpec(collective, "", "", ())
    told["fields"].pop("call", None)  # see the next test
    assert told == {"code": error.code, "message": caught.value.message, "fields": {}}
    assert [s.spec.collective for s in daemon.submitted] == ["all_reduce"]
    assert ONES.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda c: c.all_gather_object({1}), "all_gather_object"),
        (lambda c: c.gather_object({1}, 1), "gather_object"),
        (lambda c: c.broadcast_object({1}, c.rank), "broadcast_object"),
        (lambda c: c.scatter_object([{1}] * 3, c.rank), "scatter_object"),
        (lambda c: c.split("red"), "split"),
        (lambda c: c.barrier(timeout_s=0), None),
    ],
)
def test_a_call_of_several_operations_is_told_by_its_own_name(
    comm: Communicator, daemon: StubDaemon, call: Callable[[Communicator], Any], name: str | None
) -> None:
    with pytest.raises(RingdError) as caught:
        call(comm)
    comm.barrier()
    ((_, told),) = daemon.poisons
    assert told["fields"] == ({} if name is None else {"call": name})
    assert "call" not in caught.value.fields


def test_asynchronous_calls_are_refused_when_they_begin(
    comm: Communicator, daemon: StubDaemon
) -> None:
    with pytest.raises(InvalidArgumentError):
        comm.all_reduce_async(torch.ones(3), "nope")
    eventually(lambda: len(daemon.poisons) == 1)


def test_what_is_accepted_does_not_depend_on_what_was_before(
    comm: Communicator, daemon: StubDaemon
) -> None:
    refused: list[Callable[[], Any]] = [
        lambda: comm.broadcast(torch.ones(3), 1.0),  # type: ignore[arg-type]
        lambda: comm.reduce(torch.ones(3), 1.0),  # type: ignore[arg-type]
        lambda: comm.all_reduce(torch.ones(3), deterministic=0),  # type: ignore[arg-type]
        lambda: comm.all_reduce(torch.ones(3), preserve_input=0),  # type: ignore[arg-type]
        lambda: comm.broadcast(torch.ones(3), 1, preserve_input=1),  # type: ignore[arg-type]
    ]
    taken: list[Any] = [1, True, np.int64(1), np.array(1), torch.tensor(1)]
    for _ in range(2):
        for call in refused:
            with pytest.raises(InvalidArgumentError):
                call()
        comm.all_reduce(torch.ones(3))
        for root in taken:
            comm.broadcast(torch.ones(3), root)
            comm.reduce(torch.ones(3), root)
    assert {s.spec.root for s in daemon.submitted} == {-1, 1}
    assert {type(s.spec.root) for s in daemon.submitted} == {int}
    assert len(daemon.poisons) == 10


@pytest.mark.parametrize("ops", [None, 7, (op for op in ())])
def test_batch_p2p_takes_a_sequence(comm: Communicator, daemon: StubDaemon, ops: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="takes a list of Send and Recv"):
        comm.batch_p2p(ops)
    assert comm.batch_p2p([]) == []
    comm.barrier()
    assert daemon.poisons == []


def test_what_numpy_lacks_is_said_of_numpy(comm: Communicator) -> None:
    with pytest.raises(UnsupportedTypeError, match='numpy has no bfloat16: use like="torch"'):
        comm.empty(3, "bfloat16", like="numpy")
    with pytest.raises(InvalidArgumentError, match=r"empty\(\(3, 4\)\)"):
        comm.empty(3, 4)


def test_tensors_that_wrap_others_are_refused(comm: Communicator, daemon: StubDaemon) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    with pytest.raises(UnsupportedTypeError, match="wraps other tensors"):
        comm.all_reduce(fake)
    eventually(lambda: len(daemon.poisons) == 1)


def test_a_tensor_that_cant_be_read_is_refused_with_its_cause(
    comm: Communicator, daemon: StubDaemon
) -> None:
    def seen(tensor: torch.Tensor) -> torch.Tensor:
        with pytest.raises(InvalidTensorError, match="can't be read"):
            comm.all_reduce(tensor)
        return tensor

    torch.func.vmap(seen)(torch.ones(2, 3))
    eventually(lambda: len(daemon.poisons) == 1)


def test_an_output_that_shrank_meanwhile_is_an_error_and_not_written(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda submitted: "hold"
    tensor = torch.ones(100)
    handle = comm.all_reduce_async(tensor)
    eventually(lambda: daemon.held)
    tensor.resize_(10)
    daemon.release()
    with pytest.raises(InvalidTensorError, match="had 400 bytes"):
        handle.wait()
    assert tensor.tolist() == [1.0] * 10


def _coalesced(comm: Any) -> None:
    with comm.coalesce():
        comm.all_reduce(np.ones(3))
        comm.all_reduce(np.ones(4))


async def _coalesced_async(comm: Any) -> None:
    async with comm.coalesce():
        comm.all_reduce(np.ones(3))


NEEDING_MEMORY: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda comm: comm.all_reduce(np.ones(3)),
    "agree": lambda comm: comm.agree(True),
    "new_group": lambda comm: comm.new_group([0, 1, 2]),
    "all_gather": lambda comm: comm.all_gather_object(1),
    "broadcast": lambda comm: comm.sync_state({"a": np.ones(3)}),
    "split": lambda comm: comm.split(0),
    "scatter": lambda comm: comm.scatter_object([1, 2, 3], comm.rank),
}


@pytest.fixture
def no_descriptors(comm: Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this process can make no shared memory."""

    def refuse(name: str, flags: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", refuse)


@pytest.mark.parametrize("name", [*NEEDING_MEMORY, "coalesce", "all_reduce_async", "agree_async"])
@pytest.mark.usefixtures("no_descriptors")
def test_a_call_for_which_there_is_no_descriptor_takes_its_place(
    comm: Communicator, daemon: StubDaemon, name: str
) -> None:
    more: dict[str, Callable[[Any], Any]] = {
        "coalesce": _coalesced,
        "all_reduce_async": lambda comm: comm.all_reduce_async(np.ones(3)),
        "agree_async": lambda comm: comm.agree_async(True),
    }
    for times in (1, 2):
        with pytest.raises(ResourceError, match="out of file descriptors"):
            {**NEEDING_MEMORY, **more}[name](comm)
        eventually(lambda times=times: len(daemon.poisons) == times)
    comm.barrier()
    assert len(daemon.poisons) == 2
    assert {error["code"] for _, error in daemon.poisons} == {ResourceError.code}


@pytest.mark.parametrize("name", [*NEEDING_MEMORY, "coalesce"])
async def test_so_it_does_with_asyncio(
    daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    call = _coalesced_async if name == "coalesce" else NEEDING_MEMORY[name]
    async with await ringd_client.connect_async(socket=daemon.path, timeout_s=5) as comm:
        monkeypatch.setattr(os, "memfd_create", refuse)
        with pytest.raises(ResourceError, match="out of file descriptors"):
            await call(comm)
        await comm.barrier()
    assert len(daemon.poisons) == 1


LOADING: dict[str, Callable[[Any], Any]] = {
    "all_gather_object": lambda comm: comm.all_gather_object(1),
    "gather_object": lambda comm: comm.gather_object(1, 0),
    "broadcast_object": lambda comm: comm.broadcast_object(1, 0),
    "scatter_object": lambda comm: comm.scatter_object([1, 2, 3], comm.rank),
    "split": lambda comm: comm.split(0),
}


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "x"), MemoryError("x")], ids=repr)
@pytest.mark.parametrize("name", LOADING)
def test_a_call_of_several_operations_that_has_no_room_to_begin_takes_its_place(
    comm: Communicator,
    daemon: StubDaemon,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: Exception,
) -> None:
    def scarce(*_: object) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("ringd_client._objects._room", scarce)
        patched.setattr("ringd_client._objects._array", scarce)
        patched.setattr("ringd_client._groups._tables", scarce)
        with pytest.raises(ResourceError):
            LOADING[name](comm)
    comm.barrier()
    assert [told["code"] for _, told in daemon.poisons] == [ResourceError.code]


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "x"), ImportError("No module")], ids=repr)
def test_a_library_is_loaded_by_the_first_tensor_of_it(
    comm: Communicator, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def missing(library: str) -> Any:
        raise error

    monkeypatch.setattr("ringd_client._calls.adapter_named", missing)
    expected = ResourceError if isinstance(error, OSError) else ImportError
    with pytest.raises(expected):
        comm.empty(3)


@pytest.mark.usefixtures("no_descriptors")
def test_a_message_and_a_tensor_of_the_arena_have_no_place_to_take(
    comm: Communicator, daemon: StubDaemon
) -> None:
    for call in (
        lambda: comm.send(np.ones(3), 0),
        lambda: comm.irecv(np.ones(3), 0),
        lambda: comm.empty(3),
    ):
        with pytest.raises(ResourceError, match="out of file descriptors"):
            call()
    comm.barrier()
    assert daemon.poisons == []
