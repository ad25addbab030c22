"""What a process may run out of, and how it is told from what else goes wrong."""

from __future__ import annotations

import errno
import os

import pytest

from ringd.config.resources import exhausted
from ringd.errors import ResourceError


def loaders(number: int) -> str:
    return f"/lib/x.so: cannot open shared object file: {os.strerror(number)}"


@pytest.mark.parametrize(
    ("error", "resource"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "file descriptors"),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "file descriptors"),
        (ImportError(loaders(errno.EMFILE)), "file descriptors"),
        (OSError(loaders(errno.EMFILE)), "file descriptors"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "memory"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "memory"),
        (ImportError(loaders(errno.ENOMEM)), "memory"),
        (
            RuntimeError(f"DefaultCPUAllocator: no. Error 12 ({os.strerror(errno.ENOMEM)})"),
            "memory",
        ),
        (MemoryError(), "memory"),
        (MemoryError("Unable to allocate 8 EiB"), "memory"),
    ],
)
def test_it_is_said_whose_it_is_and_what_is_lacking(error: Exception, resource: str) -> None:
    lack = exhausted(error, "rank 3's trainer", 3)
    assert isinstance(lack, ResourceError)
    assert lack.fields["resource"] == resource
    assert lack.fields["rank"] == 3
    assert lack.message.startswith("rank 3's trainer")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOENT, os.strerror(errno.ENOENT)),
        OSError("Too many"),
        ImportError("No module named 'torch'", name="torch"),
        ValueError(os.strerror(errno.EMFILE)),
    ],
)
def test_other_errors_are_none_of_them(error: Exception) -> None:
    assert exhausted(error, "rank 3's trainer", 3) is None
