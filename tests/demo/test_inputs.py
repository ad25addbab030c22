"""What ranks put in depends on rank and position, and can be computed anywhere."""

from __future__ import annotations

import msgpack
import pytest
import torch

from ringd.demo.cases import Case
from ringd.demo.workers import definition, inputs, reference
from ringd.vocabulary import DTYPES, REDUCE_OPS, reductions


def case(dtype: str, op: str = "sum", collective: str = "all_reduce", count: int = 999) -> Case:
    return Case(collective, dtype, op, "ring", count)


def put_in(case: Case, n: int = 4) -> list[torch.Tensor]:
    return [inputs.contribution(case, rank, n) for rank in range(n)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_inputs_depend_on_rank_and_position_and_can_be_computed_anywhere(
    dtype: str, op: str
) -> None:
    ours = inputs.contribution(case(dtype, op), 1, 4)
    assert ours.dtype is getattr(torch, dtype)
    assert reference.bits(ours) == reference.bits(inputs.contribution(case(dtype, op), 1, 4))
    assert reference.bits(ours) != reference.bits(inputs.contribution(case(dtype, op), 2, 4))
    assert len(set(ours.to(torch.complex128).tolist())) > (1 if dtype == "bool" else 3)


def test_groups_put_in_different_data() -> None:
    ours, theirs = (inputs.contribution(case("float32"), 1, 2, salt=salt) for salt in (0, 1))
    assert not torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [name for name, d in DTYPES.items() if d.is_float])
@pytest.mark.parametrize("op", [op for op in REDUCE_OPS if op in reductions("float32")])
def test_no_reduction_of_the_inputs_leaves_the_range_of_its_dtype(dtype: str, op: str) -> None:
    result = definition.left_fold(case(dtype, op), put_in(case(dtype, op)))
    assert torch.isfinite(result).all()
    assert (result != 0).any()


def test_integer_sums_fit_and_no_double_could_hold_them() -> None:
    columns = zip(*(x.tolist() for x in put_in(case("int64"))), strict=True)
    exact = [sum(values) for values in columns]
    assert max(map(abs, exact)) < 2**63
    assert any(int(float(value)) != value for value in exact)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_sums_of_narrow_integers_wrap(dtype: str) -> None:
    wide = sum(x.to(torch.int64) for x in put_in(case(dtype)))
    assert isinstance(wide, torch.Tensor)
    limits = torch.iinfo(getattr(torch, dtype))
    assert ((wide < limits.min) | (wide > limits.max)).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_differ_between_ranks_and_are_exact(dtype: str) -> None:
    factors = [inputs.factor(case(dtype), rank) for rank in range(4)]
    assert len(set(factors)) == 4
    if "premul_sum" in reductions(dtype):
        assert torch.tensor(factors, dtype=getattr(torch, dtype)).tolist() == factors


@pytest.mark.parametrize("size_bytes", [100, 100_000])
def test_objects_have_their_size_and_survive_msgpack(size_bytes: int) -> None:
    things = [inputs.thing(size_bytes, rank) for rank in range(4)]
    packed = [msgpack.packb(thing) for thing in things]
    assert [msgpack.unpackb(data, strict_map_key=False) for data in packed] == things
    assert len(set(packed)) == 4
    assert all(size_bytes * 0.9 <= len(data) <= size_bytes + 60 for data in packed)
