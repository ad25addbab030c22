"""Nested state as a form that msgpack can carry, and back: tensors are numbered, not carried.

A node of the form is a list that begins with its kind; whatever is no list stands for itself:
None, bool, int, float, str, bytes.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ringd.errors import RingdError, UnsupportedTypeError
from ringd_client._tensors import adapter_of

MAX_DEPTH: Final = 100
_DICT, _ORDERED, _LIST, _TUPLE, _TENSOR, _SCALAR = "d", "o", "l", "t", "x", "s"
_KEYS: Final = (str, int, float, bool, bytes, type(None))
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor of the state.

    Attributes:
        library: "torch" or "numpy".
        tensor: the one that is sent, or a local one in its place; None: there is none.
        is_scalar: a numpy scalar, which travels as an array of no dimension.
    """

    library: str
    dtype: str
    shape: tuple[int, ...]
    tensor: Any
    is_scalar: bool = False

    def holding(self, tensor: Any) -> Leaf:
        """The same with another tensor, or with none."""
        return replace(self, tensor=tensor)


def taken_apart(state: Any) -> tuple[Any, list[Leaf]]:
    """The form of a state, and its tensors in the order in which the form has them.

    Raises:
        UnsupportedTypeError: something in it can't be carried; ``path`` says where.
    """
    leaves: list[Leaf] = []
    return _form(state, "state", 0, leaves), leaves


def leaves_of(form: Any, local: Any) -> list[Leaf]:
    """The tensors of a form, each with the local one at the same path, if that may be filled.

    It may if it is alike, contiguous and writable, and no other one has any of its memory.
    """
    leaves = list(_leaves(form, local))
    spans = [(*_span(leaf.tensor), i) for i, leaf in enumerate(leaves) if leaf.tensor is not None]
    end = 0
    for start, stop, index in sorted(spans):
        if start < end:
            leaves[index] = leaves[index].holding(None)
        end = max(end, stop)
    return leaves


def put_together(form: Any, tensors: Iterator[Any]) -> Any:
    """The state of a form, with these tensors in their order; containers are new."""
    if not isinstance(form, list):
        return form
    kind, *rest = form
    if kind in (_TENSOR, _SCALAR):
        tensor = next(tensors)
        return tensor[()] if kind == _SCALAR else tensor
    if kind in (_LIST, _TUPLE):
        items = [put_together(item, tensors) for item in rest]
        return items if kind == _LIST else tuple(items)
    pairs = ((key, put_together(item, tensors)) for key, item in _pairs(rest))
    return dict(pairs) if kind == _DICT else OrderedDict(pairs)


def _form(value: Any, path: str, depth: int, leaves: list[Leaf]) -> Any:
    if depth > MAX_DEPTH:
        raise _unsupported(
            path,
            f"it is nested more than {MAX_DEPTH} deep, or contains itself: pass less deep ones",
        )
    if isinstance(value, dict):
        form: list[Any] = [_ORDERED if isinstance(value, OrderedDict) else _DICT]
        for key, item in value.items():
            at = f"{path}[{key!r}]"
            if not isinstance(key, _KEYS):
                raise _unsupported(at, "a key is str, int, float, bool, bytes or None")
            form += (_plain(key, at), _form(item, at, depth + 1, leaves))
        return form
    if isinstance(value, list | tuple):
        if hasattr(value, "_fields"):
            raise _unsupported(path, f"{_name(value)} is a class of its own: pass tuple(...)")
        items = (_form(v, f"{path}[{i}]", depth + 1, leaves) for i, v in enumerate(value))
        return [_LIST if isinstance(value, list) else _TUPLE, *items]
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return _leaf(_SCALAR, numpy.asarray(value), path, leaves)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return _plain(value, path)
    return _leaf(_TENSOR, value, path, leaves)


def _plain(value: Any, path: str) -> Any:
    """What msgpack carries as it is."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise _unsupported(path, f"{value} does not fit 64 bits; pass it as text, or as bytes")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise _unsupported(path, f"its text is no Unicode ({exc.reason}): pass bytes") from exc
    return value


def _leaf(kind: str, value: Any, path: str, leaves: list[Leaf]) -> list[Any]:
    try:
        adapter = adapter_of(value)
        dtype, shape = adapter.describe(value)
    except RingdError as exc:
        raise _unsupported(path, exc.message) from exc
    leaf = Leaf(adapter.library, dtype, tuple(shape), value, kind == _SCALAR)
    leaves.append(leaf)
    return [kind, leaf.library, dtype, list(leaf.shape)]


def _leaves(form: Any, local: Any) -> Iterator[Leaf]:
    if not isinstance(form, list):
        return
    kind, *rest = form
    if kind in (_TENSOR, _SCALAR):
        library, dtype, shape = rest[0], rest[1], tuple(rest[2])
        is_alike = kind == _TENSOR and _described(local) == (library, dtype, shape)
        yield Leaf(library, dtype, shape, local if is_alike else None, kind == _SCALAR)
        return
    if kind in (_LIST, _TUPLE):
        fits = isinstance(local, list | tuple)
        for index, item in enumerate(rest):
            yield from _leaves(item, local[index] if fits and index < len(local) else None)
        return
    for key, item in _pairs(rest):
        yield from _leaves(item, local.get(key) if isinstance(local, dict) else None)


def _pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The keys and items of a mapping's form."""
    return zip(flat[::2], flat[1::2], strict=True)


def _described(value: Any) -> tuple[str, str, tuple[int, ...]] | None:
    """Of a tensor that results may be written to without gaps; None: it is none."""
    try:
        adapter = adapter_of(value)
        dtype, shape = adapter.describe(value)
        adapter.check_output(value)
        has_gaps = adapter.address(value) is None
    except RingdError:
        return None
    return None if has_gaps else (adapter.library, dtype, tuple(shape))


def _span(tensor: Any) -> tuple[int, int]:
    """Where a tensor without gaps lies in memory: start and end."""
    start = adapter_of(tensor).address(tensor) or 0
    return start, start + int(tensor.nbytes)


def _name(value: Any) -> str:
    return type(value).__qualname__


def _unsupported(path: str, why: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(f"{path} can't be carried: {why}", path=path)
