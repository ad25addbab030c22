"""Which algorithm "auto" means: a pure function of the spec and the world size.

Every rank resolves it for itself and must come to the same answer, so nothing that differs between
ranks (measurements, load, topology as one rank sees it, the splits of an all_to_all) may enter.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringd.vocabulary import DTYPES, REDUCING, OpSpec, check_algorithm

KIB = 1024


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where "auto" changes its mind; must be the same on all ranks of a group.

    Sizes are T: the tensor, or all N parts where ranks have parts.

    Attributes:
        exchange_bytes: largest T that is exchanged whole.
        exchange_total_bytes: bound on what one rank sends in an exchange, (N-1)T.
        direct_max_world: most ranks that all speak to all: N-1 links, and N-1 senders at once to
            each owner, are too many beyond.
        direct_max_world_widened: the same for 16-bit floats, where the alternative costs half as
            much again (all_reduce) or twice as much (reduce_scatter) in bytes.
        recursive_doubling_bytes: with more ranks than that, largest T for which log2 N steps with
            all of it are taken.
        halving_doubling_bytes: the same for 2 log2 N steps and about 2T bytes; beyond it the
            ring's 2(N-1) steps are short beside the bytes, and it has two neighbours only.
        tree_first_bytes: up to this T the tree is taken whatever N is: it has the fewest
            messages, 2(N-1) in all against N(N-1), though not the fewest rounds.
        ring_from_bytes: from this T on the ring is taken whatever N is.
        ring_part_bytes: so it is from this T/N on: its rounds are short then beside the bytes of
            each, and one sender at a time is what a switch forwards best.
        least_segment_bytes: a chunk is cut into so many bytes or more,
        segments_per_chunk: and into no more segments than these if they are larger: what has
            arrived is passed on while the rest is on its way.
        chain_piece_bytes: what a chain has under way per rank. A chain of S such pieces takes
            N-2+S times, a tree about S log2 N: the chain is taken where that is more.
        tree_part_bytes: largest part that a gather or scatter passes on through a tree.
        tree_min_world: fewest ranks for a tree of parts; up to as many are always direct.
        pairwise_min_world: fewest ranks for pairwise rounds of an all_to_all.
        pairwise_row_bytes: rows over this size are sent in pairwise rounds: what an all_to_all
            moves in all is known to no rank.
    """

    exchange_bytes: int = 64 * KIB
    exchange_total_bytes: int = 64 * KIB
    direct_max_world: int = 16
    direct_max_world_widened: int = 32
    recursive_doubling_bytes: int = 32 * KIB
    halving_doubling_bytes: int = 1024 * KIB
    tree_first_bytes: int = -1
    ring_from_bytes: int = 1 << 62
    ring_part_bytes: int = 256 * KIB
    least_segment_bytes: int = 64 * KIB
    segments_per_chunk: int = 16
    chain_piece_bytes: int = 512 * KIB
    tree_part_bytes: int = 32 * KIB
    tree_min_world: int = 5
    pairwise_min_world: int = 5
    pairwise_row_bytes: int = 32 * KIB

    def exchange_limit_bytes(self, world_size: int) -> int:
        """Largest region that ``world_size`` ranks exchange whole."""
        return min(self.exchange_bytes, self.exchange_total_bytes // max(1, world_size - 1))

    def segment_bytes(self, chunk_bytes: int, most_bytes: int) -> int:
        """How large the segments of a chunk are: a multiple of the least, or ``most_bytes``."""
        least = self.least_segment_bytes
        pieces = -(-chunk_bytes // (self.segments_per_chunk * least))
        return min(max(pieces, 1) * least, most_bytes)

    def chain_pays(self, total_bytes: int, world_size: int) -> bool:
        """Whether N-2+S is less than S log2 N; a chain of two has nothing to pipeline."""
        pieces = total_bytes // self.chain_piece_bytes
        levels = (world_size - 1).bit_length()
        return world_size > 2 and world_size - 2 + pieces < levels * pieces


DEFAULT_THRESHOLDS = Thresholds()
"""Between hosts rounds cost most: each is a trip over the network."""
ONE_HOST = Thresholds(
    recursive_doubling_bytes=-1,
    halving_doubling_bytes=-1,
    tree_first_bytes=256 * KIB,
    ring_from_bytes=512 * KIB,
    ring_part_bytes=1 << 62,
    least_segment_bytes=1 << 62,
)
"""All ranks on one host share its cores, where messages cost most: each is work for two processes,
and the ring touches the least memory at a time. `ringd bench --algorithm` shows it."""


def choose(spec: OpSpec, world_size: int, *, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> str:
    """The concrete algorithm for an operation: what was asked for, or what "auto" means here.

    Args:
        spec: the operation; its dtype has been checked.
        world_size: how many ranks take part; of a new_group, its members.
        thresholds: the same on all ranks.

    Returns:
        A name that :func:`ringd.schedules.build.build` takes for this collective.

    Raises:
        InvalidArgumentError: see :func:`ringd.vocabulary.check_algorithm`.
    """
    check_algorithm(spec)
    if spec.algorithm != "auto":
        return spec.algorithm
    match spec.collective:
        case "all_reduce":
            return _all_reduce(spec, world_size, thresholds)
        case "reduce":
            return _reduce(spec, world_size, thresholds)
        case "broadcast":
            return "chain" if thresholds.chain_pays(_size(spec), world_size) else "tree"
        case "gather" | "scatter":
            return _through_root(spec, world_size, thresholds)
        case "all_to_all":
            return _all_to_all(spec, world_size, thresholds)
        case "barrier" | "agree":
            fewest_messages = world_size > 2 and thresholds.tree_first_bytes >= 0
            all_to_all = world_size <= thresholds.direct_max_world and not fewest_messages
            return "exchange" if all_to_all else "tree"
        case "new_group":
            return "exchange" if world_size <= thresholds.direct_max_world else "tree"
    # reduce_scatter, all_gather
    total_bytes = sum(spec.part_counts(world_size)) * spec.itemsize
    if _in_rank_order(spec):
        return "direct"
    if _goes_round(spec, world_size, thresholds, total_bytes):
        return "ring"
    return "direct" if world_size <= _direct_max_world(spec, thresholds) else "ring"


def is_widened(spec: OpSpec) -> bool:
    """Whether partial sums of this operation are kept, and travel, in a wider type."""
    dtype = DTYPES.get(spec.dtype)
    return spec.collective in REDUCING and dtype is not None and dtype.widened is not None


def _all_reduce(spec: OpSpec, world_size: int, thresholds: Thresholds) -> str:
    size, in_rank_order = _size(spec), _in_rank_order(spec)
    many = world_size > 2  # two ranks have nothing to gain from a tree or a ring
    if many and size <= thresholds.tree_first_bytes and not in_rank_order:
        return "tree"
    if size <= thresholds.exchange_limit_bytes(world_size):
        return "exchange"
    if in_rank_order:
        return "direct" if world_size <= _direct_max_world(spec, thresholds) else "chain"
    if _goes_round(spec, world_size, thresholds, size):
        return "ring"
    if world_size <= _direct_max_world(spec, thresholds):
        return "direct"
    if size <= thresholds.recursive_doubling_bytes:
        return "recursive_doubling"
    return "halving_doubling" if size <= thresholds.halving_doubling_bytes else "ring"


def _reduce(spec: OpSpec, world_size: int, thresholds: Thresholds) -> str:
    if thresholds.chain_pays(_size(spec), world_size):
        return "chain"
    if world_size > 2 and not _in_rank_order(spec):
        return "tree"
    return "direct" if world_size <= _direct_max_world(spec, thresholds) else "chain"


def _through_root(spec: OpSpec, world_size: int, thresholds: Thresholds) -> str:
    """Of a gather or scatter: a tree spares the root messages, and costs others bytes."""
    largest_bytes = max(spec.part_counts(world_size)) * spec.itemsize
    passed_on = largest_bytes <= thresholds.tree_part_bytes
    return "tree" if passed_on and world_size >= thresholds.tree_min_world else "direct"


def _all_to_all(spec: OpSpec, world_size: int, thresholds: Thresholds) -> str:
    if world_size < thresholds.pairwise_min_world:
        return "direct"
    small = _size(spec) <= thresholds.pairwise_row_bytes
    return "direct" if small and world_size <= thresholds.direct_max_world else "pairwise"


def _goes_round(spec: OpSpec, world_size: int, thresholds: Thresholds, total_bytes: int) -> bool:
    """Whether the bytes outweigh the rounds of a ring."""
    ring_from = min(thresholds.ring_from_bytes, world_size * thresholds.ring_part_bytes)
    return world_size > 2 and total_bytes >= ring_from and not is_widened(spec)


def _direct_max_world(spec: OpSpec, thresholds: Thresholds) -> int:
    if is_widened(spec):
        return thresholds.direct_max_world_widened
    return thresholds.direct_max_world


def _size(spec: OpSpec) -> int:
    """Of the tensor; of a row where ``shape`` is that of one."""
    return spec.count * spec.itemsize


def _in_rank_order(spec: OpSpec) -> bool:
    """Deterministic means nothing more where nothing is reduced."""
    return spec.deterministic and spec.collective in REDUCING
