"""Precedence, origins, and what an error says."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringd.config.checks import allowed, checked
from ringd.config.loader import LAUNCHER, Loaded, load
from ringd.config.settings import NAMES, Settings
from ringd.config.values import HostPort, PortRange
from ringd.errors import ConfigError


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load_with(
    flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None, file: str = ""
) -> Loaded:
    if file:
        Path("ringd.toml").write_text(file)
    return load(flags or {}, environ=environ or {})


def test_the_defaults_are_those_that_the_documents_state() -> None:
    settings = load_with().settings
    assert (settings.timeout_s, settings.join_timeout_s, settings.recv_timeout_ms) == (300, 60, 0)
    assert (settings.segment_bytes, settings.eager_bytes) == (1 << 20, 64 << 10)
    assert settings.max_in_flight == 1024
    assert settings.port == PortRange(0, 0)
    assert set(load_with().origin.values()) == {"default"}


def test_flags_come_before_environment_before_file_before_defaults() -> None:
    everywhere = "rank = 3\nworld_size = 8\njob_id = 'file'\n"
    environ = {"RINGD_RANK": "2", "RINGD_WORLD_SIZE": "7"}
    loaded = load_with({"rank": 1}, environ, everywhere)
    s = loaded.settings
    assert (s.rank, s.world_size, s.job_id, s.timeout_s) == (1, 7, "file", 300)
    assert [loaded.origin[k] for k in ("rank", "world_size", "job_id", "timeout_s")] == [
        "flag",
        "environment RINGD_WORLD_SIZE",
        "file ringd.toml",
        "default",
    ]


def test_a_flag_that_was_not_given_hides_nothing() -> None:
    assert load_with({"rank": None}, {"RINGD_RANK": "2"}).settings.rank == 2


def test_an_empty_variable_is_not_set() -> None:
    loaded = load_with(environ={"RINGD_RANK": "", "RINGD_JOB_ID": ""})
    assert loaded.settings.rank is None
    assert loaded.origin["job_id"] == "default"


def test_texts_become_values() -> None:
    settings = load_with(
        environ={
            "RINGD_SEGMENT_BYTES": "256K",
            "RINGD_PORT": "7000-7010",
            "RINGD_RENDEZVOUS": "[::1]:7000",
            "RINGD_ADVERTISE": "node-1",
            "RINGD_DEBUG": "yes",
            "RINGD_LOG_LEVEL": "WARNING",
            "RINGD_SOCKET": "~/x.sock",
            "RINGD_TIMEOUT_S": "2.5",
        }
    ).settings
    assert settings.segment_bytes == 256 << 10
    assert settings.port == PortRange(7000, 7010)
    assert settings.rendezvous == HostPort("::1", 7000)
    assert settings.advertise == HostPort("node-1", 0)
    assert settings.debug is True
    assert settings.log_level == "warning"
    assert settings.socket == Path.home() / "x.sock"
    assert settings.timeout_s == 2.5


def test_a_file_may_write_numbers_as_numbers() -> None:
    settings = load_with(file="ip_version = 4\nport = 7000\nsegment_bytes = 8192\n").settings
    assert (settings.ip_version, settings.port.first, settings.segment_bytes) == ("4", 7000, 8192)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_with().settings.rank = 3  # type: ignore[misc]


class TestFile:
    def test_the_named_file_wins_over_the_variable_and_over_the_folder(
        self, tmp_path: Path
    ) -> None:
        for name in ("ringd", "variable", "named"):
            (tmp_path / f"{name}.toml").write_text(f"job_id = '{name}'\n")
        environ = {"RINGD_CONFIG": "variable.toml"}
        named = load({}, environ=environ, config_path=Path("named.toml"))
        assert named.settings.job_id == "named"
        assert load({}, environ=environ).settings.job_id == "variable"
        assert load({}, environ={}).settings.job_id == "ringd"

    def test_a_named_file_must_be_there(self) -> None:
        with pytest.raises(ConfigError, match=r"nope\.toml cannot be read: No such file"):
            load({}, environ={"RINGD_CONFIG": "nope.toml"})

    def test_a_malformed_file_is_named_with_the_line(self) -> None:
        with pytest.raises(ConfigError, match=r"ringd\.toml is not valid TOML.*line 2"):
            load_with(file="rank = 1\nworld_size =\n")

    def test_a_relative_path_is_relative_to_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc" / "job.toml").write_text("secret_file = 'job.secret'\n")
        loaded = load({}, environ={}, config_path=tmp_path / "etc" / "job.toml")
        assert loaded.settings.secret_file == tmp_path / "etc" / "job.secret"

    def test_a_table_is_no_value(self) -> None:
        with pytest.raises(ConfigError, match=r"rank = \{'a': 1\} \(file ringd\.toml\)"):
            load_with(file="[rank]\na = 1\n")


class TestUnknown:
    def test_a_misspelt_key_in_the_file(self) -> None:
        with pytest.raises(
            ConfigError, match=r"setting timout_s \(file ringd\.toml\).*'timeout_s'"
        ):
            load_with(file="timout_s = 3\n")

    def test_a_misspelt_variable(self) -> None:
        with pytest.raises(ConfigError, match="RINGD_WORLDSIZE.*did you mean 'RINGD_WORLD_SIZE'"):
            load_with(environ={"RINGD_WORLDSIZE": "2"})

    def test_a_word_that_is_near_to_nothing_gets_no_suggestion(self) -> None:
        with pytest.raises(ConfigError) as caught:
            load_with(environ={"RINGD_QQQQQQQQQQ": "2"})
        assert "did you mean" not in str(caught.value)

    @pytest.mark.parametrize("name", ["RINGD_BOGUS", "RINGD_STORE", "RINGD_FAST"])
    def test_what_only_shares_some_letters_is_not_suggested(self, name: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load_with(environ={name: "2"})
        assert "did you mean" not in str(caught.value)

    def test_a_misspelt_flag(self) -> None:
        with pytest.raises(ConfigError, match="--rnak.*did you mean 'rank'"):
            load_with({"rnak": 1})

    def test_what_kubernetes_sets_for_a_service_is_ignored_and_said(self) -> None:
        links = {
            "RINGD_PORT": "tcp://10.0.0.7:7000",
            "RINGD_PORT_7000_TCP": "tcp://10.0.0.7:7000",
            "RINGD_PORT_7000_TCP_ADDR": "10.0.0.7",
            "RINGD_PORT_53_UDP_PROTO": "udp",
            "RINGD_SERVICE_HOST": "10.0.0.7",
            "RINGD_SERVICE_PORT": "7000",
            "RINGD_SERVICE_PORT_RENDEZVOUS": "7000",
            "RINGD_MEET_PORT": "tcp://10.0.0.8:7000",
        }
        loaded = load_with(environ={**links, "RINGD_RANK": "3"})
        assert loaded.settings.rank == 3
        assert loaded.settings.port == PortRange(0, 0)
        [warning] = loaded.warnings()
        assert all(name in warning for name in links)
        assert "enableServiceLinks: false" in warning

    def test_a_port_of_ours_is_no_service(self) -> None:
        loaded = load_with(environ={"RINGD_PORT": "7000"})
        assert loaded.settings.port == PortRange(7000, 7000)
        assert loaded.warnings() == []
        with pytest.raises(ConfigError, match="RINGD_PORT"):
            load_with(environ={"RINGD_PORT": "http://x"})

    def test_others_variables_are_not_ours(self) -> None:
        assert load_with(environ={"PATH": "/bin", "RINGDX": "1"}).settings.rank is None


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("RANK", "-1"),
        ("RANK", "one"),
        ("WORLD_SIZE", "0"),
        ("WORLD_SIZE", "4097"),
        ("TIMEOUT_S", "0"),
        ("TIMEOUT_S", "inf"),
        ("TIMEOUT_S", "nan"),
        ("JOIN_TIMEOUT_S", "-2"),
        ("RECV_TIMEOUT_MS", "-1"),
        ("SEGMENT_BYTES", "1K"),
        ("SEGMENT_BYTES", "4097"),
        ("SEGMENT_BYTES", "32M"),
        ("EAGER_BYTES", "2M"),
        ("MAX_IN_FLIGHT", "0"),
        ("ARENA_LIMIT_BYTES", "1"),
        ("PORT", "70000"),
        ("RENDEZVOUS", "node-1"),
        ("ADVERTISE", "no host"),
        ("BIND", "127.0.0.1:7000"),
        ("INTERFACE", "far-too-long-a-name"),
        ("IP_VERSION", "5"),
        ("JOB_ID", "a b"),
        ("CONGESTION", "Cubic!"),
        ("SOCKET", "x" * 108),
        ("LOG_LEVEL", "loud"),
        ("LOG_JSON", "maybe"),
        ("HEARTBEAT_S", "0"),
        ("QUORUM", "some"),
        ("EMBED_RENDEZVOUS", "perhaps"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_origin_and_what_is_allowed(
    variable: str, text: str
) -> None:
    name = variable.lower()
    with pytest.raises(ConfigError) as caught:
        load_with(environ={f"RINGD_{variable}": text})
    error = caught.value
    assert str(error).startswith(f"{name} = {text!r} (environment RINGD_{variable}): ")
    assert str(error).endswith(f"; allowed: {allowed(name)}")
    assert (error.key, error.value, error.origin) == (name, text, f"environment RINGD_{variable}")


def test_a_truth_value_is_no_number() -> None:
    with pytest.raises(ConfigError, match="rank = True .* no number"):
        load_with(file="rank = true\n")


def test_every_setting_says_what_is_allowed() -> None:
    assert [name for name in NAMES if allowed(name) == "text"] == ["secret"]


def test_checks_and_settings_have_the_same_fields_and_defaults() -> None:
    assert checked({}) == Settings()
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    for name, default in defaults.items():
        if default is not None:  # null: "was not given", in no source
            assert checked({name: (default, "default")}) == Settings(), name
            assert checked({name: (str(default), "text")}) == Settings(), name


@pytest.mark.parametrize(
    ("given", "loads"),
    [
        ("flags={}, environ={}", False),
        ("flags={'rank': None}, environ={'RINGD_RANK': ''}", False),
        ("flags={'rank': 0}, environ={}", True),
        ("flags={}, environ={'RINGD_RANK': '0'}", True),
    ],
)
def test_pydantic_is_loaded_when_there_is_something_to_check(given: str, loads: bool) -> None:
    code = f"import sys; from ringd.config.loader import load; load({given})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('pydantic' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{loads}\n"


class TestTogether:
    def test_a_rank_beyond_the_world(self) -> None:
        with pytest.raises(ConfigError, match=r"rank \(flag\) and world_size .*allowed are 0 to 1"):
            load_with({"rank": 2}, {"RINGD_WORLD_SIZE": "2"})

    def test_more_ranks_to_begin_with_than_there_are(self) -> None:
        with pytest.raises(ConfigError, match=r"min_size \(env.* and world_size \(flag") as caught:
            load_with({"world_size": 2}, {"RINGD_MIN_SIZE": "3"})
        assert "allowed are 0 (all) to 2" in str(caught.value)
        assert load_with({"world_size": 2, "min_size": 2}).settings.min_size == 2
        assert load_with({"min_size": 3}).settings.world_size is None

    def test_two_ways_to_say_where_to_listen(self) -> None:
        with pytest.raises(ConfigError, match="bind.*interface"):
            load_with({"bind": "127.0.0.1", "interface": "lo"})

    @pytest.mark.parametrize("dead_after_s", ["2", "1.5"])
    def test_silence_that_a_living_one_may_keep(self, dead_after_s: str) -> None:
        with pytest.raises(ConfigError, match=r"dead_after_s \(env.* and heartbeat_s") as caught:
            load_with({"heartbeat_s": 1.0}, {"RINGD_DEAD_AFTER_S": dead_after_s})
        assert "more than twice heartbeat_s" in str(caught.value)
        assert load_with({"heartbeat_s": 0.5}, {"RINGD_DEAD_AFTER_S": "1.5"})

    def test_two_secrets(self) -> None:
        with pytest.raises(ConfigError, match="which one is meant") as caught:
            load_with({"secret_file": "x"}, {"RINGD_SECRET": "hush-hush-hush-hush"})
        assert "hush" not in str(caught.value)


class TestSecret:
    def test_it_is_taken_from_the_environment_and_never_shown(self) -> None:
        settings = load_with(environ={"RINGD_SECRET": "hush-hush-hush-hush"}).settings
        assert settings.secret is not None
        assert settings.secret.reveal() == "hush-hush-hush-hush"
        assert "hush" not in repr(settings)

    @pytest.mark.parametrize(
        ("flags", "file"), [({"secret": "hush-hush"}, ""), ({}, "secret = 'hush-hush'\n")]
    )
    def test_flags_and_files_may_not_hold_it(self, flags: dict[str, Any], file: str) -> None:
        with pytest.raises(ConfigError, match="RINGD_SECRET only") as caught:
            load_with(flags, file=file)
        assert "hush" not in str(caught.value)


class TestUses:
    def test_require_says_how_to_set_what_is_missing(self) -> None:
        loaded = load_with({"rank": 0})
        loaded.require("rank")
        with pytest.raises(ConfigError, match="--world-size, RINGD_WORLD_SIZE, or world_size in"):
            loaded.require("rank", "world_size")

    def test_a_rendezvous_is_open_to_this_machine_only_unless_asked(self) -> None:
        assert load_with().settings.rendezvous_listen() == ("127.0.0.1", PortRange(0, 0))

    def test_a_rendezvous_listens_where_daemons_dial_it(self) -> None:
        settings = load_with({"rendezvous": "10.0.0.1:7000"}).settings
        assert settings.rendezvous_listen() == ("10.0.0.1", PortRange(7000, 7000))

    def test_bind_and_port_say_otherwise(self) -> None:
        settings = load_with(
            {"rendezvous": "10.0.0.1:7000", "bind": "0.0.0.0", "port": "8000-8001"}
        ).settings
        assert settings.rendezvous_listen() == ("0.0.0.0", PortRange(8000, 8001))

    def test_the_socket_is_the_ranks_own_in_the_users_folder(self) -> None:
        environ = {"XDG_RUNTIME_DIR": "/run/user/7"}
        assert load_with({"rank": 3}, environ).socket_path == Path(
            "/run/user/7/ringd/default-3.sock"
        )
        assert load_with({"socket": "/x/y.sock"}, environ).socket_path == Path("/x/y.sock")

    def test_overrides_are_what_a_child_must_be_told(self) -> None:
        environ = {"RINGD_SECRET": "hush-hush-hush-hush", "RINGD_PORT": "7000-7001"}
        assert load_with({"rank": 3}, environ).overrides() == {
            "rank": 3,
            "port": PortRange(7000, 7001),
        }


class TestHandedOn:
    """What a launcher has checked, for a daemon that it starts."""

    def test_a_daemon_has_what_the_launcher_had_and_its_place(self) -> None:
        environ = {"RINGD_SECRET": "hush-hush-hush-hush", "RINGD_PORT": "7000-7001"}
        placed = load_with({"timeout_s": "2.5"}, environ).placed(rank=1, socket=Path("/x/y.sock"))
        heard = Loaded.from_line(placed.to_line())
        assert heard.settings.secret is not None
        assert heard.settings.secret.reveal() == "hush-hush-hush-hush"
        plain = {"secret": None}
        assert dataclasses.replace(heard.settings, **plain) == Settings(
            rank=1, socket=Path("/x/y.sock"), timeout_s=2.5, port=PortRange(7000, 7001)
        )
        assert heard.runtime_dir == placed.runtime_dir
        assert heard.origin["rank"] == LAUNCHER
        assert heard.origin["port"] == "environment RINGD_PORT"
        assert heard.origin["job_id"] == "default"

    def test_it_is_one_line(self) -> None:
        line = load_with({"job_id": "x" * 64, "accounting": "/a/\n/" + "b" * 500}).to_line()
        assert line.index(b"\n") == len(line) - 1

    def test_a_place_that_contradicts_what_was_given_is_refused(self) -> None:
        given = load_with(environ={"RINGD_MIN_SIZE": "3"})
        with pytest.raises(ConfigError, match=r"MIN_SIZE\) and world_size \(the launcher\)"):
            given.placed(world_size=2)
