"""Equal and uneven parts, in one tensor or in lists: what is asked, and what arrives where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ringd.vocabulary import OpSpec
from ringd_client import Communicator
from tests.client.stub_cluster import Cluster
from tests.client.stub_daemon import StubDaemon


def part_of(rank: int, rows: int) -> torch.Tensor:
    """Rows of two elements that differ by rank and position."""
    return torch.arange(rows * 2, dtype=torch.float64).reshape(rows, 2) + 100 * rank


def uneven(n: int) -> list[int]:
    """Rows of each rank; one rank has none."""
    return [(3 * rank + 2) % (n + 2) if rank != 1 else 0 for rank in range(n)]


def column_major(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.t().contiguous().t()


SIZES = [1, 2, 3, 5]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("rows_of", [uneven, lambda n: [2] * n])
@pytest.mark.parametrize("listed", [False, True])
def test_gathering_and_scattering_parts(
    new_cluster: Callable[[int], Cluster], n: int, rows_of: Callable[[int], list[int]], listed: bool
) -> None:
    rows = rows_of(n)
    parts = [part_of(rank, rows[rank]) for rank in range(n)]
    whole = torch.cat(parts)
    root = n - 1

    def holder() -> Any:
        if listed:
            return [column_major(torch.zeros_like(part)) for part in parts]
        return column_major(torch.zeros_like(whole))

    def check(held: Any) -> None:
        assert (torch.cat(held) if listed else held).equal(whole)

    def program(comm: Communicator) -> None:
        mine = column_major(parts[comm.rank])
        counts = None if listed else rows
        output = holder()
        assert comm.all_gather(output, mine, counts=counts) is output
        check(output)
        output = holder() if comm.rank == root else None
        assert comm.gather(output, mine, root, counts=rows) is output
        if output is not None:
            check(output)
        got = torch.zeros_like(mine)
        source = ([p.clone() for p in parts] if listed else whole) if comm.rank == root else None
        assert comm.scatter(got, source, root, counts=rows) is got
        assert got.equal(mine)
        given = [p * (comm.rank + 1) for p in parts] if listed else whole * (comm.rank + 1)
        assert comm.reduce_scatter(got, given, counts=counts) is got
        assert got.equal(mine * (n * (n + 1) // 2))

    cluster = new_cluster(n)
    cluster.run(program)
    shapes = {(spec.shape, spec.counts) for spec in cluster.performed}
    even = len(set(rows)) == 1
    assert shapes == {((rows[0], 2), ()) if even else ((2,), tuple(rows))}
    assert len(cluster.performed) == 4


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("listed", [False, True])
def test_all_to_all_with_uneven_splits(
    new_cluster: Callable[[int], Cluster], n: int, listed: bool
) -> None:
    def rows(source: int, target: int) -> int:
        return (2 * source + target) % 3

    def block(source: int, target: int) -> torch.Tensor:
        return part_of(10 * source + target, rows(source, target))

    def program(comm: Communicator) -> None:
        r = comm.rank
        sent = [block(r, peer) for peer in range(n)]
        expected = torch.cat([block(peer, r) for peer in range(n)])
        if listed:
            got = [torch.zeros(rows(peer, r), 2, dtype=torch.float64) for peer in range(n)]
            comm.all_to_all(got, sent)
            assert torch.cat(got).equal(expected)
            return
        output = torch.zeros_like(expected)
        comm.all_to_all(
            output,
            torch.cat(sent),
            output_splits=[rows(peer, r) for peer in range(n)],
            input_splits=[rows(r, peer) for peer in range(n)],
        )
        assert output.equal(expected)

    cluster = new_cluster(n)
    cluster.run(program)
    assert cluster.performed == [OpSpec("all_to_all", "float64", "", () if listed else (2,))]


@pytest.mark.parametrize("n", SIZES)
def test_all_to_all_of_lists_needs_no_shapes_in_common(
    new_cluster: Callable[[int], Cluster], n: int
) -> None:
    def block(source: int, target: int) -> torch.Tensor:
        shape = (3, 2) if source == target else (source + target, 4)
        return torch.full(shape, 10.0 * source + target)

    def program(comm: Communicator) -> None:
        r = comm.rank
        expected = [block(peer, r) for peer in range(n)]
        got = [torch.zeros_like(block) for block in expected]
        comm.all_to_all(got, [block(r, peer) for peer in range(n)])
        assert all(g.equal(e) for g, e in zip(got, expected, strict=True))

    cluster = new_cluster(n)
    cluster.run(program)
    assert cluster.performed == [OpSpec("all_to_all", "float32", "", ())]


def test_all_to_all_in_equal_rows_may_share_memory(new_cluster: Callable[[int], Cluster]) -> None:
    def program(comm: Communicator) -> list[float]:
        tensor = torch.arange(6.0).reshape(6, 1) + 100 * comm.rank
        comm.all_to_all(tensor, tensor)
        return tensor.flatten().tolist()

    assert new_cluster(3).run(program) == [
        [0, 1, 100, 101, 200, 201],
        [2, 3, 102, 103, 202, 203],
        [4, 5, 104, 105, 204, 205],
    ]


def test_lists_without_a_common_row_shape_are_counted_in_elements(
    comm: Communicator, daemon: StubDaemon
) -> None:
    sent = [torch.ones(1, 2), torch.arange(3.0), torch.tensor(7.0)]
    got = [torch.zeros(2), torch.zeros(3), torch.zeros(1, 1)]
    comm.all_to_all(got, sent)
    submitted = daemon.submitted[-1]
    assert submitted.spec == OpSpec("all_to_all", "float32", "", ())
    assert submitted.local == [2, 3, 1, 2, 3, 1]
    assert [t.tolist() for t in got] == [[0, 1], [0, 1, 2], [[200]]]


def test_the_splits_are_told_beside_the_fingerprint(comm: Communicator, daemon: StubDaemon) -> None:
    output, tensor = torch.zeros(4, 3), torch.arange(9.0).reshape(3, 3)
    comm.all_to_all(output, tensor, output_splits=(1, 1, 2))
    submitted = daemon.submitted[-1]
    assert submitted.spec == OpSpec("all_to_all", "float32", "", (3,))
    assert submitted.local == [1, 1, 1, 1, 1, 2]
    assert output.tolist() == [[0, 1, 2], [3, 4, 5], [200, 201, 202], [203, 204, 205]]
    comm.barrier()
    assert daemon.submitted[-1].local is None


def test_equal_counts_are_the_same_call_as_none(comm: Communicator, daemon: StubDaemon) -> None:
    part = torch.ones(2, 5)
    for counts in (None, [2, 2, 2], np.array([2, 2, 2])):
        comm.all_gather(torch.zeros(6, 5), part, counts=counts)
    comm.all_gather([torch.zeros(2, 5)] * 3, part)
    assert {s.spec for s in daemon.submitted} == {OpSpec("all_gather", "float32", "", (2, 5))}


def test_uneven_parts_of_a_list_give_the_rows_of_each_rank(
    comm: Communicator, daemon: StubDaemon
) -> None:
    output = [torch.zeros(5), torch.zeros(0), torch.zeros(3)]
    comm.all_gather(output, torch.zeros(0))
    assert daemon.submitted[-1].spec == OpSpec("all_gather", "float32", "", (), counts=(5, 0, 3))
    assert [t.tolist() for t in output] == [[0, 1, 2, 3, 4], [], [200, 201, 202]]
    comm.all_gather(torch.zeros(8, 2), torch.ones(4, 2), counts=[1, 4, 3])
    assert daemon.submitted[-1].spec == OpSpec("all_gather", "float32", "", (2,), counts=(1, 4, 3))


def test_a_list_is_kept_as_it_was_when_the_call_began(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda submitted: "hold"
    first = torch.zeros(2)
    output = [first, torch.zeros(2), torch.zeros(2)]
    handle = comm.all_gather_async(output, torch.ones(2))
    output[0] = torch.full((2,), -1.0)
    while not daemon.held:
        comm.status()
    daemon.release()
    assert handle.wait() is output
    assert first.tolist() == [0, 1]
    assert output[0].tolist() == [-1, -1]


def test_libraries_and_layouts_may_be_mixed_in_a_list(comm: Communicator) -> None:
    strided = torch.zeros(2, 2).t()
    output = [np.zeros((2, 2), np.float32), strided, torch.zeros(4)]
    comm.all_gather(output, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert output[0].tolist() == [[0, 1], [2, 3]]
    assert strided.tolist() == [[1, 2], [3, 4]]
    assert output[2].tolist() == [200, 201, 202, 203]


@pytest.mark.parametrize("root", [0, 1])
def test_reduce_changes_the_tensor_of_the_root_only(
    comm: Communicator, daemon: StubDaemon, root: int
) -> None:
    for tensor in (torch.arange(4.0), comm.empty(4).copy_(torch.arange(4.0)), np.arange(4.0)):
        comm.reduce(tensor, root)
        assert tensor.tolist() == ([0, 3, 6, 9] if root == 1 else [0, 1, 2, 3])
        assert daemon.submitted[-1].spec.root == root
    if root == 0:
        comm.reduce(torch.ones(1).expand(3), root)  # it is only read


def test_tensors_in_the_arena_are_the_region_where_they_can_be(
    comm: Communicator, daemon: StubDaemon
) -> None:
    part, whole = comm.empty(4), comm.empty(12)
    part.copy_(torch.arange(4.0))
    whole.copy_(torch.arange(12.0))

    def places() -> list[int]:
        return [s.offset for s in daemon.submitted[-4:]]

    comm.gather(None, part, 0)  # only sent
    comm.scatter(part, None, 0)
    comm.gather(whole, torch.ones(4), 1)
    comm.scatter(torch.zeros(4), whole, 1)
    at = {t: comm._arena.find(t.data_ptr(), t.nbytes) for t in (part, whole)}
    assert all(place is not None for place in at.values())
    offset = {t: place[1] for t, place in at.items() if place}
    assert places() == [offset[part], offset[part], offset[whole], offset[whole]]
    assert part.tolist() == [0, 1, 2, 3]
    assert whole.tolist() == [0, 1, 2, 3, 1, 1, 1, 1, 200, 201, 202, 203]
    comm.reduce(part, 0)  # partial sums would be written to it
    assert places()[-1] != offset[part]
    comm.gather(whole, part, 1, preserve_input=True)
    assert places()[-1] != offset[whole]


def test_a_scatter_from_the_arena_writes_its_own_part(comm: Communicator) -> None:
    whole, mine = comm.empty(6), torch.zeros(2)
    whole.copy_(torch.arange(6.0))
    comm.scatter(mine, whole, 1)
    assert mine.tolist() == [2, 3]
    assert comm._arena.used_bytes == comm._arena.lent_bytes


def test_lazy_views_are_resolved_when_they_are_read(comm: Communicator, daemon: StubDaemon) -> None:
    seen: list[Any] = []
    daemon.script = lambda submitted: seen.append(daemon.region(submitted).tolist())
    tensor = comm.empty(2, "complex64")
    tensor.copy_(torch.tensor([1 + 2j, 3 - 4j]))
    for view in (tensor.conj(), torch.tensor([1 + 2j, 3 - 4j]).conj()):
        assert view.is_conj()
        comm.broadcast(view, 1)
        comm.send(view, 0)
    assert seen == [[1 - 2j, 3 + 4j]] * 4
    comm.broadcast(tensor.conj().imag, 1)
    assert seen[-1] == [-2, 4]
