"""What an algorithm costs: steps, and payload bytes that a rank sends.

Written from the definitions, not from the builders: the proof compares the two.
T is the working region in bytes (all N parts for all_gather and reduce_scatter), t[c] its chunk c,
K = ceil(log2 N). Headers are not counted.
"""

from __future__ import annotations


def partition(count: int, n_chunks: int) -> tuple[tuple[int, int], ...]:
    """Cut ``count`` elements into chunks as even as can be: (start, length) of each.

    The first ``count % n_chunks`` chunks get one element more, as in ``numpy.array_split``; with
    fewer elements than chunks the last ones are empty.

    Raises:
        ValueError: a negative count, or no chunks.
    """
    if count < 0 or n_chunks < 1:
        raise ValueError(f"can't cut {count} elements into {n_chunks} chunks")
    length, longer = divmod(count, n_chunks)
    return tuple(
        (chunk * length + min(chunk, longer), length + (chunk < longer))
        for chunk in range(n_chunks)
    )


def chunk_sizes(count: int, n_chunks: int, itemsize: int) -> tuple[int, ...]:
    """The sizes of the chunks of :func:`partition` in bytes."""
    return tuple(length * itemsize for _, length in partition(count, n_chunks))


def steps(collective: str, algorithm: str, world_size: int) -> int:
    """Rounds that follow each other.

    Raises:
        ValueError: there is no such pair.
    """
    n, levels = world_size, (world_size - 1).bit_length()
    match collective, algorithm:
        case "all_reduce", "ring":
            return 2 * (n - 1)
        case "reduce_scatter" | "all_gather", "ring":
            return n - 1
        case "all_reduce" | "barrier", "tree":
            return 2 * levels
        case "broadcast", "tree":
            return levels
        case "all_reduce", "direct":
            return 2 if n > 1 else 0
        case ("reduce_scatter" | "all_gather", "direct") | ("all_reduce" | "barrier", "exchange"):
            return 1 if n > 1 else 0
    raise _unknown(collective, algorithm)


def payload_bytes_per_rank(
    collective: str, algorithm: str, *, world_size: int, total_bytes: int, widened: bool = False
) -> float:
    """What the busiest rank sends when all chunks are equal: the formula of the documentation.

    Args:
        total_bytes: T.
        widened: partial sums travel at twice the size (16-bit floats by ring or tree).

    Raises:
        ValueError: there is no such pair.
    """
    n, size = world_size, total_bytes
    wide = 2 if widened else 1
    match collective, algorithm:
        case "all_reduce", "ring":
            return (wide + 1) * size * (n - 1) / n
        case "reduce_scatter", "ring":
            return wide * size * (n - 1) / n
        case "all_reduce", "direct":
            return 2 * size * (n - 1) / n
        case ("all_gather", "ring") | ("reduce_scatter" | "all_gather", "direct"):
            return size * (n - 1) / n
        case "all_reduce" | "barrier", "exchange":
            return (n - 1) * size
        case "all_reduce" | "barrier", "tree":
            return size * _busiest_in_tree(n, wide)
        case "broadcast", "tree":
            return size * (n - 1).bit_length()
    raise _unknown(collective, algorithm)


def sent_bytes(
    collective: str,
    algorithm: str,
    *,
    rank: int,
    world_size: int,
    chunk_bytes: tuple[int, ...],
    root: int = -1,
    widening: int = 1,
) -> int:
    """Exactly what one rank sends, chunks being as uneven as they are.

    Args:
        chunk_bytes: t, from :func:`chunk_sizes`: N chunks for ring and direct, else one.
        root: the root of a broadcast.
        widening: how many times larger partial sums are: 2 for 16-bit floats by ring or tree.

    Raises:
        ValueError: there is no such pair.
    """
    n, t, total = world_size, chunk_bytes, sum(chunk_bytes)
    right, after_right = (rank + 1) % n, (rank + 2) % n
    match collective, algorithm:
        case "all_reduce", "ring":
            return widening * (total - t[right]) + total - t[after_right]
        case "reduce_scatter", "ring":
            return widening * (total - t[rank])
        case "all_gather", "ring":
            return total - t[right]
        case "all_reduce", "direct":
            return total - t[rank] + (n - 1) * t[rank]
        case "reduce_scatter", "direct":
            return total - t[rank]
        case "all_gather", "direct":
            return (n - 1) * t[rank]
        case "all_reduce" | "barrier", "exchange":
            return (n - 1) * total
        case "all_reduce" | "barrier", "tree":
            return total * (_children(rank, n) + (widening if rank else 0))
        case "broadcast", "tree":
            return total * _children((rank - root) % n, n)
    raise _unknown(collective, algorithm)


def _children(place: int, world_size: int) -> int:
    """Children in a binomial tree: each ``place + 2**j`` below N, ``2**j`` below its lowest bit."""
    room = (world_size - 1 - place).bit_length()
    if place == 0:
        return room
    lowest_bit = (place & -place).bit_length() - 1
    return min(lowest_bit, room)


def _busiest_in_tree(world_size: int, wide: int) -> int:
    """How many T the busiest rank sends: K at the root, or once up and then to its children."""
    if world_size == 1:
        return 0
    most_children_below_root = ((world_size - 1) // 3).bit_length()
    return max((world_size - 1).bit_length(), wide + most_children_below_root)


def _unknown(collective: str, algorithm: str) -> ValueError:
    return ValueError(f"there is no formula for {collective} by {algorithm!r}")
