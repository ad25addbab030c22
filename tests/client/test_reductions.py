"""Reduce ops: their names reach the daemon, and premul_sum multiplies first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ringd_client
from ringd.errors import CollectiveMismatchError, InvalidArgumentError
from ringd.vocabulary import DTYPES, REDUCE_OPS, OpSpec, reductions
from ringd_client import Communicator, PremulSum, premul_sum
from tests.client.stub_cluster import Cluster
from tests.client.stub_daemon import StubDaemon

PAIRS = [(dtype, op) for dtype in DTYPES for op in REDUCE_OPS]


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_a_pair_is_posted_or_refused_as_the_table_says(
    comm: Communicator, daemon: StubDaemon, dtype: str, op: str
) -> None:
    tensor = torch.tensor([1, 0, 1]).to(getattr(torch, dtype))
    factor = 1 if DTYPES[dtype].kind in ("int", "bool") else 1.0
    argument = premul_sum(factor) if op == "premul_sum" else op
    if op in reductions(dtype):
        comm.all_reduce(tensor, argument)
        comm.reduce(tensor, 0, argument)
        comm.reduce_scatter(tensor[:1].clone(), tensor, argument)
        assert {s.spec.reduce_op for s in daemon.submitted} == {op}
        return
    for call in (
        lambda: comm.all_reduce(tensor, argument),
        lambda: comm.reduce(tensor, 1, argument),
        lambda: comm.reduce_scatter(tensor[:1], tensor, argument),
    ):
        with pytest.raises(ringd_client.UnsupportedReductionError) as caught:
            call()
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, ValueError)
    comm.barrier()
    assert [spec.collective for spec, _ in daemon.poisons] == [
        "all_reduce",
        "reduce",
        "reduce_scatter",
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("factor", [0.3, -2, np.float32(0.1)])
def test_the_product_is_that_of_torch_rounded_once(
    comm: Communicator, daemon: StubDaemon, dtype: str, factor: Any
) -> None:
    seen: list[bytes] = []
    daemon.script = lambda submitted: seen.append(daemon.region(submitted).tobytes())
    tensor = (torch.arange(1000) / 7).to(getattr(torch, dtype))
    expected = tensor * float(factor)
    comm.all_reduce(tensor.clone(), premul_sum(factor))
    comm.reduce_scatter(
        tensor[:1].clone(), [tensor[:1], tensor[1:2], tensor[2:3]], premul_sum(factor)
    )
    assert seen[0] == expected.view(torch.uint8).numpy().tobytes()
    assert seen[1] == expected[:3].view(torch.uint8).numpy().tobytes()


def test_numpy_multiplies_16_bit_floats_in_float32(comm: Communicator, daemon: StubDaemon) -> None:
    seen: list[Any] = []
    daemon.script = lambda submitted: seen.append(daemon.region(submitted).copy())
    array = (np.arange(100) / 7).astype(np.float16)
    comm.all_reduce(array.copy(), premul_sum(0.3))
    assert (seen[0] == (array.astype(np.float32) * np.float32(0.3)).astype(np.float16)).all()


def test_integers_wrap_and_complex_numbers_turn(comm: Communicator, daemon: StubDaemon) -> None:
    seen: list[Any] = []
    daemon.script = lambda submitted: seen.append(daemon.region(submitted).tolist())
    for tensor in (torch.tensor([100, -3], dtype=torch.int8), np.array([100, -3], np.int8)):
        comm.all_reduce(tensor, premul_sum(2))
    comm.all_reduce(torch.tensor([1 + 2j]), premul_sum(1j))
    comm.all_reduce(np.array([1 + 2j]), premul_sum(0.5))
    assert seen == [[-56, -6], [-56, -6], [-2 + 1j], [0.5 + 1j]]


def test_in_shared_memory_too_the_product_is_made_elsewhere(
    comm: Communicator, daemon: StubDaemon
) -> None:
    tensor = comm.empty(3)
    tensor.copy_(torch.tensor([1.0, 2.0, 4.0]))
    daemon.script = lambda s: CollectiveMismatchError("differs")
    with pytest.raises(CollectiveMismatchError):
        comm.all_reduce(tensor, premul_sum(0.5))
    assert tensor.tolist() == [1, 2, 4]
    daemon.script = lambda s: None
    comm.all_reduce(tensor, premul_sum(0.5))
    assert tensor.tolist() == [1.5, 3, 6]
    assert comm._arena.used_bytes == comm._arena.lent_bytes
    comm.reduce(tensor, 0, premul_sum(2.0))
    assert tensor.tolist() == [1.5, 3, 6]


def test_ranks_may_give_different_factors(new_cluster: Callable[[int], Cluster]) -> None:
    def program(comm: Communicator) -> list[float]:
        tensor = torch.tensor([1.0, 10.0]) + comm.rank
        comm.all_reduce(tensor, premul_sum(comm.rank + 1))
        return tensor.tolist()

    cluster = new_cluster(3)
    expected = [1 * 1 + 2 * 2 + 3 * 3, 10 * 1 + 11 * 2 + 12 * 3]
    assert cluster.run(program) == [expected] * 3
    assert cluster.performed == [OpSpec("all_reduce", "float32", "premul_sum", (2,))]


@pytest.mark.parametrize("factor", ["2", None, True, [1], torch.ones(1)])
def test_a_factor_is_a_number(factor: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is a number"):
        premul_sum(factor)


def test_a_factor_is_kept_as_pythons_own_number() -> None:
    assert premul_sum(np.int8(3)) == PremulSum(3)
    assert type(premul_sum(np.float32(0.5)).factor) is float
    assert premul_sum(np.complex64(1j)).factor == 1j


def test_a_factor_too_large_for_a_float_is_refused(comm: Communicator) -> None:
    with pytest.raises(InvalidArgumentError, match="too large"):
        comm.all_reduce(torch.ones(2), premul_sum(10**400))
    assert comm.all_reduce(torch.ones(2), premul_sum(2)).tolist() == [6, 6]


def test_another_factor_is_the_same_kind_of_call(comm: Communicator) -> None:
    tensor = torch.zeros(2)
    for n in range(100):
        comm.all_reduce(tensor, premul_sum(n / 7))
    assert len(comm._planner.kinds._kept) == 1
