"""Every collective x dtype x reduce op gives what gloo gives; what gloo lacks, the definition."""

from __future__ import annotations

import itertools

from tests.torch.conftest import Both
from tests.torch.programs import sweep
from tests.torch.ranks import same

NAMES = [str(dtype).removeprefix("torch.") for dtype in sweep.DTYPES]
INTEGERS = {"uint8", "int8", "int16", "int32", "int64"}


def ours_refuses(call: str, op: str, dtype: str) -> bool:
    """Pairs that ringd has not: docs/dtypes.md, and what torch itself refuses."""
    if dtype in ("uint16", "float8_e4m3fn"):
        return True
    bitwise = op in ("BAND", "BOR", "BXOR")
    if dtype in INTEGERS | {"bool"}:
        return op == "AVG"
    if dtype.startswith("complex"):
        return bitwise or op in ("MIN", "MAX") or (op, call) == ("PRODUCT", "all_reduce")
    return bitwise


def test_reductions_equal_gloos(both: Both) -> None:
    got = both(sweep.reductions, 3)
    for rank, name in itertools.product(range(3), NAMES):
        theirs, ours = got["gloo"][rank][name], got["ringd"][rank][name]
        for call, value in ours.items():
            refused = isinstance(value, str)
            assert refused == ours_refuses(*call.split(), name), (name, call, value)
            if not refused and not isinstance(theirs[call], str):
                assert same(theirs[call], value), (rank, name, call, theirs[call], value)


def test_moves_equal_gloos_and_no_dtype_is_refused(both: Both) -> None:
    got = both(sweep.moves, 3)
    compared = 0
    for rank, name in itertools.product(range(3), NAMES):
        theirs, ours = got["gloo"][rank][name], got["ringd"][rank][name]
        for call, value in ours.items():
            assert not isinstance(value, str), (name, call)
            if not isinstance(theirs[call], str):
                assert same(theirs[call], value), (rank, name, call, theirs[call], value)
                compared += 1
    assert compared > 3 * 9 * 7  # gloo has nine dtypes at least
