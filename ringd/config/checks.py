"""What users give becomes settings: pydantic checks it by the types of ``ringd.config.fields``.

Only ``load`` imports this, and only where a flag, a variable or a file gives something.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from ringd.config import fields
from ringd.config.settings import Settings
from ringd.errors import ConfigError

_TYPES: Final = typing.get_type_hints(Settings, {"fields": fields}, include_extras=True)


def checked(given: Mapping[str, tuple[Any, str]]) -> Settings:
    """The settings that were given, as values; all others have their defaults.

    Args:
        given: setting → what was given, and where; each is a setting that there is.

    Raises:
        ConfigError: a value is malformed or out of range; its text names the setting, the value,
            its origin and what is allowed.
    """
    return Settings(**{name: _read(name, *told) for name, told in given.items()})


def allowed(name: str) -> str:
    """What a setting may be, in words.

    Raises:
        StopIteration: its type does not say it.
    """
    return next(part.text for part in _parts(_TYPES[name]) if isinstance(part, fields.Allowed))


def _parts(annotation: Any) -> list[Any]:
    """What was said of a type; of ``X | None`` it was said of X."""
    members = (annotation, *typing.get_args(annotation))
    return [part for member in members for part in getattr(member, "__metadata__", ())]


def _read(name: str, value: Any, origin: str) -> Any:
    try:
        return TypeAdapter(_TYPES[name]).validate_python(value)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False)[0]["msg"]
        reason = first.removeprefix("Value error, ").removeprefix("Input ")
        shown = "***" if name == "secret" else value
        raise ConfigError(
            f"{name} = {shown!r} ({origin}): {reason}; allowed: {allowed(name)}",
            key=name,
            value=str(shown),
            origin=origin,
        ) from None
