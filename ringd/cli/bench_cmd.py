"""``ringd bench``: times of ringd and of others, by one method."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ringd.cli import bench_options as given
from ringd.cli import options
from ringd.errors import InvalidArgumentError, UnsupportedReductionError

if TYPE_CHECKING:
    from ringd.bench.matrix import Matrix
    from ringd.lab.spec import LabSpec

EXAMPLE = (
    "Example: ringd bench --op all_reduce --op all_gather --sizes 1K,1M -n 4 --peers gloo "
    "--json bench.json; ringd bench --faults --kinds kill-trainer,kill-daemon -n 3 --rounds 40; "
    "ringd bench --torch; ringd bench --startup -n 4; ringd bench --stages --sizes 1K,64K"
)
DEFAULT_RANKS, DEFAULT_FAULT_RANKS, DEFAULT_TORCH_RANKS = [2, 4], [3], [2]
DEFAULT_STARTUP_RANKS = [4]
DEFAULT_STAGES = {"n": ["2"], "sizes": ["1K,64K"], "memory": ["ordinary"]}
DEFAULT_ROUNDS, DEFAULT_FAULT_ROUNDS = 5, 10


def bench(
    ctx: typer.Context,
    op: given.Op = None,
    sizes: given.Sizes = None,
    n: given.Ranks = None,
    peers: given.Peers = None,
    rounds: given.Rounds = None,
    dtype: given.Dtype = None,
    algorithm: given.Algorithm = None,
    memory: given.Memory = None,
    json_path: given.JsonPath = None,
    quick: given.Quick = False,
    lab: given.Lab = None,
    faults: given.Faults = False,
    kinds: given.Kinds = None,
    torch: given.Torch = False,
    startup: given.Startup = False,
    stages: given.Stages = False,
    config: options.Config = None,
    debug: options.Debug = None,
) -> None:
    """Measure operations, ringd and its peers in turn, results checked.

    What is a list takes commas, and may be given more than once. Times of operations, of torch and
    of stages are in µs, of faults in ms, of start-up in s; bandwidths in GB/s, 10⁹ bytes per
    second. p99 is empty where there are fewer than 100 samples.
    """
    options.settings_from(ctx)
    match given.kind_of(ctx.params):
        case "faults":
            code = _faults(kinds, n, rounds, json_path)
        case "torch":
            code = _torch(n, rounds, json_path, quick=quick)
        case "startup":
            code = _startup(n, rounds, json_path)
        case "stages":
            code = _stages(ctx.params)
        case _:
            code = _operations(ctx.params)
    raise typer.Exit(code)


def _faults(kinds: given.Words, n: given.Words, rounds: int | None, json_path: Path | None) -> int:
    """``--faults``; the exit code."""
    from ringd.bench.faults.kinds import KINDS

    names = given.known("--kinds", given.words(kinds, "all"), [*KINDS, "all"])
    world_sizes = given.ranks(n, DEFAULT_FAULT_RANKS)
    if min(world_sizes) < 2:
        raise InvalidArgumentError("--faults needs survivors: two ranks at least, not -n 1")
    chosen = list(KINDS) if "all" in names else list(dict.fromkeys(names))

    from ringd.bench.faults.main import run

    rounds = rounds or DEFAULT_FAULT_ROUNDS
    return run(chosen, world_sizes=world_sizes, rounds=rounds, json_path=json_path)


def _torch(n: given.Words, rounds: int | None, json_path: Path | None, *, quick: bool) -> int:
    """``--torch``; the exit code."""
    world_sizes = given.ranks(n, DEFAULT_TORCH_RANKS)

    from ringd.bench.torch.main import run

    return run(world_sizes, rounds=rounds or DEFAULT_ROUNDS, json_path=json_path, quick=quick)


def _startup(n: given.Words, rounds: int | None, json_path: Path | None) -> int:
    """``--startup``; the exit code."""
    world_sizes = given.ranks(n, DEFAULT_STARTUP_RANKS)

    from ringd.bench.startup.main import run

    return run(world_sizes, rounds=rounds or DEFAULT_ROUNDS, json_path=json_path)


def _stages(params: dict[str, Any]) -> int:
    """``--stages``; the exit code."""
    from ringd.bench.ops import OPS, SENDRECV

    names = given.words(params["op"], "all_reduce")
    if SENDRECV in names:
        raise InvalidArgumentError(
            f"--stages follows calls of one request each, and {SENDRECV} has two: leave it out"
        )
    one_request = [op for op in OPS if op != SENDRECV]
    asked = {key: params[key] or default for key, default in DEFAULT_STAGES.items()}
    ops = one_request if "all" in names else names
    matrix = _matrix({**params, **asked, "op": ops, "peers": ["none"]}, None)

    from ringd.bench.stages.main import run

    rounds, where = params["rounds"] or DEFAULT_ROUNDS, params["json_path"]
    return run(matrix, rounds=rounds, json_path=where, quick=params["quick"])


def _operations(params: dict[str, Any]) -> int:
    """What is measured without a flag that says what; the exit code."""
    spec = _lab(params["lab"], params["n"])
    matrix = _matrix(params, spec)

    from ringd.bench.main import run

    rounds = params["rounds"] or DEFAULT_ROUNDS
    where = params["json_path"]
    return run(matrix, rounds=rounds, json_path=where, quick=params["quick"], lab=spec)


def _matrix(params: dict[str, Any], lab: LabSpec | None) -> Matrix:
    """The rows that the options ask for."""
    from ringd.bench.matrix import Matrix
    from ringd.vocabulary import DTYPES

    dtype = "float32" if params["dtype"] is None else params["dtype"]
    given.known("--dtype", [dtype], DTYPES)
    world_sizes = [lab.hosts] if lab else given.ranks(params["n"], DEFAULT_RANKS)
    algorithms = given.words(params["algorithm"], "auto")
    peers = given.known("--peers", given.words(params["peers"], "gloo"), given.PEERS)
    memory = given.words(params["memory"], ",".join(given.MEMORIES))
    return Matrix(
        ops=_ops(given.words(params["op"], "all_reduce"), dtype, algorithms, world_sizes),
        sizes_bytes=given.sizes(given.words(params["sizes"], given.DEFAULT_SIZES)),
        world_sizes=world_sizes,
        peers=[name for name in peers if name != "none"],
        dtype=dtype,
        algorithms=algorithms,
        memory=given.known("--memory", memory, given.MEMORIES),
        rate_bps=lab.rate_bps if lab else 0,
        own_hosts=lab is not None,
    )


def _lab(text: str | None, n: given.Words) -> LabSpec | None:
    """``--lab``: a lab with a name of its own, so that it gets into nobody's way."""
    if text is None:
        return None
    from ringd.lab.spec import parse_lab
    from ringd.lab.tools import check_possible

    spec = parse_lab(text, name=f"bench_{os.getpid()}")
    if given.ranks(n, [spec.hosts]) != [spec.hosts]:
        raise InvalidArgumentError(f"--lab {text} has a rank on each host: leave -n out")
    check_possible()
    return spec


def _ops(names: list[str], dtype: str, algorithms: list[str], world_sizes: list[int]) -> list[str]:
    """The operations, each of which can be called like that."""
    from ringd.bench.ops import OPS, SENDRECV, is_reduction
    from ringd.bench.ops import algorithms as algorithms_of

    given.known("--op", names, [*OPS, "all"])
    ops = list(OPS) if "all" in names else list(dict.fromkeys(names))
    for op in ops:
        given.known(f"--op {op} --algorithm", algorithms, algorithms_of(op))
        if is_reduction(op):
            _summable(op, dtype)
    if SENDRECV in ops and 1 in world_sizes:
        raise InvalidArgumentError(f"--op {SENDRECV} needs two ranks at least, not -n 1")
    return ops


def _summable(op: str, dtype: str) -> None:
    from ringd.vocabulary import check_reduction

    try:
        check_reduction(dtype, "sum")
    except UnsupportedReductionError as exc:
        raise InvalidArgumentError(f"--op {op} --dtype {dtype}: {exc}") from None
