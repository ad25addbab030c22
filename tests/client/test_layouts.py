"""Any layout goes in and out in logical order; nothing but the viewed cells is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ringd_client import Communicator
from tests.client.stub_daemon import StubDaemon


def column(base: Any) -> Any:
    return base[:, 0]


def every_second(base: Any) -> Any:
    return base[::2, ::3]


def transposed(base: Any) -> Any:
    return base.T


LAYOUTS = [column, every_second, transposed]


@pytest.mark.parametrize("view_of", LAYOUTS)
@pytest.mark.parametrize(
    "make", [lambda: torch.arange(20.0).reshape(5, 4), lambda: np.arange(20.0).reshape(5, 4)]
)
def test_strided_views(
    comm: Communicator,
    daemon: StubDaemon,
    view_of: Callable[[Any], Any],
    make: Callable[[], Any],
) -> None:
    seen: list[Any] = []
    daemon.script = lambda submitted: seen.append(daemon.region(submitted).tolist())
    base, expected = make(), make()
    view = view_of(base)
    logical = [float(x) for row in view.tolist() for x in (row if isinstance(row, list) else [row])]
    comm.all_reduce(view)
    assert seen == [logical]
    expected_view = view_of(expected)
    expected_view[...] = expected_view * 3
    assert base.tolist() == expected.tolist()


def test_a_numpy_view_that_runs_backwards(comm: Communicator) -> None:
    base = np.arange(4.0)
    comm.all_reduce(base[::-1])
    assert base.tolist() == [0, 3, 6, 9]


def test_channels_last_travels_in_logical_order(comm: Communicator, daemon: StubDaemon) -> None:
    seen: list[Any] = []
    daemon.script = lambda submitted: seen.append(daemon.region(submitted).tolist())
    tensor = torch.arange(16.0).reshape(2, 2, 2, 2).to(memory_format=torch.channels_last)
    comm.all_reduce(tensor)
    assert seen == [list(range(16))]
    assert tensor.equal(torch.arange(16.0).reshape(2, 2, 2, 2) * 3)
    assert tensor.is_contiguous(memory_format=torch.channels_last)
    output = torch.empty(3, 2, 2, 2).to(memory_format=torch.channels_last)
    comm.all_gather(output, torch.arange(8.0).reshape(2, 2, 2))
    assert output[1].equal(torch.arange(8.0).reshape(2, 2, 2))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("guard", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("transpose", [False, True])
def test_leaf_parameters_are_written_past_autograd(
    comm: Communicator, guard: Any, asynchronous: bool, transpose: bool
) -> None:
    parameter = torch.nn.Parameter(torch.ones(3, 2))
    with guard():
        target = parameter.t() if transpose else parameter
        if asynchronous:
            comm.all_reduce_async(target).wait()
            comm.broadcast_async(target, 0).wait()
        else:
            comm.all_reduce(target)
            assert parameter.tolist() == [[3.0, 3.0]] * 3
            comm.broadcast(target, 0)
    expected = torch.arange(6.0).reshape(2, 3).t() if transpose else torch.arange(6.0).reshape(3, 2)
    assert parameter.detach().equal(expected)
    assert parameter.requires_grad
    assert parameter.is_leaf
    assert parameter.grad is None


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
def test_inference_tensors_inside_and_outside_of_their_mode(
    comm: Communicator, asynchronous: bool, transpose: bool
) -> None:
    with torch.inference_mode():
        tensor = torch.ones(2, 3)
    target = tensor.t() if transpose else tensor
    with torch.inference_mode():
        if asynchronous:
            comm.all_reduce_async(target).wait()
        else:
            comm.all_reduce(target)
    comm.all_reduce(target)
    assert tensor.tolist() == [[9.0] * 3] * 2
    assert tensor.is_inference()


def test_all_gather_in_inference_mode(comm: Communicator) -> None:
    parameter = torch.nn.Parameter(torch.tensor([[1.0, 2.0]]))
    with torch.inference_mode():
        output = torch.zeros(3, 2)
        comm.all_gather(output, parameter)
        comm.all_gather_async(output.t().contiguous().t(), parameter.t()).wait()
    assert output.tolist() == [[0, 1], [1, 2], [200, 201]]


def test_results_that_autograd_is_tracking_stay_as_they_are(comm: Communicator) -> None:
    weight = torch.ones(3, requires_grad=True)
    value = weight * 2
    comm.all_reduce(value)
    value.sum().backward()
    assert value.tolist() == [6, 6, 6]
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2, 2]


def test_a_lazily_negated_view_is_read_as_its_values(comm: Communicator) -> None:
    negated = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
    assert negated.is_neg()
    output = torch.zeros(3, 2)
    comm.all_gather(output, negated)
    assert output[1].tolist() == [-2, -4]


def test_inputs_may_be_read_only_expanded_or_leaves_of_autograd(comm: Communicator) -> None:
    fixed = np.arange(6.0).reshape(3, 2)
    fixed.flags.writeable = False
    leaf = torch.arange(6.0, dtype=torch.float64).reshape(3, 2).requires_grad_()
    expanded = torch.ones(1, 2, dtype=torch.float64).expand(3, 2)
    for tensor in (fixed, leaf, expanded):
        row = tensor[1].tolist()
        comm.reduce(tensor, 0)
        comm.gather(None, tensor, 2)
        comm.send(tensor, 0)
        mine = np.zeros(2)
        comm.scatter(mine, tensor, 1)
        assert mine.tolist() == row
        output = torch.zeros(3, 2, dtype=torch.float64)
        comm.all_to_all(output, tensor)
        assert output.tolist() == [[0, 1], row, [200, 201]]
        comm.reduce_scatter(mine, tensor)
        assert mine.tolist() == [3 * x for x in row]
    assert fixed.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert leaf.grad is None


@pytest.mark.parametrize("guard", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_new_outputs_are_written_past_autograd(comm: Communicator, guard: Any) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    with guard():
        comm.recv(parameter.t(), 0)
        assert parameter.tolist() == [[0, 2, 4], [1, 3, 5]]
        comm.all_gather([torch.zeros(3), *[parameter[r] for r in range(2)]], torch.ones(3))
    assert parameter.tolist() == [[1, 1, 1], [200, 201, 202]]
    assert parameter.requires_grad
    assert parameter.is_leaf
    assert parameter.grad is None
