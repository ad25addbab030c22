"""Reading dumps: what is none is refused by name, whatever it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringd.errors import InvalidArgumentError
from ringd.observe.dump_file import write
from ringd.observe.dumps import read
from ringd.observe.explain_view import show
from tests.engine.scene import ALL_REDUCE, Scene


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    """Three ranks' dumps: two in an all_reduce that rank 1 never enters."""
    scene = Scene(3)
    found: list[dict[str, Any]] = []

    async def main() -> None:
        await scene.calls([ALL_REDUCE] * 3)
        waiting = [scene.call(rank) for rank in (0, 2)]
        await asyncio.sleep(0.25)
        found.extend(node.snapshot("test").document() for node in scene.cluster.nodes)
        await scene.all([*waiting, scene.call(1)])

    scene.run(main)
    return found


@pytest.fixture
def folder(tmp_path: Path, documents: list[dict[str, Any]]) -> Path:
    for document in documents:
        write(document, tmp_path)
    return tmp_path


def test_a_folder_stands_for_all_dumps_in_it(folder: Path) -> None:
    (folder / "other.json").write_text("not a dump")
    assert [dump.rank for dump in read([folder])] == [0, 1, 2]
    one = folder / "flight-rank2-epoch1.json"
    (dump,) = read([one])
    assert (dump.rank, dump.world_size, dump.trainer_pid) == (2, 3, 1002)
    assert [op.state for op in dump.operations] == ["done", "in flight"]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("operations"),
        lambda d: d.update(format="other"),
        lambda d: d.update(world_size="many"),
        lambda d: d.update(groups={"a": 1}),
        lambda d: d["operations"].append({}),
        lambda d: d["operations"][0].update(entered_at=None),
        lambda d: d["operations"][0].update(waiting_on=7),
    ],
)
def test_what_is_no_dump_is_refused_with_its_name(
    tmp_path: Path, documents: list[dict[str, Any]], change: Callable[[dict[str, Any]], object]
) -> None:
    document = json.loads(json.dumps(documents[0]))
    change(document)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidArgumentError, match=r"wrong\.json is no dump"):
        read([path])


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"x"'])
def test_other_files_are_refused_with_their_name(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(text)
    with pytest.raises(InvalidArgumentError, match=r"wrong\.json is no dump"):
        read([path])


def test_a_file_that_is_not_there_and_another_version_are_told(
    tmp_path: Path, documents: list[dict[str, Any]]
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"gone\.json can't be read: No such file"):
        read([tmp_path / "gone.json"])
    path = tmp_path / "new.json"
    path.write_text(json.dumps({**documents[0], "version": 2}))
    with pytest.raises(InvalidArgumentError, match="a dump of version 2"):
        read([path])


def test_the_tables_and_the_json_say_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    show([folder], as_json=False)
    told = capsys.readouterr().out
    assert "operation 1: never entered" in told
    assert "rank 1 never did: its last operation there, 0 (all_reduce" in told
    show([folder], as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["headline"]["seq"] == 1
    assert data["headline"]["kind"] == "never entered"
    assert [e["state"] for e in data["headline"]["entries"]] == [
        "in flight",
        "never entered",
        "in flight",
    ]
    assert data["chain"][-1] == 1
    assert [d["rank"] for d in data["dumps"]] == [0, 1, 2]
    assert " ".join(told.split()).endswith(" ".join(data["text"].split()))


def test_the_text_of_a_call_is_printed_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls hold brackets, which the tables' markup must not eat."""
    for path in folder.iterdir():
        document = json.loads(path.read_text())
        for op in document["operations"]:
            op["call"] = f"call [red]{document['rank']}[/] counts=[1, 2]"
            op["digest"] = str(document["rank"])
        path.write_text(json.dumps(document))
    monkeypatch.setenv("COLUMNS", "200")
    show([folder], as_json=False)
    table, _, text = capsys.readouterr().out.partition("Ranks part")
    assert "call [red]2[/] counts=[1, 2]" in table
    assert "rank 2 called call [red]2[/] counts=[1, 2]" in " ".join(text.split())
