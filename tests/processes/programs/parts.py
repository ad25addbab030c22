"""Uneven and empty parts, lists of tensors, and tensors of every memory layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.processes.programs.definition import ALGORITHMS
from tests.processes.trainer import Stage

WIDTH = 2


class Findings:
    """Compares what came with what should have come."""

    def __init__(self) -> None:
        self.made = 0
        self.wrong: list[str] = []

    def hold(self, what: str, got: Any, wanted: Any) -> None:
        """Note it if two arrays, or lists of arrays, differ in a shape or a value."""
        self.made += 1
        pairs = list(zip(got, wanted, strict=True)) if isinstance(wanted, list) else [(got, wanted)]
        if not all(g.shape == w.shape and np.array_equal(g, w) for g, w in pairs):
            self.wrong.append(f"{what}: {got} instead of {wanted}")

    @property
    def told(self) -> dict[str, Any]:
        return {"made": self.made, "wrong": self.wrong[:20]}


def rows(rank: int, count: int) -> Any:
    """Rows that no other rank has; row k of one length is row k of all."""
    return (np.arange(count * WIDTH).reshape(count, WIDTH) * 10 + rank).astype(np.int32)


def blank(count: int) -> Any:
    """Rows that no rank has."""
    return np.full((count, WIDTH), -1, np.int32)


def uneven(stage: Stage) -> dict[str, Any]:
    """Parts of several sizes through every collective and algorithm that has parts."""
    comm = stage.comm
    n, findings = comm.world_size, Findings()
    for counts in (
        [(rank * 3 + 2) % 4 for rank in range(n)],
        [0] * (n - 1) + [5],
        [3] + [0] * (n - 1),
        [0] * n,
        [2] * n,
    ):
        for algorithm in ALGORITHMS["all_gather"]:
            _gathered(comm, counts, algorithm, findings)
            _reduced(comm, counts, algorithm, findings)
        for algorithm in ALGORITHMS["gather"]:
            _rooted(comm, counts, algorithm, findings)
    for algorithm in ALGORITHMS["all_to_all"]:
        _exchanged(comm, algorithm, findings)
    return findings.told


def _gathered(comm: Any, counts: list[int], algorithm: str, findings: Findings) -> None:
    rank, how = comm.rank, f"all_gather {counts} {algorithm}"
    wanted = [rows(r, count) for r, count in enumerate(counts)]
    mine = rows(rank, counts[rank])
    whole = blank(sum(counts))
    comm.all_gather(whole, mine, counts=counts, algorithm=algorithm)
    findings.hold(how, whole, np.concatenate(wanted))
    listed = [blank(count) for count in counts]
    returned = comm.all_gather(listed, mine, algorithm=algorithm)
    findings.hold(f"{how} list", returned, wanted)


def _reduced(comm: Any, counts: list[int], algorithm: str, findings: Findings) -> None:
    rank, n, how = comm.rank, comm.world_size, f"reduce_scatter {counts} {algorithm}"
    total: Any = np.sum([rows(r, sum(counts)) for r in range(n)], axis=0, dtype=np.int32)
    start = sum(counts[:rank])
    wanted = total[start : start + counts[rank]]
    whole = rows(rank, sum(counts))
    part = blank(counts[rank])
    comm.reduce_scatter(part, whole, counts=counts, algorithm=algorithm)
    findings.hold(how, part, wanted)
    part = blank(counts[rank])
    pieces = np.split(whole, np.cumsum(counts)[:-1])
    comm.reduce_scatter(part, pieces, algorithm=algorithm)
    findings.hold(f"{how} list", part, wanted)


def _rooted(comm: Any, counts: list[int], algorithm: str, findings: Findings) -> None:
    rank, n = comm.rank, comm.world_size
    wanted = [rows(r, count) for r, count in enumerate(counts)]
    for root in range(n):
        options: dict[str, Any] = {"counts": counts, "algorithm": algorithm}
        is_root, how = rank == root, f"{counts} {algorithm} root {root}"
        whole = blank(sum(counts)) if is_root else None
        comm.gather(whole, wanted[rank], root, **options)
        listed = [blank(count) for count in counts] if is_root else None
        comm.gather(listed, wanted[rank], root, **options)
        if is_root:
            findings.hold(f"gather {how}", whole, np.concatenate(wanted))
            findings.hold(f"gather list {how}", listed, wanted)
        for sent in (np.concatenate(wanted), list(wanted)):
            part = blank(counts[rank])
            comm.scatter(part, sent if is_root else None, root, **options)
            findings.hold(f"scatter {type(sent).__name__} {how}", part, wanted[rank])


def _exchanged(comm: Any, algorithm: str, findings: Findings) -> None:
    rank, n = comm.rank, comm.world_size

    def split(source: int, target: int) -> int:
        return (source + 2 * target) % 3

    def piece(source: int, target: int) -> Any:
        return rows(source * n + target, split(source, target))

    sent, got = [piece(rank, p) for p in range(n)], [piece(p, rank) for p in range(n)]
    output = blank(sum(map(len, got)))
    comm.all_to_all(
        output,
        np.concatenate(sent),
        input_splits=[len(p) for p in sent],
        output_splits=[len(p) for p in got],
        algorithm=algorithm,
    )
    findings.hold(f"all_to_all {algorithm}", output, np.concatenate(got))
    listed = [np.full_like(p, -1) for p in got]
    findings.hold(
        f"all_to_all list {algorithm}", comm.all_to_all(listed, sent, algorithm=algorithm), got
    )
    # Shapes without a row in common: elements are counted.
    flat = [np.full(p.shape[::-1], -1, np.int32) for p in got]
    turned = [np.ascontiguousarray(p.T) for p in sent]
    comm.all_to_all(flat, turned, algorithm=algorithm)
    findings.hold(f"all_to_all turned {algorithm}", flat, [np.ascontiguousarray(p.T) for p in got])


# ---------------------------------------------------------------- layouts

GAP = -7.0


class Layouts:
    """Tensors that hold the same values in different ways."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.writable: dict[str, Callable[[tuple[int, ...]], Any]] = {
            "contiguous": torch.empty,
            "transposed": lambda shape: torch.empty(shape[::-1]).permute(
                *reversed(range(len(shape)))
            ),
            "gaps": lambda shape: torch.full((*shape, 2), GAP)[..., 0],
            "channels_last": lambda shape: torch.empty(shape, memory_format=torch.channels_last),
            "requires_grad": lambda shape: torch.empty(shape, requires_grad=True),
            "inference": self._inference,
        }

    def _inference(self, shape: tuple[int, ...]) -> Any:
        with self.torch.inference_mode():
            return self.torch.empty(shape)

    def make(self, layout: str, values: Any) -> Any:
        """A tensor with these values; ``expanded`` repeats their first element of a row."""
        torch = self.torch
        if layout == "read-only numpy":
            array = values.astype(np.float32)
            array.flags.writeable = False
            return array
        source = torch.from_numpy(values.astype(np.float32))
        if layout == "expanded":
            return source[:, :1, :1, :1].expand(source.shape)
        if layout == "negated":  # lazily: the imaginary part of a conjugate
            return torch.complex(torch.zeros_like(source), -source).conj().imag
        tensor = self.writable[layout](tuple(source.shape))
        mode = torch.inference_mode() if layout == "inference" else torch.no_grad()
        with mode:
            tensor.copy_(source)
        return tensor

    def problem(self, tensor: Any, layout: str) -> str:
        """What is not as it was beside the values: gaps, autograd's state."""
        if layout == "gaps" and not bool((tensor._base[..., 1] == GAP).all()):
            return "wrote between the elements"
        if layout == "requires_grad" and not (tensor.requires_grad and tensor.is_leaf):
            return "is no leaf any more"
        return ""


