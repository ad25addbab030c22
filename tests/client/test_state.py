"""sync_state: every rank gets rank 0's state, whatever it is made of and whatever it had before."""

from __future__ import annotations

import copy
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ringd_client
from ringd.errors import (
    ArenaFullError,
    CollectiveMismatchError,
    InvalidArgumentError,
    MemoryInUseError,
    RingdError,
    UnsupportedTypeError,
)
from ringd_client import AsyncCommunicator, Communicator
from ringd_client import _state as states
from ringd_client._operation import Operation
from tests.client.stub_cluster import Cluster
from tests.client.stub_daemon import StubDaemon

NewCluster = Callable[[int], Cluster]
Point = namedtuple("Point", "x y")


def equal(a: Any, b: Any) -> bool:
    """Same types, same order, same bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, torch.Tensor):
        bits = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return bool(a == b)


def everything() -> Any:
    """Each sort of thing that a state may hold."""
    chance = torch.Generator().manual_seed(3)
    return {
        "none": None, "yes": True, "no": False, "count": -(2**63), "most": 2**64 - 1,
        "rate": 0.1, "name": "Åß∂", "raw": b"\x00\xff",
        3: [1, [2, (3, ())], {}],
        None: (0.9, 0.999), 1.5: "float key", b"k": "bytes key", True: "bool key",
        "ordered": OrderedDict(b=1, a=torch.arange(3)),
        "large": torch.rand(300, 401, generator=chance),
        "transposed": torch.rand(401, 300, generator=chance).t(),
        "small": [torch.rand(7, generator=chance) for _ in range(5)],
        "bf16": torch.rand(33, generator=chance).bfloat16(),
        "float8": torch.rand(5, generator=chance).to(torch.float8_e5m2),
        "scalar": torch.tensor(3.25),
        "empty": torch.empty(0, 4),
        "bools": torch.tensor([True, False]),
        "parameter": nn.Parameter(torch.rand(3, generator=chance)),
        "array": np.arange(70_000.0).reshape(100, 700),
        "reversed": np.arange(30)[::-3],
        "complex": np.array([1 + 2j]),
        "zero": np.zeros((), np.int16),
        "numpy scalar": np.float64(0.3),
    }  # fmt: skip


def sent() -> Any:
    """The same as it arrives: a parameter is a tensor."""
    state = everything()
    return {**state, "parameter": state["parameter"].detach()}


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_every_rank_gets_what_rank_0_has(new_cluster: NewCluster, n: int) -> None:
    def program(comm: Communicator) -> Any:
        ours = everything() if comm.rank == 0 else None
        got = comm.sync_state(ours)
        assert (got is ours) == (comm.rank == 0)
        return got

    first, *others = new_cluster(n).run(program)
    assert equal(first, everything())
    assert all(equal(got, sent()) for got in others)


def test_the_asyncio_twin_does_the_same(new_cluster: NewCluster) -> None:
    import asyncio

    async def program(comm: AsyncCommunicator) -> Any:
        return await comm.sync_state(everything() if comm.rank == 0 else ["other"])

    _, *others = asyncio.run(new_cluster(3).run_async(program))
    assert all(equal(got, sent()) for got in others)


def test_large_tensors_travel_in_pieces_and_small_ones_together(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "SMALL_BYTES", 64)
    monkeypatch.setattr(states, "JOINT_BYTES", 100)
    monkeypatch.setattr(states, "PIECE_BYTES", 512)
    cluster = new_cluster(2)
    small = {f"s{i}": torch.arange(10.0) + i for i in range(5)}  # 40 bytes each: two fit
    other = {f"i{i}": torch.arange(3) + i for i in range(2)}
    state = {**small, "large": torch.arange(300.0).reshape(2, 150).t(), **other}

    def program(comm: Communicator) -> Any:
        return comm.sync_state(state if comm.rank == 0 else {})

    _, got = cluster.run(program)
    assert equal(got, state)
    made = [s for s in cluster.performed if s.collective == "broadcast"]
    assert [(s.dtype, s.count, len(s.fused)) for s in made] == [
        ("float32", 20, 2), ("float32", 20, 2), ("float32", 128, 0), ("float32", 128, 0),
        ("float32", 44, 0), ("float32", 10, 0), ("int64", 6, 2),
    ]  # fmt: skip


def adam(seed: int, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 300), nn.BatchNorm1d(300), nn.Linear(300, 3)).bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (seed + 1))
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 8).bfloat16()).square().sum().backward()
        optimizer.step()
    return model, optimizer


def test_a_newcomer_goes_on_with_the_model_and_the_optimizer_of_the_others(
    new_cluster: NewCluster,
) -> None:
    def program(comm: Communicator) -> Any:
        model, optimizer = adam(comm.rank, steps=3 if comm.rank < 2 else 0)
        assert bool(optimizer.state_dict()["state"]) == (comm.rank < 2)
        weights = [p.data_ptr() for p in model.parameters()]
        model.load_state_dict(comm.sync_state(model.state_dict()))
        optimizer.load_state_dict(comm.sync_state(optimizer.state_dict()))
        assert [p.data_ptr() for p in model.parameters()] == weights
        optimizer.zero_grad()
        model(torch.ones(5, 8).bfloat16()).square().sum().backward()
        optimizer.step()
        return copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    first, *others = new_cluster(3).run(program)
    assert [list(first[1]["state"])] == [list(other[1]["state"]) for other in others[:1]]
    assert all(equal(first, other) for other in others)


def test_a_local_tensor_is_filled_where_that_harms_nothing(new_cluster: NewCluster) -> None:
    def state() -> dict[str, Any]:
        return {
            "alike": torch.arange(6.0).reshape(2, 3),
            "array": np.arange(40_000),
            "dtype": torch.arange(4),
            "shape": torch.arange(4),
            "library": torch.arange(4),
            "read-only": np.arange(4),
            "gaps": torch.arange(4.0),
            "twice": torch.tensor([1.0, 2.0]),
            "twice more": torch.tensor([3.0, 4.0]),
            "nested": ([torch.arange(2)],),
        }

    def program(comm: Communicator) -> Any:
        if comm.rank == 0:
            return comm.sync_state(state())
        shared = torch.zeros(3)
        frozen = np.zeros(4, np.int64)
        frozen.flags.writeable = False
        local = {
            "alike": torch.zeros(2, 3),
            "array": np.zeros(40_000, np.int64),
            "dtype": torch.zeros(4),
            "shape": torch.zeros(2, 2, dtype=torch.int64),
            "library": np.zeros(4, np.int64),
            "read-only": frozen,
            "gaps": torch.zeros(8)[::2],
            "twice": shared[:2],
            "twice more": shared[1:],
            "nested": ([torch.zeros(2, dtype=torch.int64)],),
            "unknown": object(),
        }
        got = comm.sync_state(local)
        kept = [key for key in got if got[key] is local[key]]
        assert kept == ["alike", "array", "twice"]
        assert got["nested"][0][0] is local["nested"][0][0]
        assert not frozen.any()
        return got

    _, got = new_cluster(2).run(program)
    assert equal(got, state())


def test_tensors_of_shared_memory_are_filled_without_a_copy(new_cluster: NewCluster) -> None:
    def program(comm: Communicator) -> Any:
        weights = comm.empty((300, 300))
        weights.fill_(7 if comm.rank == 0 else 0)
        got = comm.sync_state({"w": weights})
        assert got["w"] is weights
        return weights.clone()

    assert all((w == 7).all() for w in new_cluster(3).run(program))


class Opaque:
    """What no other rank could make."""


def cyclic() -> list[Any]:
    state: list[Any] = []
    state.append(state)
    return state


class Broken(dict[Any, Any]):
    """A dict of somebody else's, which raises when it is read."""

    def items(self) -> Any:
        raise ZeroDivisionError("not today")


