"""The start of a rank's own daemon, where this process has no room for it."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from typing import Any

import pytest

from ringd.errors import ResourceError
from ringd_client.torch.child import Child


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("step", [(socket, "socketpair"), (subprocess, "Popen")])
def test_what_is_lacking_is_said(
    monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str], number: int
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(*step, refuse)
    with pytest.raises(ResourceError, match=rf"\(process {os.getpid()}\)"):
        Child.start()


def test_another_cause_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(PermissionError):
        Child.start()
