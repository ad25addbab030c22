"""The nearest known word for a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """A clause to put behind an error's text, or "" when nothing is near.

    A ``prefix`` that all words have makes none of them nearer.

    >>> did_you_mean("timout_s", ["timeout_s", "rank"])
    "; did you mean 'timeout_s'?"
    """
    by_folded = {k.removeprefix(prefix).casefold(): k for k in known}
    from difflib import get_close_matches  # seldom needed

    near = get_close_matches(word.removeprefix(prefix).casefold(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""