def test_a_state_that_raises_when_it_is_read_raises_on_every_rank(new_cluster: NewCluster) -> None:
    def program(comm: Communicator) -> tuple[str, Any]:
        rank = comm.rank
        with pytest.raises(UnsupportedTypeError, match="ZeroDivisionError") as caught:
            comm.sync_state(Broken(a=1) if rank == 0 else {"a": rank})
        return str(caught.value), comm.sync_state({"step": rank + 7})

    for text, state in new_cluster(3).run(program):
        assert "the state can't be read" in text
        assert state == {"step": 7}, "the next call is in step"


def test_what_is_local_and_raises_when_it_is_read_only_gets_no_memory_filled(
    new_cluster: NewCluster,
) -> None:
    def program(comm: Communicator) -> Any:
        return comm.sync_state({"a": np.arange(3)} if comm.rank == 0 else Broken(a=np.zeros(3)))

    for state in new_cluster(2).run(program):
        np.testing.assert_array_equal(state["a"], np.arange(3))


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"a": [1, Opaque()]}, "state['a'][1]"),
        ({"a": {"b": 2**64}}, "state['a']['b']"),
        ({(1, 2): 3}, "state[(1, 2)]"),
        ({"p": Point(1, 2)}, "state['p']"),
        ({"t": "\ud800"}, "state['t']"),
        ({"s": {1, 2}}, "state['s']"),
        ({"z": 1j}, "state['z']"),
        ({3: torch.empty(2, device="meta")}, "state[3]"),
        ([torch.eye(3).to_sparse()], "state[0]"),
        ([np.array(["text"])], "state[0]"),
        (cyclic(), "state" + "[0]" * 101),
    ],
)
def test_what_can_t_be_carried_raises_on_every_rank_with_its_path(
    new_cluster: NewCluster, state: Any, path: str
) -> None:
    def program(comm: Communicator) -> Any:
        with pytest.raises(UnsupportedTypeError) as caught:
            comm.sync_state(state if comm.rank == 0 else {})
        after = comm.sync_state({"x": torch.ones(2) * comm.rank})
        assert (after["x"] == 0).all()
        return caught.value.fields["path"], str(caught.value)

    for told, text in new_cluster(3).run(program):
        assert told == path
        assert text.startswith(f"{path} can't be carried: ")


