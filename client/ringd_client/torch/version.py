"""Which versions of torch the backend is for. Imports nothing that an old one may lack."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Final

from ringd.errors import ConfigError

OLDEST: Final = (2, 9)
NEWEST: Final = (2, 13)
"""The newest that was tried; docs/torch.md has all that were."""


@cache
def check_version(found: str) -> None:
    """Refuse what is too old to have the interfaces; warn once of what is newer than we know.

    Args:
        found: ``torch.__version__``. Of a text without numbers nothing is said.

    Raises:
        ConfigError: too old.
    """
    numbers = re.match(r"(\d+)\.(\d+)", found)
    version = tuple(map(int, numbers.groups())) if numbers else NEWEST
    if version < OLDEST:
        raise ConfigError(
            f"the backend ringd needs torch {_text(OLDEST)} or newer; this is {found}. Install a "
            "newer torch"
        )
    if version > NEWEST:
        warnings.warn(
            f"the backend ringd was tried with torch up to {_text(NEWEST)}; this is {found}. If a "
            "call fails in an odd way, say so to its maintainers",
            stacklevel=3,
        )


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
