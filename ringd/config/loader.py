"""Merge flags, environment, file and defaults, and remember where each value came from."""

from __future__ import annotations

import binascii
import dataclasses
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringd.config import environment
from ringd.config.settings import NAMES, Settings
from ringd.errors import ConfigError

DEFAULT_FILE = Path("ringd.toml")
"""Read from the working directory when nobody names another."""
DEFAULT = "default"
LAUNCHER = "the launcher"
_PATHS = frozenset({"socket", "secret_file", "accounting", "dump_dir"})

Sourced = dict[str, tuple[Any, str]]
"""Setting → value as given, and where it came from."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings that hold, and the origin of each.

    Attributes:
        settings: the values.
        origin: setting → "flag", "environment RINGD_X", "file PATH", "default", or "the launcher":
            the program that starts a daemon set it.
        runtime_dir: the user's folder for Unix sockets; it may not exist yet.
        service_links: variables that are Kubernetes' and no settings of ours; see ``warnings``.
    """

    settings: Settings
    origin: Mapping[str, str]
    runtime_dir: Path
    service_links: tuple[str, ...] = ()

    def warnings(self) -> list[str]:
        """What is odd about the settings and does not forbid a start, to be logged once."""
        if not self.service_links:
            return []
        text = (
            f"ignored {', '.join(self.service_links)} in the environment: Kubernetes sets them for "
            "a service of that name, they are no settings; rename the service, or set "
            "enableServiceLinks: false for the pod"
        )
        return [text]

    def require(self, *names: str) -> None:
        """Insist that these were set.

        Raises:
            ConfigError: says how to set the first one that was not.
        """
        for name in names:
            if getattr(self.settings, name) is None:
                raise ConfigError(
                    f"{name} is not set: give {flag(name)}, {environment.variable(name)}, "
                    f"or {name} in {DEFAULT_FILE}",
                    key=name,
                )

    def overrides(self) -> dict[str, Any]:
        """All that is not a default, for a child's environment; the secret itself is left out."""
        return {
            name: getattr(self.settings, name)
            for name, origin in self.origin.items()
            if origin != DEFAULT and name != "secret"
        }

    def placed(self, by: str = LAUNCHER, /, **settings: Any) -> Loaded:
        """The same with these settings, which this program knows by itself.

        To what a launcher starts it passes no ``service_links``: it has told of them itself.

        Args:
            by: their origin.
            settings: values of the fields' types; they are not checked.

        Raises:
            ConfigError: they contradict what was given.
        """
        replaced = dataclasses.replace(self.settings, **settings)
        origin = {**self.origin, **dict.fromkeys(settings, by)}
        _check_together(replaced, origin)
        links = () if by == LAUNCHER else self.service_links
        return Loaded(replaced, origin, self.runtime_dir, links)

    def to_line(self) -> bytes:
        """For the standard input of a daemon that this program starts; it holds the secret."""
        return binascii.b2a_base64(pickle.dumps(self))

    @staticmethod
    def from_line(line: bytes) -> Loaded:
        """What our parent has checked. It may run any code here: it started us."""
        loaded = pickle.loads(binascii.a2b_base64(line))
        assert isinstance(loaded, Loaded)
        return loaded

    @property
    def socket_path(self) -> Path:
        """The daemon's Unix socket: as set, else by job and rank in the user's runtime folder."""
        if self.settings.socket is not None:
            return self.settings.socket
        rank = self.settings.rank if self.settings.rank is not None else 0
        return self.runtime_dir / f"{self.settings.job_id}-{rank}.sock"


def load(
    flags: Mapping[str, Any], *, environ: Mapping[str, str], config_path: Path | None = None
) -> Loaded:
    """The settings that hold: flags before environment before file before defaults.

    Args:
        flags: setting → value; None means that the flag was not given.
        environ: the process's environment (``environment.snapshot()``).
        config_path: the file to read; else RINGD_CONFIG, else ``ringd.toml`` if it is there.

    Raises:
        ConfigError: a setting is unknown, malformed or out of range, or two contradict each
            other; its text names the setting, the value, its origin and what is allowed.
    """
    links = tuple(k for k, v in environ.items() if environment.is_service_link(k, v))
    given = {
        **_from_file(_find_file(environ, config_path)),
        **_from_environment({k: v for k, v in environ.items() if k not in links}),
        **_from_flags(flags),
    }
    origin = {name: given[name][1] if name in given else DEFAULT for name in NAMES}
    settings = _checked(given) if given else Settings()
    _check_together(settings, origin)
    return Loaded(settings, origin, environment.runtime_dir(environ), links)


