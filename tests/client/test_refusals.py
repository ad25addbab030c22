"""What is refused locally: the error, the poison that tells the peers, and the call after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ringd.errors import (
    InvalidArgumentError,
    InvalidTensorError,
    RingdError,
    UnsupportedTypeError,
)
from ringd.vocabulary import OpSpec
from ringd_client import Communicator
from tests.client.conftest import eventually
from tests.client.stub_daemon import StubDaemon


def read_only() -> Any:
    array = np.ones(3)
    array.flags.writeable = False
    return array


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
    ("all_reduce", lambda c: c.all_reduce(np.ones(2, ">f4")), UnsupportedTypeError, ">f4"),
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
        UnsupportedTypeError,
        "not be a whole number",
    ),
    (
        "reduce_scatter",
        lambda c: c.reduce_scatter(np.ones(1, np.int32), np.ones(3, np.int32), "avg"),
        UnsupportedTypeError,
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
        "dtypes differ: output is float64, input is float32",
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
    assert isinstance(caught.value, TypeError if error is UnsupportedTypeError else ValueError)
    assert caught.value.retry == "same_epoch"
    tensor = torch.ones(3)
    comm.all_reduce(tensor)
    assert tensor.tolist() == [3, 3, 3]
    ((spec, told),) = daemon.poisons
    assert spec == OpSpec(collective, "", "", ())
    assert told == {"code": error.code, "message": caught.value.message, "fields": {}}
    assert [s.spec.collective for s in daemon.submitted] == ["all_reduce"]
    assert ONES.tolist() == [1, 1, 1]


def test_asynchronous_calls_are_refused_when_they_begin(
    comm: Communicator, daemon: StubDaemon
) -> None:
    with pytest.raises(InvalidArgumentError):
        comm.all_reduce_async(torch.ones(3), "nope")
    eventually(lambda: len(daemon.poisons) == 1)


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
