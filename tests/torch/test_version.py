"""Versions of torch: too old, known, too new."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
import torch.distributed as dist

from ringd.errors import ConfigError
from ringd_client.torch import autoload
from ringd_client.torch.version import NEWEST, OLDEST, check_version

OLD = f"{OLDEST[0]}.{OLDEST[1] - 1}.1+cu128"
NEW = f"{NEWEST[0]}.{NEWEST[1] + 1}.0a0+git1234567"


def test_an_older_one_is_refused_before_anything_is_imported_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "__version__", OLD)
    monkeypatch.setitem(sys.modules, "ringd_client.torch.creation", None)  # ImportError
    for _ in range(2):
        with pytest.raises(
            dist.DistBackendError, match=r"needs torch .* this is " + OLD[:3]
        ) as told:
            autoload._create(None, None)
        assert isinstance(told.value, ConfigError)


def test_of_a_newer_one_is_warned_once() -> None:
    check_version.cache_clear()
    with pytest.warns(UserWarning, match=f"up to {NEWEST[0]}.{NEWEST[1]}; this is"):
        check_version(NEW)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_version(NEW)


@pytest.mark.parametrize("minor", range(OLDEST[1], NEWEST[1] + 1))
def test_of_those_between_nothing_is_said(minor: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_version(f"{OLDEST[0]}.{minor}.0+cpu")
        check_version("unknown")