def _plain(tensor: Any) -> Any:
    return tensor if isinstance(tensor, np.ndarray) else tensor.detach().resolve_neg().numpy()


INPUTS_ONLY = ("expanded", "negated", "read-only numpy")


def every_layout(stage: Stage) -> dict[str, Any]:
    """Every collective with inputs and outputs of every layout, the same on no two ranks."""
    comm, layouts, findings = stage.comm, Layouts(), Findings()
    names = list(layouts.writable)
    for number in range(len(names) + len(INPUTS_ONLY)):
        # Ranks differ in the layout, never in the values' logical order.
        given = [*names, *INPUTS_ONLY][(number + comm.rank) % (len(names) + len(INPUTS_ONLY))]
        taken = names[(number + 2 * comm.rank) % len(names)]
        _Laid(comm, layouts, findings, given, taken).all()
    _small(comm, findings)
    return findings.told


class _Laid:
    """Every collective once, with one layout for inputs and one for outputs."""

    def __init__(
        self, comm: Any, layouts: Layouts, findings: Findings, given: str, taken: str
    ) -> None:
        self.comm, self.layouts, self.findings = comm, layouts, findings
        self.given, self.taken = given, taken
        n = comm.world_size
        self.shape = (n, 2, 3, 2)
        self.values = [self._of(rank) for rank in range(n)]

    def _of(self, rank: int) -> Any:
        size = int(np.prod(self.shape))
        return (np.arange(size).reshape(self.shape) * 3 + rank * 100).astype(np.float32)

    def _sent(self) -> list[Any]:
        """The logical values of every rank's input: an expanded one repeats itself."""
        everybody = self.comm.all_gather_object(self.given)
        return [
            np.broadcast_to(v[:, :1, :1, :1], v.shape) if layout == "expanded" else v
            for v, layout in zip(self.values, everybody, strict=True)
        ]

    def _output(self, shape: tuple[int, ...]) -> Any:
        return self.layouts.make(self.taken, np.full(shape, 55.0))

    def _hold(self, what: str, output: Any, wanted: Any) -> None:
        how = f"{what} {self.given} to {self.taken}"
        self.findings.hold(how, _plain(output), wanted)
        problem = self.layouts.problem(output, self.taken)
        if problem:
            self.findings.wrong.append(f"{how}: {problem}")

    def all(self) -> None:
        rank = self.comm.rank
        mine, sent = self.layouts.make(self.given, self.values[rank]), self._sent()
        before = _plain(mine).copy()
        total: Any = np.sum(sent, axis=0, dtype=np.float32)
        self._in_place(sent, total)
        self._gathered(mine, sent)
        self._divided(mine, sent, total)
        self.findings.hold(f"input {self.given}", _plain(mine), before)

    def _in_place(self, sent: list[Any], total: Any) -> None:
        comm, rank, root = self.comm, self.comm.rank, self.comm.world_size - 1
        at_root = total if rank == root else sent[rank]
        self._hold("all_reduce", comm.all_reduce(self._own(sent)), total)
        self._hold("reduce", comm.reduce(self._own(sent), root), at_root)
        self._hold("broadcast", comm.broadcast(self._own(sent), root), sent[root])

    def _own(self, sent: list[Any]) -> Any:
        """This rank's values in an output's layout."""
        torch, tensor = self.layouts.torch, self._output(self.shape)
        with torch.inference_mode() if self.taken == "inference" else torch.no_grad():
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(sent[self.comm.rank])))
        return tensor

    def _gathered(self, mine: Any, sent: list[Any]) -> None:
        comm, n, root = self.comm, self.comm.world_size, 0
        whole = (n * n, *self.shape[1:])
        self._hold("all_gather", comm.all_gather(self._output(whole), mine), np.concatenate(sent))
        listed = comm.all_gather([self._output(self.shape) for _ in range(n)], mine)
        for rank, tensor in enumerate(listed):
            self._hold(f"all_gather list {rank}", tensor, sent[rank])
        taken = self._output(whole) if comm.rank == root else None
        comm.gather(taken, mine, root)
        if taken is not None:
            self._hold("gather", taken, np.concatenate(sent))

    def _divided(self, mine: Any, sent: list[Any], total: Any) -> None:
        comm, rank, n = self.comm, self.comm.rank, self.comm.world_size
        one, root = (1, *self.shape[1:]), 1
        piece = comm.scatter(self._output(one), mine if rank == root else None, root)
        self._hold("scatter", piece, sent[root][rank : rank + 1])
        piece = comm.reduce_scatter(self._output(one), mine)
        self._hold("reduce_scatter", piece, total[rank : rank + 1])
        crossed = comm.all_to_all(self._output(self.shape), mine)
        self._hold("all_to_all", crossed, np.stack([data[rank] for data in sent]))
        taken, message = self._output(self.shape), comm.isend(mine, (rank + 1) % n)
        comm.recv(taken, (rank - 1) % n)
        message.wait()
        self._hold("recv", taken, sent[(rank - 1) % n])


