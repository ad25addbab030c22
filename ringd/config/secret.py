"""The job's secret: both sides of a connection prove that they know it."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ringd.config.settings import Settings
from ringd.errors import ConfigError

MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 4096


def load_secret(settings: Settings) -> bytes:
    """The job's secret, from ``secret_file`` or RINGD_SECRET, without white space around it.

    Raises:
        ConfigError: none is set; the file cannot be read, or by others too; it is too short.
    """
    if settings.secret_file is not None:
        return _checked(_read_private(settings.secret_file), str(settings.secret_file))
    if settings.secret is not None:
        return _checked(settings.secret.reveal().encode(), "RINGD_SECRET")
    raise ConfigError(
        "no job secret is set: name a file with secret_file (`ringd config secret PATH` makes one) "
        "or set RINGD_SECRET",
        key="secret_file",
    )


def make_secret_file(path: Path) -> None:
    """Make a new random secret in a file of mode 0600; it appears whole, or not at all.

    Raises:
        ConfigError: the file is there already, or cannot be made.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32) + "\n")
            os.link(draft, path)  # unlike rename, never replaces a secret that is in use
        finally:
            draft.unlink()
    except OSError as exc:
        raise ConfigError(
            f"the secret file {path} cannot be made: {exc.strerror}; choose another path",
            key="secret_file",
        ) from exc


def _read_private(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as exc:
        raise ConfigError(
            f"the secret file {path} cannot be read: {exc.strerror}; name another (`ringd config "
            "secret PATH` makes one), the same on all hosts",
            key="secret_file",
        ) from exc
    if mode & 0o077:
        raise ConfigError(
            f"the secret file {path} is open to others (mode {mode:04o}): chmod 600 {path}",
            key="secret_file",
        )
    return content


def _checked(content: bytes, where: str) -> bytes:
    secret = content.strip()
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise ConfigError(
            f"the secret in {where} has {len(secret)} bytes; "
            f"{MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} are allowed",
            key="secret",
        )
    return secret
