"""Part 2: what each rank sent, by the daemons' accounting, beside the formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ringd.demo.job import Job
from ringd.demo.ledger import Line, received, sent
from ringd.errors import RingdError
from ringd.schedules import formula
from ringd.vocabulary import DTYPES, REDUCING, ROOTED

Row = dict[str, Any]

COUNT = 12 * 8 * 1024
"""Elements of T: divisible by 2, 3 and 4, so that the formula is exact."""
ROOT = 0
"""Of the calls that have one."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that is counted, with the formula as docs/algorithms.md writes it."""

    collective: str
    algorithm: str
    dtype: str
    formula: str
    count: int = COUNT

    @property
    def total_bytes(self) -> int:
        """T: the tensor; all N parts together; of all_to_all what one rank has."""
        return self.count * DTYPES[self.dtype].itemsize

    @property
    def is_widened(self) -> bool:
        """Partial sums travel at twice the size."""
        partial = self.collective in REDUCING and self.algorithm not in ("direct", "exchange")
        return partial and DTYPES[self.dtype].widened is not None


CALLS = (
    Call("all_reduce", "exchange", "float32", "(N−1)T"),
    Call("all_reduce", "direct", "float32", "2T(N−1)/N"),
    Call("all_reduce", "tree", "float32", "K·T"),
    Call("all_reduce", "recursive_doubling", "float32", "(L+e)T"),
    Call("all_reduce", "halving_doubling", "float32", "2T(P−1)/P + e·T"),
    Call("all_reduce", "ring", "float32", "2T(N−1)/N"),
    Call("all_reduce", "chain", "float32", "2T (N = 2: T)"),
    Call("all_reduce", "direct", "float16", "2T(N−1)/N"),
    Call("all_reduce", "ring", "float16", "3T(N−1)/N"),
    Call("reduce", "direct", "float32", "T"),
    Call("reduce", "tree", "float32", "T"),
    Call("reduce", "chain", "float32", "T"),
    Call("reduce_scatter", "direct", "float32", "T(N−1)/N"),
    Call("reduce_scatter", "ring", "float32", "T(N−1)/N"),
    Call("all_gather", "direct", "float32", "T(N−1)/N"),
    Call("all_gather", "ring", "float32", "T(N−1)/N"),
    Call("gather", "direct", "float32", "T/N"),
    Call("gather", "tree", "float32", "up to T/2"),
    Call("scatter", "direct", "float32", "T(N−1)/N"),
    Call("scatter", "tree", "float32", "T(N−1)/N"),
    Call("all_to_all", "direct", "float32", "T(N−1)/N"),
    Call("all_to_all", "pairwise", "float32", "T(N−1)/N"),
    Call("broadcast", "tree", "float32", "K·T"),
    Call("broadcast", "chain", "float32", "T"),
)


def run(job: Job, step: Callable[[str], None]) -> list[Row]:
    """Make all calls at this job's world size.

    Returns:
        One row for each call and rank; what came in besides payload is ``overhead_bytes``:
        frame headers, fingerprints, credit.

    Raises:
        RingdError: a rank ended, or the accounting is incomplete.
    """
    step(f"bytes N={job.n}")
    job.ledger.skip()
    calls = [{k: v for k, v in asdict(call).items() if k != "formula"} for call in CALLS]
    job.order("traffic", calls=calls)
    operations = job.ledger.take()
    if len(operations) != len(CALLS):
        raise RingdError(f"{len(operations)} of {len(CALLS)} operations were accounted for")
    return [
        row for call, lines in zip(CALLS, operations, strict=True) for row in judge(call, lines)
    ]


def judge(call: Call, lines: Sequence[Line]) -> list[Row]:
    """The rows of one call from its accounting lines by rank.

    Right is: each rank sent what the formula gives for it, the busiest one what the closed form
    says, and all that was sent was received.
    """
    n = len(lines)
    busiest = formula.payload_bytes_per_rank(
        call.collective,
        call.algorithm,
        world_size=n,
        total_bytes=call.total_bytes,
        widened=call.is_widened,
    )
    all_sent = [sent(line, "payload") for line in lines]
    all_received = [received(line, "payload") for line in lines]
    holds = max(all_sent) == busiest and sum(all_sent) == sum(all_received)
    rows = []
    for rank, line in enumerate(lines):
        expected = _sent_by(call, rank, n)
        rows.append(
            {
                "collective": call.collective,
                "algorithm": line["algorithm"],
                "dtype": line["dtype"],
                "world_size": n,
                "total_bytes": call.total_bytes,
                "formula": call.formula,
                "busiest_bytes": busiest,
                "rank": rank,
                "formula_bytes": expected,
                "measured_bytes": all_sent[rank],
                "received_bytes": all_received[rank],
                "overhead_bytes": sent(line, "overhead"),
                "ok": holds and all_sent[rank] == expected and line["error"] is None,
            }
        )
    return rows


def _sent_by(call: Call, rank: int, n: int) -> int:
    return formula.sent_bytes(
        call.collective,
        call.algorithm,
        rank=rank,
        world_size=n,
        chunk_bytes=_chunk_bytes(call, n),
        root=ROOT if call.collective in ROOTED else -1,
        widening=2 if call.is_widened else 1,
    )


def _chunk_bytes(call: Call, n: int) -> tuple[int, ...]:
    itemsize = DTYPES[call.dtype].itemsize
    if call.collective == "all_to_all":
        return formula.chunk_sizes(call.count, n, itemsize) * n
    n_chunks = formula.chunk_count(call.collective, call.algorithm, n)
    return formula.chunk_sizes(call.count, n_chunks, itemsize)