def _small(comm: Any, findings: Findings) -> None:
    """0-dim and empty tensors through every collective."""
    import torch

    rank, n = comm.rank, comm.world_size
    for shape in ((), (0,), (n, 0, 2)):
        size = int(np.prod(shape))
        given = torch.full(shape, float(rank + 1))
        total = np.full(shape, n * (n + 1) / 2, np.float32)
        first, own = np.full(shape, 1, np.float32), _plain(given).copy()
        everybody = np.stack([np.full(shape, r + 1, np.float32) for r in range(n)])
        how = f"shape {shape}"
        findings.hold(f"all_reduce {how}", _plain(comm.all_reduce(given.clone())), total)
        reduced = comm.reduce(given.clone(), 1)
        findings.hold(f"reduce {how}", _plain(reduced), total if rank == 1 else own)
        findings.hold(f"broadcast {how}", _plain(comm.broadcast(given.clone(), 0)), first)
        gathered = comm.all_gather(torch.zeros(n, *shape), given)
        findings.hold(f"all_gather {how}", _plain(gathered), everybody)
        at_root = torch.zeros(n, *shape) if rank == 0 else None
        comm.gather(at_root, given, 0)
        if at_root is not None:
            findings.hold(f"gather {how}", _plain(at_root), everybody)
        parts = torch.arange(n * size, dtype=torch.float32).reshape(n, *shape)
        wanted = _plain(parts[rank]).copy()
        part = comm.scatter(torch.zeros(shape), parts if rank == 0 else None, 0)
        findings.hold(f"scatter {how}", _plain(part), wanted)
        part = comm.reduce_scatter(torch.zeros(shape), parts)
        findings.hold(f"reduce_scatter {how}", _plain(part), wanted * n)
        crossed = comm.all_to_all(torch.zeros(n, *shape), parts)
        findings.hold(f"all_to_all {how}", _plain(crossed), np.stack([wanted] * n))
        message = comm.isend(given, (rank + 1) % n)
        taken = torch.zeros(shape)
        comm.recv(taken, (rank - 1) % n)
        message.wait()
        findings.hold(f"recv {how}", _plain(taken), everybody[(rank - 1) % n])
