"""Each collective: what the daemon is asked, and what arrives in the caller's tensor.

The stand-in plays ranks 0 and 2 beside us (rank 1 of 3): to reductions they contribute what we do;
what else comes from rank r counts from 100*r.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ringd.errors import UnsupportedReductionError
from ringd.vocabulary import DTYPES, OpSpec, reductions
from ringd_client import Communicator
from tests.client.stub_daemon import StubDaemon

DTYPE_NAMES = list(DTYPES)
SUMMED = [name for name in DTYPE_NAMES if "sum" in reductions(name)]
OPAQUE = [name for name in DTYPE_NAMES if not reductions(name)]


@pytest.mark.parametrize("name", SUMMED)
def test_all_reduce_of_torch_tensors_in_place(comm: Communicator, name: str) -> None:
    tensor = torch.tensor([0, 1, 2, 3]).to(getattr(torch, name))
    expected = tensor if name == "bool" else tensor * 3
    result = tensor.clone()
    assert comm.all_reduce(result) is result
    assert result.equal(expected)
    assert result.dtype is getattr(torch, name)


@pytest.mark.parametrize("name", [name for name in SUMMED if name != "bfloat16"])
def test_all_reduce_of_numpy_arrays_in_place(comm: Communicator, name: str) -> None:
    array = np.array([0, 1, 2, 3]).astype(name)
    expected = array.copy() if name == "bool" else array * array.dtype.type(3)
    assert comm.all_reduce(array) is array
    assert (array == expected).all()
    assert array.dtype == name


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_every_dtype_is_moved_bit_for_bit(
    comm: Communicator, daemon: StubDaemon, name: str
) -> None:
    seen: list[bytes] = []
    daemon.script = lambda submitted: seen.append(daemon.region(submitted).tobytes())
    dtype = getattr(torch, name)
    bits = bytes(range(1, 193)) if name != "bool" else bytes([0, 1, 1] * 64)
    tensor = torch.frombuffer(bytearray(bits), dtype=dtype)
    comm.broadcast(tensor, 1)
    comm.broadcast(tensor.as_strided((len(tensor) // 2,), (2,)), 1)
    itemsize = dtype.itemsize
    pieces = [bits[i : i + itemsize] for i in range(0, len(bits), 2 * itemsize)]
    assert seen == [bits, b"".join(pieces)]
    comm.broadcast(tensor, 0)
    assert daemon.submitted[-1].spec.dtype == name
    counted = np.arange(len(tensor)).astype(daemon.region(daemon.submitted[-1]).dtype)
    assert tensor.view(torch.uint8).numpy().tobytes() == counted.tobytes()


@pytest.mark.parametrize("name", OPAQUE)
def test_types_that_are_only_moved_are_not_reduced(
    comm: Communicator, daemon: StubDaemon, name: str
) -> None:
    with pytest.raises(UnsupportedReductionError, match="can only be moved"):
        comm.all_reduce(torch.zeros(3).to(getattr(torch, name)))
    comm.barrier()
    assert [spec.collective for spec, _ in daemon.poisons] == ["all_reduce"]


@pytest.mark.parametrize(("op", "expected"), [("prod", 8.0), ("min", 2.0), ("avg", 2.0)])
def test_the_reduce_op_reaches_the_daemon(
    comm: Communicator, daemon: StubDaemon, op: str, expected: float
) -> None:
    tensor = torch.full((4,), 2.0)
    comm.all_reduce(tensor, op)
    assert tensor.tolist() == [expected] * 4
    assert daemon.submitted[-1].spec == OpSpec("all_reduce", "float32", op, (4,))


def test_options_travel_with_the_operation(comm: Communicator, daemon: StubDaemon) -> None:
    comm.all_reduce(
        torch.ones(2, 3),
        timeout_s=7,
        recv_timeout_ms=1500,
        algorithm="direct",
        deterministic=True,
    )
    submitted = daemon.submitted[-1]
    assert submitted.spec == OpSpec(
        "all_reduce", "float32", "sum", (2, 3), algorithm="direct", deterministic=True
    )
    assert 6.5 < submitted.timeout_s <= 7
    assert submitted.recv_timeout_s == 1.5
    comm.all_reduce(torch.ones(2, 3))
    assert 299 < daemon.submitted[-1].timeout_s <= 300
    assert not daemon.submitted[-1].recv_timeout_s


def test_reduce_scatter_gives_this_ranks_part(comm: Communicator, daemon: StubDaemon) -> None:
    output = torch.zeros(2, 2)
    whole = torch.arange(12.0).reshape(3, 2, 2)
    assert comm.reduce_scatter(output, whole) is output
    assert output.tolist() == [[12, 15], [18, 21]]
    assert whole.equal(torch.arange(12.0).reshape(3, 2, 2))
    assert daemon.submitted[-1].spec == OpSpec("reduce_scatter", "float32", "sum", (2, 2))


def test_reduce_scatter_may_write_into_its_own_input(comm: Communicator) -> None:
    whole = torch.arange(12.0)
    comm.reduce_scatter(whole[4:8], whole, "max")
    assert whole.equal(torch.arange(12.0))


@pytest.mark.parametrize("shape", [(3, 2, 2), (6, 2), (12,)])
def test_all_gather_gives_all_parts_in_rank_order(
    comm: Communicator, daemon: StubDaemon, shape: tuple[int, ...]
) -> None:
    output = torch.full(shape, -1.0)
    part = torch.tensor([[10.0, 20.0], [30.0, 40.0]])
    assert comm.all_gather(output, part) is output
    expected = [0, 1, 2, 3, 10, 20, 30, 40, 200, 201, 202, 203]
    assert output.flatten().tolist() == expected
    assert daemon.submitted[-1].spec == OpSpec("all_gather", "float32", "", (2, 2))


def test_all_gather_from_its_own_place_in_the_output(comm: Communicator) -> None:
    output = torch.tensor([0.0, 0.0, 5.0, 6.0, 0.0, 0.0])
    comm.all_gather(output, output[2:4])
    assert output.tolist() == [0, 1, 5, 6, 200, 201]


def test_broadcast_from_another_rank_overwrites(comm: Communicator, daemon: StubDaemon) -> None:
    tensor = torch.full((2, 3), -1.0)
    assert comm.broadcast(tensor, 2) is tensor
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert daemon.submitted[-1].spec == OpSpec("broadcast", "float32", "", (2, 3), root=2)


def test_broadcast_from_this_rank_hands_over_the_data_and_keeps_it(
    comm: Communicator, daemon: StubDaemon
) -> None:
    seen: list[Any] = []
    daemon.script = lambda submitted: seen.append(daemon.region(submitted).tolist())
    bits = torch.tensor([-0.0, float("nan"), 1e-45])
    comm.broadcast(bits, 1)
    assert np.array(seen[0], np.float32).tobytes() == bits.numpy().tobytes()


def test_the_root_of_a_broadcast_may_be_read_only_or_expanded(comm: Communicator) -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    comm.broadcast(array, 1)
    comm.broadcast(torch.ones(1).expand(4), 1)


def test_barrier_has_no_data(comm: Communicator, daemon: StubDaemon) -> None:
    assert comm.barrier() is None
    submitted = daemon.submitted[-1]
    assert submitted.spec == OpSpec("barrier", "", "", ())
    assert (submitted.segment, submitted.offset) == (0, 0)


@pytest.mark.parametrize("shape", [(1, 0, 2), (0,)])
@pytest.mark.parametrize("library", [torch.zeros, np.zeros])
def test_empty_tensors_take_part_without_a_region(
    comm: Communicator, daemon: StubDaemon, shape: tuple[int, ...], library: Any
) -> None:
    empty = library(shape)
    comm.all_reduce(empty)
    comm.broadcast(empty, 0)
    comm.reduce_scatter(empty, library((3, *shape)))
    comm.all_gather(library((3, *shape)), empty)
    comm.barrier()
    assert [s.spec.shape for s in daemon.submitted] == [shape] * 4 + [()]
    assert {(s.segment, s.offset) for s in daemon.submitted} == {(0, 0)}
    tensor = library(3)
    tensor[:] = 1
    comm.all_reduce(tensor)
    assert tensor.tolist() == [3, 3, 3]


@pytest.mark.parametrize("scalar", [torch.tensor(2.0), np.array(2.0)])
def test_tensors_without_dimensions(comm: Communicator, daemon: StubDaemon, scalar: Any) -> None:
    comm.all_reduce(scalar)
    assert scalar.item() == 6
    assert daemon.submitted[-1].spec.shape == ()


@pytest.mark.parametrize("count", [1, 256, 16 << 10, 17 << 10, 1 << 20])
@pytest.mark.parametrize("library", [torch.arange, np.arange])
def test_sizes_from_four_bytes_to_eight_megabytes(
    comm: Communicator, count: int, library: Any
) -> None:
    tensor = library(count)
    comm.all_reduce(tensor)
    assert (tensor == library(count) * 3).all()


def test_libraries_may_be_mixed_within_a_call(comm: Communicator) -> None:
    output = np.zeros((3, 2), np.float32)
    comm.all_gather(output, torch.tensor([1.0, 2.0]))
    assert output.tolist() == [[0, 1], [1, 2], [200, 201]]


def test_a_failed_operation_leaves_the_tensor_untouched(
    comm: Communicator, daemon: StubDaemon
) -> None:
    from ringd.errors import CollectiveMismatchError

    daemon.script = lambda submitted: CollectiveMismatchError("shapes differ", seq=1)
    tensor, array = torch.arange(4.0), np.arange(4.0)
    strided = torch.arange(8.0)[::2]
    for value in (tensor, array, strided):
        before = list(value.tolist())
        with pytest.raises(CollectiveMismatchError, match="shapes differ"):
            comm.all_reduce(value)
        assert value.tolist() == before
    daemon.script = lambda submitted: None
    comm.all_reduce(tensor)
    assert tensor.tolist() == [0, 3, 6, 9]


def test_status_of_daemon_and_group(comm: Communicator) -> None:
    assert comm.status() == {"scope": "daemon", "rank": 1}
    assert comm.status("group", timeout_s=1) == {"scope": "group", "rank": 1}
