"""Each command hands its flags to the part that does the work."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import Result

from ringd.bench.matrix import Matrix
from ringd.cli import options
from ringd.config.settings import NAMES, Settings
from ringd.config.values import PortRange, format_size
from ringd.errors import DaemonLostError
from ringd.observe import explain_view
from ringd.transport.tcp import KNOWN_CONGESTIONS

Invoke = Callable[..., Result]
StandIn = Callable[[str, str], Any]


def flags_of_settings() -> dict[str, Any]:
    """Flag → its typer option, for the flags in ``options``."""
    found = {}
    for alias in vars(options).values():
        for option in get_args(alias)[1:] if hasattr(alias, "__metadata__") else ():
            found[option.default] = option
            for name in option.param_decls or ():
                found[name] = option
    return {name: option for name, option in found.items() if str(name).startswith("--")}


def test_defaults_in_the_help_are_those_of_the_settings() -> None:
    defaults = Settings()
    checked = 0
    for flag, option in flags_of_settings().items():
        stated = re.search(r"\(default: (\S+)\)", option.help)
        if stated is None:
            continue
        name = flag[2:].replace("-", "_")
        name = name if name in NAMES else f"{name}_s"
        value = getattr(defaults, name)
        text = format_size(value) if name.endswith("_bytes") else f"{value}".removesuffix(".0")
        assert stated[1] == text, flag
        checked += 1
    assert checked >= 10


def test_daemon(ringd: Invoke, stand_in: StandIn) -> None:
    calls = stand_in("ringd.daemon.main", "run_daemon")
    result = ringd(
        "daemon", "--rank", "1", "--rendezvous", "127.0.0.1:7000", "--port", "7001-7009",
        "--segment-bytes", "64K", "--timeout", "2.5", "--socket", "x.sock", "--log-json",
        "--dump-dir", "dumps",
        RINGD_WORLD_SIZE="4",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    ((loaded,), _) = calls[0]
    settings = loaded.settings
    assert (settings.rank, settings.world_size, settings.timeout_s) == (1, 4, 2.5)
    assert (settings.port, settings.segment_bytes) == (PortRange(7001, 7009), 65536)
    assert (settings.socket, settings.log_json) == (Path("x.sock"), True)
    assert settings.dump_dir == Path("dumps")
    assert loaded.origin["rank"] == "flag"
    assert loaded.origin["world_size"] == "environment RINGD_WORLD_SIZE"


def test_daemon_says_what_is_missing_before_it_loads_anything(ringd: Invoke) -> None:
    result = ringd("daemon", "--world-size", "2")
    assert result.exit_code == 2
    assert result.stderr.startswith("ringd: rank is not set: give --rank, RINGD_RANK")


def test_rendezvous(ringd: Invoke, stand_in: StandIn) -> None:
    calls = stand_in("ringd.daemon.rendezvous_main", "run_rendezvous")
    assert ringd("rendezvous", "--world-size", "4", "--bind", "10.0.0.1").exit_code == 0
    ((loaded,), _) = calls[0]
    assert (loaded.settings.world_size, loaded.settings.bind) == (4, "10.0.0.1")


class TestRun:
    @pytest.fixture
    def calls(self, stand_in: StandIn) -> Any:
        calls = stand_in("ringd.launch.run", "run")
        calls.outcome = 0
        return calls

    def test_what_stands_behind_the_dashes_is_kept_verbatim(
        self, ringd: Invoke, calls: Any
    ) -> None:
        command = ["python", "-m", "x", "--debug", "-n", "9", "--", "--help", "a b"]
        result = ringd(
            "run", "-n", "2", "--accounting", "a.jsonl", "--timeout", "9", "--", *command
        )
        assert result.exit_code == 0, result.output
        ((got, n, loaded), _) = calls[0]
        assert (got, n) == (command, 2)
        settings = loaded.settings
        assert (settings.world_size, settings.timeout_s) == (2, 9)
        assert (settings.accounting, settings.debug) == (Path("a.jsonl"), False)

    def test_the_dashes_may_be_left_out(self, ringd: Invoke, calls: Any) -> None:
        assert ringd("run", "-n", "2", "prog", "--lr", "1", "--", "x").exit_code == 0
        assert calls[0][0][0] == ["prog", "--lr", "1", "--", "x"]

    def test_the_trainers_exit_code_is_passed_on(self, ringd: Invoke, calls: Any) -> None:
        calls.outcome = 37
        assert ringd("run", "-n", "2", "--", "false").exit_code == 37

    @pytest.mark.parametrize(
        "args", [["-n", "0", "--", "x"], ["-n", "5000", "--", "x"], ["-n", "2"], ["--", "x"]]
    )
    def test_a_wrong_use_is_2(self, ringd: Invoke, calls: Any, args: list[str]) -> None:
        assert ringd("run", *args).exit_code == 2
        assert not calls


@pytest.mark.parametrize(
    "args", [["run", "-n", "2", "--", "true"], ["rendezvous", "--world-size", "2"]]
)
def test_a_congestion_control_that_the_kernel_lacks_is_2(ringd: Invoke, args: list[str]) -> None:
    secret = "a secret of the tests"
    result = ringd(*args, RINGD_CONGESTION="foo", RINGD_SECRET=secret)
    assert result.exit_code == 2
    origin = "environment RINGD_CONGESTION"
    assert result.stderr.startswith(f"ringd: congestion = 'foo' ({origin}): the kernel does not")
    for known in KNOWN_CONGESTIONS.read_text().split():
        assert known in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["run", "-n", "2", "--", "true"],
        ["rendezvous", "--world-size", "2"],
        ["daemon", "--rank", "0", "--world-size", "2", "--rendezvous", "127.0.0.1:1"],
    ],
)
def test_an_address_that_this_host_has_not_is_2(ringd: Invoke, args: list[str]) -> None:
    result = ringd(*args, RINGD_BIND="198.51.100.7", RINGD_SECRET="a secret of the tests")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "ringd: bind = '198.51.100.7' (environment RINGD_BIND): can't listen there ("
    )
    assert "this host has 127.0.0.1 (lo)" in result.stderr


def test_a_rendezvous_told_of_an_address_that_is_not_its_own_is_2(ringd: Invoke) -> None:
    args = ["rendezvous", "--world-size", "2", "--rendezvous", "198.51.100.7:7000"]
    result = ringd(*args, RINGD_SECRET="a secret of the tests")
    assert result.exit_code == 2
    assert result.stderr.startswith("ringd: rendezvous = '198.51.100.7:7000' (flag): can't listen")


@pytest.mark.parametrize("how", ["flag", "environment RINGD_PORT"])
def test_fewer_ports_than_daemons_of_a_job_are_2(ringd: Invoke, how: str) -> None:
    flags, environ = ["--port", "7160-7161"], {}
    if how != "flag":
        flags, environ = [], {"RINGD_PORT": "7160-7161"}
    result = ringd("run", "-n", "3", *flags, "--", "true", **environ)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"ringd: port = 7160-7161 ({how}): too few, as each of the 3")


def test_a_job_that_could_never_begin_is_2(ringd: Invoke) -> None:
    result = ringd("run", "-n", "2", "--min-size", "3", "--", "true")
    assert result.exit_code == 2
    assert result.stderr.startswith("ringd: min_size (flag) and world_size (flag) do not fit")


def test_status(ringd: Invoke, stand_in: StandIn) -> None:
    calls = stand_in("ringd.observe.status_view", "show")
    assert ringd("status", "--socket", "x.sock", "--json").exit_code == 0
    assert ringd("status", "--local").exit_code == 0
    assert [kwargs for _, kwargs in calls] == [
        {"scope": "group", "as_json": True},
        {"scope": "daemon", "as_json": False},
    ]
    assert calls[0][0][0].socket_path == Path("x.sock")


@pytest.mark.parametrize("command", ["status", "dump"])
def test_which_of_several_jobs_is_a_question_of_usage(
    ringd: Invoke, tmp_path: Path, command: str
) -> None:
    with contextlib.ExitStack() as daemons:
        for job in ("run-1", "run-2"):
            path = tmp_path / "ringd" / job / "0.sock"
            path.parent.mkdir(parents=True)
            sock = daemons.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            sock.bind(str(path))
            sock.listen()
        result = ringd(command, XDG_RUNTIME_DIR=str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.startswith("ringd: which job? Give --job-id NAME, or --socket PATH;")
    assert ringd(command, XDG_RUNTIME_DIR=str(tmp_path)).exit_code == 4, "there is none"


class TestDump:
    @pytest.fixture
    def calls(self, stand_in: StandIn) -> Any:
        calls = stand_in("ringd.observe.dump_view", "dump")
        calls.outcome = ([Path("d/flight-rank1-epoch1.json")], [])
        return calls

    def test_it_prints_the_files(self, ringd: Invoke, calls: Any) -> None:
        result = ringd("dump", "--rank", "1", "--job-id", "digits", "--out", "d")
        assert (result.exit_code, result.stdout) == (0, "d/flight-rank1-epoch1.json\n")
        (((loaded, folder), _),) = calls
        assert (loaded.settings.rank, loaded.settings.job_id) == (1, "digits")
        assert folder == Path("d")

    def test_a_daemon_that_does_not_answer_is_told_beside_the_files(
        self, ringd: Invoke, calls: Any
    ) -> None:
        calls.outcome = (calls.outcome[0], [DaemonLostError("no daemon answers at 2.sock")])
        result = ringd("dump")
        assert result.exit_code == 4
        assert result.stdout == "d/flight-rank1-epoch1.json\n"
        assert result.stderr == "ringd: no daemon answers at 2.sock\n"

    def test_when_none_answers_it_is_an_error(self, ringd: Invoke, calls: Any) -> None:
        calls.outcome = ([], [DaemonLostError("no daemon answers at 2.sock")])
        result = ringd("dump", "--socket", "2.sock")
        assert (result.exit_code, result.stdout) == (4, "")
        assert result.stderr == "ringd: no daemon answers at 2.sock\n"


def test_explain(ringd: Invoke, stand_in: StandIn) -> None:
    calls = stand_in("ringd.observe.explain_view", "show")
    assert ringd("explain", "dumps", "b.json", "--json").exit_code == 0
    assert calls == [(([Path("dumps"), Path("b.json")],), {"as_json": True})]


def test_explain_without_arguments_takes_the_last_failure(
    ringd: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[list[Path]] = []
    monkeypatch.setattr(explain_view, "show", lambda paths, as_json: shown.append(paths))
    folder = tmp_path / "ringd" / "last-failure"
    result = ringd("explain", XDG_RUNTIME_DIR=str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.startswith("ringd: which dumps? Name files of ringd dump")
    folder.mkdir(parents=True)
    (folder / "flight-rank1-epoch1.json").write_text("{}")
    result = ringd("explain", "--json", XDG_RUNTIME_DIR=str(tmp_path))
    assert (result.exit_code, shown) == (0, [[folder]])
    assert result.stderr == f"ringd: the last failure's, in {folder}\n"


def test_no_help_says_a_default_twice(ringd: Invoke) -> None:
    for command in ("dump", "run", "explain", "status", "daemon", "rendezvous", "bench", "demo"):
        text = " ".join(ringd(command, "--help", COLUMNS="200").stdout.split())
        assert not re.search(r"\(default: [^)]*\)[^-]{0,20}\[default:", text), command


def test_explain_without_a_dump_is_2(ringd: Invoke) -> None:
    Path("empty").mkdir()
    result = ringd("explain", "empty")
    assert result.exit_code == 2
    assert result.stderr.startswith("ringd: no dump was found")


def test_demo(ringd: Invoke, stand_in: StandIn) -> None:
    calls = stand_in("ringd.demo.main", "run")
    calls.outcome = 1
    assert ringd("demo", "--json", "d.json", "--plot", "plots").exit_code == 1
    assert calls[0][1] == {"json_path": Path("d.json"), "plot_dir": Path("plots")}


class TestBench:
    @pytest.fixture
    def calls(self, stand_in: StandIn) -> Any:
        calls = stand_in("ringd.bench.main", "run")
        calls.outcome = 0
        return calls

    def test_its_defaults(self, ringd: Invoke, calls: Any) -> None:
        assert ringd("bench").exit_code == 0
        (args, kwargs) = calls[0]
        assert args[0] == Matrix(
            ops=["all_reduce"],
            sizes_bytes=[1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20],
            world_sizes=[2, 4],
            peers=["gloo"],
            dtype="float32",
            algorithms=["auto"],
            memory=["ordinary", "arena"],
        )
        assert kwargs == {"rounds": 5, "json_path": None, "quick": False, "lab": None}

    def test_its_flags(self, ringd: Invoke, calls: Any) -> None:
        result = ringd(
            "bench", "--op", "broadcast", "--op", "reduce", "--sizes", "1K, 2K", "-n", "3",
            "-n", "5", "--peers", "none", "--rounds", "7", "--dtype", "bfloat16",
            "--algorithm", "tree", "--algorithm", "auto", "--memory", "arena",
            "--json", "b.json", "--quick",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        (args, kwargs) = calls[0]
        assert args[0] == Matrix(
            ops=["broadcast", "reduce"],
            sizes_bytes=[1024, 2048],
            world_sizes=[3, 5],
            peers=[],
            dtype="bfloat16",
            algorithms=["tree", "auto"],
            memory=["arena"],
        )
        expected = {"rounds": 7, "json_path": Path("b.json"), "quick": True, "lab": None}
        assert kwargs == expected

    def test_lists_take_commas_and_may_be_repeated(self, ringd: Invoke, calls: Any) -> None:
        result = ringd(
            "bench", "--op", "broadcast,reduce", "--op", "barrier", "--sizes", "1K", "--sizes",
            "2K,4K", "-n", "3,5", "-n", "2", "--peers", "gloo", "--algorithm", "tree,auto",
            "--memory", "arena", "--memory", "ordinary",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        matrix = calls[0][0][0]
        assert matrix.ops == ["broadcast", "reduce", "barrier"]
        assert matrix.sizes_bytes == [1024, 2048, 4096]
        assert matrix.world_sizes == [3, 5, 2]
        assert matrix.algorithms == ["tree", "auto"]
        assert matrix.memory == ["arena", "ordinary"]

    def test_faults(self, ringd: Invoke, stand_in: StandIn) -> None:
        calls = stand_in("ringd.bench.faults.main", "run")
        calls.outcome = 1
        result = ringd(
            "bench", "--faults", "--kinds", "raise,kill-daemon,raise", "-n", "2", "-n", "5",
            "--rounds", "40", "--json", "f.json",
        )  # fmt: skip
        assert result.exit_code == 1, result.output
        ((names,), kwargs) = calls[0]
        assert names == ["raise", "kill-daemon"]
        assert kwargs == {"world_sizes": [2, 5], "rounds": 40, "json_path": Path("f.json")}
        assert ringd("bench", "--faults").exit_code == 1
        ((names,), kwargs) = calls[1]
        assert {"kill-trainer", "stop-daemon", "reset-link", "kill-rendezvous"} <= set(names)
        assert kwargs == {"world_sizes": [3], "rounds": 10, "json_path": None}

    def test_torch(self, ringd: Invoke, stand_in: StandIn) -> None:
        calls = stand_in("ringd.bench.torch.main", "run")
        calls.outcome = 0
        assert ringd("bench", "--torch", "--quick", "--json", "t.json").exit_code == 0
        path = Path("t.json")
        assert calls == [(([2],), {"rounds": 5, "json_path": path, "quick": True})]

    def test_startup(self, ringd: Invoke, stand_in: StandIn) -> None:
        calls = stand_in("ringd.bench.startup.main", "run")
        calls.outcome = 0
        assert ringd("bench", "--startup", "-n", "2,3", "--rounds", "7").exit_code == 0
        assert calls == [(([2, 3],), {"rounds": 7, "json_path": None})]

    def test_stages(self, ringd: Invoke, stand_in: StandIn) -> None:
        calls = stand_in("ringd.bench.stages.main", "run")
        calls.outcome = 0
        assert ringd("bench", "--stages").exit_code == 0
        usual: dict[str, Any] = {
            "ops": ["all_reduce"],
            "sizes_bytes": [1 << 10, 64 << 10],
            "world_sizes": [2],
            "peers": [],
            "dtype": "float32",
            "algorithms": ["auto"],
            "memory": ["ordinary"],
        }
        words = {"rounds": 5, "json_path": None, "quick": False}
        assert calls[0] == ((Matrix(**usual),), words)
        result = ringd(
            "bench", "--stages", "--op", "all", "--sizes", "1M", "-n", "3", "--memory", "arena",
            "--rounds", "2", "--json", "s.json", "--quick",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        ((matrix,), words) = calls[1]
        assert len(matrix.ops) == 9
        assert "sendrecv" not in matrix.ops
        assert (matrix.sizes_bytes, matrix.world_sizes, matrix.memory) == (
            [1 << 20],
            [3],
            ["arena"],
        )
        assert words == {"rounds": 2, "json_path": Path("s.json"), "quick": True}

    def test_its_help_says_the_units_and_when_there_is_no_p99(self, ringd: Invoke) -> None:
        text = " ".join(ringd("bench", "--help").stdout.replace("│", " ").split())
        assert "in µs, of faults in ms, of start-up in s; bandwidths in GB/s" in text
        assert "p99 is empty where there are fewer than 100 samples" in text

    def test_all_is_every_operation_once(self, ringd: Invoke, calls: Any) -> None:
        assert ringd("bench", "--op", "reduce", "--op", "all").exit_code == 0
        ops = calls[0][0][0].ops
        assert len(ops) == len(set(ops)) == 10
        assert {"all_reduce", "all_to_all", "sendrecv", "barrier"} <= set(ops)

    def test_what_only_moves_can_have_any_dtype(self, ringd: Invoke, calls: Any) -> None:
        assert ringd("bench", "--op", "all_gather", "--dtype", "float8_e5m2").exit_code == 0

    @pytest.mark.parametrize(
        ("args", "text"),
        [
            (("--op", "allreduce"), "--op 'allreduce' is unknown; known: all_reduce"),
            (("--op", "allreduce"), "did you mean 'all_reduce'?"),
            (("--algorithm", "rign"), "did you mean 'ring'?"),
            (("--op", "broadcast", "--algorithm", "ring"), "known: auto, tree"),
            (("--dtype", "float8"), "--dtype 'float8' is unknown"),
            (("--peers", "glo"), "did you mean 'gloo'?"),
            (("--memory", ""), "--memory '' is unknown; known: ordinary, arena"),
            (("--sizes", "1Q"), "--sizes '1Q': a size is"),
            (("--sizes", ""), "--sizes '': a size is"),
            (("-n", "2,x"), "-n '2,x': numbers of ranks"),
            (("-n", "0"), "-n '0': numbers of ranks"),
            (("-n", ","), "-n ',': numbers of ranks"),
            (("--op", "all", "--algorithm", "ring"), "--op reduce --algorithm 'ring' is unknown"),
            (("--op", "sendrecv", "-n", "1"), "sendrecv needs two ranks"),
            (("--faults", "-n", "1"), "--faults needs survivors"),
            (("--faults", "--kinds", "kill-trainr"), "did you mean 'kill-trainer'?"),
            (("--faults", "--torch"), "--faults and --torch are measured one at a time"),
            (("--startup", "--torch"), "--torch and --startup are measured one at a time"),
            (
                ("--faults", "--op", "reduce"),
                "--op is for operations and --stages, not for --faults",
            ),
            (("--faults", "--lab", "4x1gbit"), "--lab is for operations, not for --faults"),
            (
                ("--faults", "--quick"),
                "--quick is for operations, --torch and --stages, not for --faults",
            ),
            (
                ("--torch", "--dtype", "float32"),
                "--dtype is for operations and --stages, not for --torch",
            ),
            (("--startup", "--kinds", "raise"), "--kinds is for --faults, not for --startup"),
            (("--stages", "--peers", "none"), "--peers is for operations, not for --stages"),
            (("--stages", "--op", "reduce,sendrecv"), "sendrecv has two: leave it out"),
            (("--stages", "--op", "redcue"), "did you mean 'reduce'?"),
            (("--kinds", "raise"), "--kinds is for --faults, not for operations"),
            (("--torch", "-n", "x"), "-n 'x': numbers of ranks"),
            (("--dtype", "float8_e5m2"), "--op all_reduce --dtype float8_e5m2: op sum is not"),
        ],
    )
    def test_what_is_unknown_is_named_with_what_is_known(
        self, ringd: Invoke, calls: Any, args: tuple[str, ...], text: str
    ) -> None:
        result = ringd("bench", *args)
        assert result.exit_code == 2
        assert text in result.stderr
        assert not calls
