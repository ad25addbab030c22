"""The settings of a daemon's own rendezvous, and of one that stands alone."""

from __future__ import annotations

import pytest

from ringd.config.settings import Settings
from ringd.daemon.main import office_of, service_settings


@pytest.mark.parametrize(
    ("quorum", "alone", "embedded"),
    [("auto", False, True), ("majority", True, True), ("any", False, False)],
)
def test_the_rule_of_who_may_go_on(quorum: str, alone: bool, embedded: bool) -> None:
    settings = Settings(quorum=quorum)
    assert service_settings(settings).majority is alone
    assert office_of(settings).service_settings.majority is embedded
