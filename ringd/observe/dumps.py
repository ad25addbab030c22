"""Dumps of the flight recorder as they are read: files in, checked values out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ringd.errors import InvalidArgumentError
from ringd.observe.dump_file import PATTERN
from ringd.observe.flight import FORMAT, VERSION
from ringd.observe.kept import LAST_FAILURE
from ringd.observe.records import GroupView, Loss, Op, RankDump

MAX_FILE_BYTES = 64 * 1024 * 1024

_NAME = "name a file of ringd dump"


def read(paths: Iterable[Path]) -> list[RankDump]:
    """The dumps in these files; of a folder all that are in it.

    Raises:
        InvalidArgumentError: a file can't be read or is no dump, or there is none.
    """
    files: list[Path] = []
    for path in paths:
        files += sorted(path.glob(PATTERN)) if path.is_dir() else [path]
    if not files:
        raise InvalidArgumentError(
            f"no dump was found ({PATTERN}); ringd dump makes them where the daemons run"
        )
    for path in files:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise InvalidArgumentError(f"{path} is no dump: it is no regular file")
    return [_load(path) for path in files]


def last_failure(runtime_dir: Path) -> Path:
    """The folder with the dumps of the last job of ``ringd run``, or of a torch script whose ranks
    started their own daemons, that failed here.

    Raises:
        InvalidArgumentError: there is none.
    """
    folder = runtime_dir / LAST_FAILURE
    if not any(folder.glob(PATTERN)):
        raise InvalidArgumentError(
            f"which dumps? Name files of ringd dump, or folders of them; there is no failed job's "
            f"in {folder}"
        )
    return folder


def _load(path: Path) -> RankDump:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidArgumentError(
                f"{path} is over {MAX_FILE_BYTES} bytes, so no dump; {_NAME}"
            )
        return parse(json.loads(path.read_bytes()))
    except OSError as exc:
        raise InvalidArgumentError(f"{path} can't be read: {exc.strerror}; {_NAME}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        if isinstance(exc, InvalidArgumentError):
            raise
        raise InvalidArgumentError(
            f"{path} is no dump of ringd's flight recorder; {_NAME}"
        ) from None


def parse(document: Any) -> RankDump:
    """A dump from its JSON.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is none.
    """
    if document["format"] != FORMAT:
        raise ValueError("another format")
    if document["version"] != VERSION:
        raise InvalidArgumentError(
            f"a dump of version {document['version']}, this ringd reads {VERSION}; use the same "
            "ringd to explain as the job had"
        )
    pid = document["trainer_pid"]
    return RankDump(
        job_id=str(document["job_id"]),
        rank=int(document["rank"]),
        world_size=int(document["world_size"]),
        host=str(document["host"]),
        trainer_pid=None if pid is None else int(pid),
        epoch=int(document["epoch"]),
        taken_at=float(document["taken_at"]),
        groups={(int(g["epoch"]), int(g["group"])): _group(g) for g in document["groups"]},
        operations=tuple(_operation(o) for o in document["operations"]),
        forgotten=int(document["forgotten"]),
        broken=None if document["broken"] is None else str(document["broken"]),
        losses=_losses(document),
    )


def _losses(document: Mapping[str, Any]) -> dict[int, Loss]:
    """By epoch; dumps of earlier versions do not have them."""
    told = {int(e["epoch"]): e.get("lost") for e in document["epochs"]}
    told[int(document["epoch"])] = document.get("lost")
    return {epoch: _loss(data) for epoch, data in told.items() if data is not None}


def _loss(data: Mapping[str, Any]) -> Loss:
    file, line = str(data["file"]), int(data["line"])
    return Loss(
        rank=int(data["rank"]),
        case=str(data["case"]),
        detail=str(data["detail"]),
        place=f"{file}:{line}" if file else "",
        partial=bool(data["partial"]),
    )


def _group(data: Mapping[str, Any]) -> GroupView:
    next_seq = data["next_seq"]
    return GroupView(
        ranks=tuple(int(rank) for rank in data["ranks"]),
        next_seq=None if next_seq is None else int(next_seq),
        left={int(rank): int(seq) for rank, seq in data["left"].items()},
    )


def _operation(data: Mapping[str, Any]) -> Op:
    seq, ended_at, error = data["seq"], data["ended_at"], data["error"]
    return Op(
        epoch=int(data["epoch"]),
        group=int(data["group"]),
        seq=None if seq is None else int(seq),
        op=str(data["op"]),
        call=str(data["call"]),
        digest=str(data["digest"]),
        state=str(data["state"]),
        entered_at=float(data["entered_at"]),
        ended_at=None if ended_at is None else float(ended_at),
        waiting_on=tuple(int(rank) for rank in data["waiting_on"]),
        bytes_done=int(data["bytes_done"]),
        bytes_total=int(data["bytes_total"]),
        error=None if error is None else str(error["code"]),
        message="" if error is None else str(error["message"]),
        peer=int(data.get("peer", -1)),
        tag=int(data.get("tag", 0)),
        number=int(data.get("number", -1)),
    )