def flag(setting: str) -> str:
    """The flag that carries a setting: ``job_id`` is --job-id, ``timeout_s`` is --timeout."""
    return "--" + setting.removesuffix("_s").replace("_", "-")


def _from_flags(flags: Mapping[str, Any]) -> Sourced:
    given = {name: value for name, value in flags.items() if value is not None}
    for name in given:
        _check_known(name, shown=flag(name), origin="flag")
    return {name: (value, "flag") for name, value in given.items()}


def _from_environment(environ: Mapping[str, str]) -> Sourced:
    known = {environment.variable(name): name for name in NAMES}
    found: Sourced = {}
    for variable, value in environ.items():
        if not variable.startswith(environment.PREFIX) or variable == environment.CONFIG_VARIABLE:
            continue
        if variable not in known:
            from ringd.config.suggest import did_you_mean

            words = [*known, environment.CONFIG_VARIABLE]
            near = did_you_mean(variable, words, prefix=environment.PREFIX)
            raise ConfigError(f"unknown variable {variable} in the environment{near}", key=variable)
        if value:  # an empty variable is how scripts and compose files say "not set"
            found[known[variable]] = (value, f"environment {variable}")
    return found


def _find_file(environ: Mapping[str, str], config_path: Path | None) -> Path | None:
    if config_path is not None:
        return config_path
    if environ.get(environment.CONFIG_VARIABLE):
        return Path(environ[environment.CONFIG_VARIABLE])
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _from_file(path: Path | None) -> Sourced:
    if path is None:
        return {}
    import tomllib  # most daemons have no file

    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as exc:
        raise ConfigError(
            f"the settings file {path} cannot be read: {exc.strerror}; name another with --config"
        ) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(
            f"the settings file {path} is not valid TOML: {exc}; correct it there"
        ) from exc
    origin = f"file {path}"
    for key in content:
        _check_known(key, shown=key, origin=origin)
    return {key: (_beside(path, key, value), origin) for key, value in content.items()}


def _beside(path: Path, key: str, value: Any) -> Any:
    """Relative paths in a file are relative to the file."""
    if key in _PATHS and isinstance(value, str) and value:
        return path.parent / Path(value).expanduser()
    return value


def _check_known(name: str, *, shown: str, origin: str) -> None:
    if name == "secret":
        raise ConfigError(
            f"the secret itself is taken from RINGD_SECRET only, not from a {origin}; "
            "secret_file may name a file that holds it",
            key=name,
            origin=origin,
        )
    known = [known for known in NAMES if known != "secret"]
    if name not in known:
        from ringd.config.suggest import did_you_mean

        raise ConfigError(
            f"unknown setting {shown} ({origin}){did_you_mean(name, known)}",
            key=name,
            origin=origin,
        )


def _checked(given: Sourced) -> Settings:
    from ringd.config.checks import checked  # pydantic: a third of the start of a daemon

    return checked(given)


def _check_together(settings: Settings, origin: Mapping[str, str]) -> None:
    def contradict(first: str, second: str, why: str) -> ConfigError:
        return ConfigError(
            f"{first} ({origin[first]}) and {second} ({origin[second]}) {why}", key=first
        )

    rank, world_size = settings.rank, settings.world_size
    if rank is not None and world_size is not None and rank >= world_size:
        raise contradict(
            "rank",
            "world_size",
            f"do not fit: rank is {rank}, allowed are 0 to {world_size - 1}",
        )
    if world_size is not None and settings.min_size > world_size:
        raise contradict(
            "min_size",
            "world_size",
            f"do not fit: {settings.min_size} ranks never come where there are {world_size}; "
            f"allowed are 0 (all) to {world_size}",
        )
    if settings.dead_after_s <= 2 * settings.heartbeat_s:
        raise contradict(
            "dead_after_s",
            "heartbeat_s",
            f"do not fit: who says every {settings.heartbeat_s:g} s that it lives may not be taken "
            f"for dead after {settings.dead_after_s:g} s; allowed is more than twice heartbeat_s",
        )
    if settings.bind and settings.interface:
        raise contradict("bind", "interface", "are both set; one of them says where to listen")
    if settings.secret is not None and settings.secret_file is not None:
        raise contradict("secret", "secret_file", "are both set; which one is meant?")
