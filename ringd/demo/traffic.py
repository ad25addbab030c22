"""Part 2: what each rank sent, by the daemons' accounting, beside the formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ringd.demo.job import Job
from ringd.demo.ledger import Line, received, sent
from ringd.errors import RingdError
from ringd.schedules import formula
from ringd.vocabulary import DTYPES, REDUCING

Row = dict[str, Any]

COUNT = 12 * 16 * 1024
"""Elements of the region: divisible by 2, 3 and 4, so that the formula is exact."""


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
        """T: the working region."""
        return self.count * DTYPES[self.dtype].itemsize

    @property
    def is_widened(self) -> bool:
        """Partial sums travel at twice the size."""
        partial = self.collective in REDUCING and self.algorithm in ("ring", "tree")
        return partial and DTYPES[self.dtype].widened is not None


CALLS = (
    Call("all_reduce", "ring", "float32", "2T(N−1)/N"),
    Call("all_reduce", "direct", "float32", "2T(N−1)/N"),
    Call("all_reduce", "tree", "float32", "T⌈log₂N⌉"),
    Call("all_reduce", "exchange", "float32", "(N−1)T"),
    Call("all_reduce", "ring", "float16", "3T(N−1)/N"),
    Call("all_reduce", "direct", "float16", "2T(N−1)/N"),
    Call("reduce_scatter", "ring", "float32", "T(N−1)/N"),
    Call("reduce_scatter", "direct", "float32", "T(N−1)/N"),
    Call("all_gather", "ring", "float32", "T(N−1)/N"),
    Call("all_gather", "direct", "float32", "T(N−1)/N"),
    Call("broadcast", "tree", "float32", "T⌈log₂N⌉"),
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
    is_cut = call.algorithm in ("ring", "direct")
    itemsize = DTYPES[call.dtype].itemsize
    return formula.sent_bytes(
        call.collective,
        call.algorithm,
        rank=rank,
        world_size=n,
        chunk_bytes=formula.chunk_sizes(call.count, n if is_cut else 1, itemsize),
        root=0 if call.collective == "broadcast" else -1,
        widening=2 if call.is_widened else 1,
    )