def test_what_other_ranks_pass_may_be_anything(new_cluster: NewCluster) -> None:
    def program(comm: Communicator) -> Any:
        ours = {"w": torch.arange(5)} if comm.rank == 0 else {"w": Opaque(), 2**70: Point(1, 2)}
        return comm.sync_state(ours)

    assert all(equal(got, {"w": torch.arange(5)}) for got in new_cluster(3).run(program))


def test_a_rank_that_has_no_room_is_told_and_so_are_the_others(new_cluster: NewCluster) -> None:
    def program(comm: Communicator) -> Any:
        if comm.rank == 1:
            comm._arena.limit_bytes = 1 << 20
        state = {"w": torch.ones(1 << 20)}
        with pytest.raises(RingdError) as caught:
            comm.sync_state(state if comm.rank == 0 else {})
        return type(caught.value)

    kinds = new_cluster(3).run(program)
    assert kinds == [CollectiveMismatchError, ArenaFullError, CollectiveMismatchError]


def test_a_rank_whose_tensor_the_daemon_may_still_write_is_told_and_so_are_the_others(
    new_cluster: NewCluster,
) -> None:
    def program(comm: Communicator) -> Any:
        tensor = torch.ones(1 << 15)
        if comm.rank == 1:
            earlier: Operation[Any] = Operation("an earlier call", b"")
            earlier.in_place = True
            comm._arena.lingering.lend(None, tensor, earlier)
        with pytest.raises(RingdError) as caught:
            comm.sync_state({"w": tensor})
        comm._arena.lingering.clear()
        return type(caught.value)

    kinds = new_cluster(3).run(program)
    assert kinds == [CollectiveMismatchError, MemoryInUseError, CollectiveMismatchError]


def test_a_group_has_a_rank_0_of_its_own(new_cluster: NewCluster) -> None:
    def program(comm: Communicator) -> Any:
        group = comm.new_group([1, 2])
        if group is None:
            return None
        with group:
            return group.sync_state([torch.full((2,), comm.rank)])

    none, *got = new_cluster(3).run(program)
    assert none is None
    assert all(equal(state, [torch.tensor([1, 1])]) for state in got)


def test_it_is_no_call_for_a_coalesce_block(comm: Communicator) -> None:
    with pytest.raises(InvalidArgumentError, match="sync_state can't be called"), comm.coalesce():
        comm.sync_state({})


def test_all_of_it_has_one_deadline(start_daemon: Callable[..., StubDaemon]) -> None:
    daemon = start_daemon(rank=0)
    with ringd_client.connect(socket=daemon.path, timeout_s=5) as comm:
        comm.sync_state([torch.ones(2), torch.ones(2, dtype=torch.int8)], timeout_s=7)
    assert len(daemon.submitted) == 3
    assert {call.bound[0] for call in daemon.submitted} == {7.0}
    assert len({call.timeout_s for call in daemon.submitted}) == len(daemon.submitted)
