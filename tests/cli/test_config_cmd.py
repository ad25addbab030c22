"""``ringd config show`` and ``ringd config secret``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

from ringd.config.settings import NAMES

Invoke = Callable[..., Result]


def test_show_prints_value_and_origin_in_columns_for_other_programs(ringd: Invoke) -> None:
    Path("ringd.toml").write_text("segment_bytes = '256K'\nlog_json = true\n")
    result = ringd("config", "show", RINGD_TIMEOUT_S="30", RINGD_SECRET="hush-hush-hush-hush")
    assert result.exit_code == 0
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [name for name, _, _ in rows] == list(NAMES)
    for row in (
        ["timeout_s", "30.0", "environment RINGD_TIMEOUT_S"],
        ["segment_bytes", "256K", "file ringd.toml"],
        ["log_json", "true", "file ringd.toml"],
        ["secret", "***", "environment RINGD_SECRET"],
        ["rank", "", "default"],
    ):
        assert row in rows
    assert "hush" not in result.output


def test_show_as_json(ringd: Invoke) -> None:
    result = ringd("config", "show", "--json", RINGD_PORT="7000-7010", RINGD_SECRET="x" * 20)
    shown = json.loads(result.stdout)
    assert shown["port"] == {"value": "7000-7010", "origin": "environment RINGD_PORT"}
    assert shown["secret"] == {"value": "***", "origin": "environment RINGD_SECRET"}
    assert shown["eager_bytes"] == {"value": 65536, "origin": "default"}
    assert shown["rank"] == {"value": None, "origin": "default"}


def test_show_reads_the_file_that_is_named(ringd: Invoke) -> None:
    Path("job.toml").write_text("job_id = 'digits'\n")
    result = ringd("config", "show", "--config", "job.toml")
    assert "job_id\tdigits\tfile job.toml\n" in result.stdout


def test_a_misspelt_key_is_one_line_and_exit_code_2(ringd: Invoke) -> None:
    Path("ringd.toml").write_text("timout_s = 3\n")
    result = ringd("config", "show")
    assert result.exit_code == 2
    assert result.stderr == (
        "ringd: unknown setting timout_s (file ringd.toml); did you mean 'timeout_s'?\n"
    )


def test_secret_makes_a_file_that_daemons_accept(ringd: Invoke) -> None:
    assert ringd("config", "secret", "job.secret").exit_code == 0
    assert Path("job.secret").stat().st_mode & 0o777 == 0o600
    again = ringd("config", "secret", "job.secret")
    assert again.exit_code == 2
    assert "File exists" in again.stderr
