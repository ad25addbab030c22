"""Each case as a call of ringd; what the rank has afterwards."""

from __future__ import annotations

from typing import Any

import torch

from ringd.demo.cases import ANY_SOURCE, BATCHED, COALESCED, LISTS, MESSAGES, ORDERED, Case
from ringd.demo.workers.inputs import factor
from ringd_client import Communicator, Recv, Send, premul_sum

Message = Send | Recv

LIMIT_S = 20.0
TAG = 7
PIECES = 3
"""How many calls of different sizes are coalesced."""


def call(comm: Communicator, case: Case, source: torch.Tensor) -> torch.Tensor:
    """Make the call of a case.

    Args:
        comm: of the world or of a group.
        source: this rank's input, of one dimension. Calls that work in place overwrite it.

    Returns:
        This rank's output, of one dimension; empty where it gets none.

    Raises:
        RingdError: as the call does.
    """
    if case.form == COALESCED:
        return _coalesced(comm, case, source)
    if case.collective == MESSAGES:
        return _pass_on(comm, case, source)
    how: dict[str, Any] = {"algorithm": case.algorithm, "timeout_s": LIMIT_S}
    if case.form == ORDERED:
        how["deterministic"] = True
    match case.collective:
        case "all_reduce":
            return comm.all_reduce(source, _op(comm, case), **how)
        case "reduce":
            return comm.reduce(source, case.root, _op(comm, case), **how)
        case "broadcast":
            return comm.broadcast(source, case.root, **how)
        case "all_to_all":
            return _all_to_all(comm, case, source, how)
    return _in_parts(comm, case, source, how)


def _op(comm: Communicator, case: Case) -> Any:
    is_scaled = case.reduce_op == "premul_sum"
    return premul_sum(factor(case, comm.rank)) if is_scaled else case.reduce_op


def _in_parts(
    comm: Communicator, case: Case, source: torch.Tensor, how: dict[str, Any]
) -> torch.Tensor:
    sizes, is_root = case.parts(comm.world_size), comm.rank == case.root
    whole, part = sum(sizes), sizes[comm.rank]
    if case.is_uneven and (case.form != LISTS or case.root >= 0):
        how["counts"] = sizes  # ranks without the list can't see them
    match case.collective:
        case "all_gather":
            output = source.new_empty(whole)
            comm.all_gather(_form(case, output, sizes), source, **how)
        case "gather":
            output = source.new_empty(whole if is_root else 0)
            comm.gather(_form(case, output, sizes) if is_root else None, source, case.root, **how)
        case "scatter":
            output = source.new_empty(part)
            comm.scatter(output, _form(case, source, sizes) if is_root else None, case.root, **how)
        case _:
            output = source.new_empty(part)
            comm.reduce_scatter(output, _form(case, source, sizes), _op(comm, case), **how)
    return output


def _all_to_all(
    comm: Communicator, case: Case, source: torch.Tensor, how: dict[str, Any]
) -> torch.Tensor:
    rank, n = comm.rank, comm.world_size
    leaving, coming = case.splits(rank, n), [case.splits(r, n)[rank] for r in range(n)]
    output = source.new_empty(sum(coming))
    if case.is_uneven and case.form != LISTS:
        how |= {"input_splits": leaving, "output_splits": coming}
    comm.all_to_all(_form(case, output, coming), _form(case, source, leaving), **how)
    return output


def _form(case: Case, tensor: torch.Tensor, sizes: list[int]) -> Any:
    """One tensor, or the list of its parts, which lie in it."""
    return list(torch.split(tensor, sizes)) if case.form == LISTS else tensor


def _pass_on(comm: Communicator, case: Case, source: torch.Tensor) -> torch.Tensor:
    """Send to the right, receive from the left, and be told by whom."""
    n = comm.world_size
    right, left = (comm.rank + 1) % n, (comm.rank - 1) % n
    output = torch.empty_like(source)
    if case.form == BATCHED:
        ops: list[Message] = [Recv(output, left, TAG), Send(source, right, TAG)]
        received, sent = comm.batch_p2p(ops, timeout_s=LIMIT_S)
        sender = received.wait()
    else:
        sent = comm.isend(source, right, TAG, timeout_s=LIMIT_S)
        wanted = None if case.form == ANY_SOURCE else left
        sender = comm.recv(output, wanted, TAG, timeout_s=LIMIT_S)
    sent.wait()
    # A wrong sender is a wrong result.
    return output if sender == left else output.new_empty(0)


def _coalesced(comm: Communicator, case: Case, source: torch.Tensor) -> torch.Tensor:
    """The same as some calls on pieces of each part, in one block."""
    n = comm.world_size
    rows = source.view(n if case.collective == "reduce_scatter" else 1, -1)
    pieces = [piece.contiguous() for piece in rows.tensor_split(PIECES, dim=1)]
    height = {"all_gather": n}.get(case.collective, 1)
    outputs = [piece.new_empty(height, piece.shape[1]) for piece in pieces]
    how: dict[str, Any] = {"timeout_s": LIMIT_S}
    with comm.coalesce():
        for piece, output in zip(pieces, outputs, strict=True):
            match case.collective:
                case "all_reduce":
                    comm.all_reduce(piece, case.reduce_op, **how)
                case "reduce":
                    comm.reduce(piece, case.root, case.reduce_op, **how)
                case "broadcast":
                    comm.broadcast(piece, case.root, **how)
                case "all_gather":
                    comm.all_gather(output, piece, **how)
                case _:
                    comm.reduce_scatter(output, piece, case.reduce_op, **how)
    in_place = case.collective in ("all_reduce", "reduce", "broadcast")
    return torch.cat(pieces if in_place else outputs, dim=1).flatten()
