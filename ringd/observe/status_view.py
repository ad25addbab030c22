"""``ringd status``: asks a daemon over its Unix socket, and shows what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ringd.config.loader import Loaded
from ringd.observe.asking import asking, check_rank, find_one
from ringd.vocabulary import SEND, ranks_text
from ringd.wire import ipc

_COLUMNS = (
    "rank",
    "address",
    "trainer",
    "epoch",
    "next seq",
    "done",
    "in flight",
)
_CAPTION = "trainer: process id; next seq: in the epoch; done: in all epochs"


def show(loaded: Loaded, *, scope: str, as_json: bool) -> None:
    """Print the state of a daemon ("daemon") or of its whole group ("group").

    Raises:
        DaemonLostError: no daemon answers, or none that was asked for runs here.
        InvalidArgumentError: there are several jobs here; names them. Or the socket that was
            given is another rank's.
    """
    path = find_one(loaded)
    if loaded.origin["rank"] == "flag":
        check_rank(loaded, path, ask(path, "daemon")["rank"])
    status = ask(path, scope)
    if as_json:
        print(json.dumps(status, indent=1))
    else:
        _print(status, scope)


def ask(path: Path, scope: str) -> dict[str, Any]:
    """The state that the daemon at ``path`` tells.

    Raises:
        DaemonLostError: it is not there, or does not answer within 5 s.
    """
    with asking(path) as daemon:
        daemon.say(ipc.STATUS, 1, scope)
        status: dict[str, Any] = daemon.take(ipc.STATUS_REPLY)[2]
        return status


def _print(status: dict[str, Any], scope: str) -> None:
    daemons = [status] if scope == "daemon" else _daemons(status)
    console = Console()
    table = Table(title="ringd group" if scope == "group" else "ringd daemon")
    for name in _COLUMNS:
        table.add_column(name, no_wrap=name == "address")
    for state in daemons:
        table.add_row(*_cells(state))
    table.caption = _CAPTION
    if "self" in status:
        table.caption = Text(_absence(status), style="yellow")
    console.print(table)
    if any(_in_flight(state) for state in daemons):
        console.print(_flying(daemons))
    if any(state.get("groups") for state in daemons):
        console.print(_groups(daemons))
    for line in _awaited(status):
        console.print(line, style="yellow", highlight=False)
    for state in daemons:
        for line in _details(state):
            console.print(f"rank {state['rank']}: {line}", highlight=False)
    if status.get("unanswered"):
        console.print(f"no answer in time of the daemon of {ranks_text(status['unanswered'])}")


def _daemons(status: dict[str, Any]) -> list[dict[str, Any]]:
    if "self" in status:  # the rendezvous is out of reach: only what the asked daemon knows
        return [status["self"]]
    return [report["state"] for report in status.get("reports", [])]


def _awaited(status: dict[str, Any]) -> list[str]:
    """Who is missing, of a group: before the first epoch of all ranks, later of its members."""
    if "joined" not in status:
        return []
    joined, attached = status["joined"], status["attached"]
    ranks = status["members"] if status["epoch"] else range(status["world_size"])
    absent = [rank for rank in ranks if rank not in joined]
    idle = [rank for rank in joined if rank in ranks and rank not in attached]
    lines = [f"no daemon yet: {ranks_text(absent)}"] if absent and not status["epoch"] else []
    if absent and status["epoch"]:
        lines = [f"its daemon is gone: {ranks_text(absent)}"]
    if idle and not status["epoch"]:
        lines.append(f"no trainer yet: {ranks_text(idle)}")
    outside = [rank for rank in range(status["world_size"]) if rank not in status["members"]]
    if outside and status["epoch"]:
        lines.append(
            f"epoch {status['epoch']} is of {ranks_text(status['members'])}, of "
            f"{status['world_size']}; not in it: {ranks_text(outside)}"
        )
    return lines


def _absence(status: dict[str, Any]) -> str:
    """Why there is only the asked daemon's own row."""
    of = status.get("rendezvous", {})
    where = f"the rendezvous at {of['address']}" if of else "the rendezvous"
    since, cause = of.get("lost_for_s"), of.get("cause") or status["error"]["message"]
    how_long = "" if since is None else f" for {since:g} s"
    text = f"{where} is out of reach{how_long}: {cause}"
    others = of.get("not_asked", [])
    return f"{text}; could not be asked: {ranks_text(others)}" if others else text


def _cells(state: dict[str, Any]) -> list[str]:
    names = ("rank", "address", "trainer", "epoch", "next_seq", "completed", "in_flight")
    cells = ["-" if state.get(name) is None else str(state[name]) for name in names]
    if state.get("trainer_state") == "stopped":
        cells[names.index("trainer")] += " (stopped)"
    return cells


def _in_flight(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Collectives, then messages, as far as a daemon tells them."""
    return [*state.get("operations", []), *state.get("messages", [])]


def _flying(daemons: list[dict[str, Any]]) -> Table:
    """What is in flight: collectives by their number, messages by peer and tag."""
    table = Table(title="in flight")
    for name in ("rank", "group", "operation", "for", "bytes", "waits for"):
        table.add_column(name)
    for state in daemons:
        for what in _in_flight(state):
            table.add_row(
                str(state["rank"]),
                str(what["group"]),
                _called(what),
                f"{what['elapsed_s']:.3g} s",
                f"{what['bytes_done']:,} of {what['bytes_total']:,}",
                ", ".join(map(str, what["waiting_on"])) or "-",
            )
    return table


def _called(what: dict[str, Any]) -> str:
    """ "all_reduce #7", "recv from 2, tag 5"."""
    if "seq" in what:
        return f"{what['op']} #{what['seq']}"
    peer = "any" if what["peer"] is None else what["peer"]
    return f"{what['op']} {'to' if what['op'] == SEND else 'from'} {peer}, tag {what['tag']}"


def _groups(daemons: list[dict[str, Any]]) -> Table:
    """The groups beside the world; each once, with the next call of each member."""
    table = Table(title="groups")
    for name in ("group", "ranks", "next seq, by rank"):
        table.add_column(name)
    seen: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for state in daemons:
        for number, group in state.get("groups", {}).items():
            key = (number, tuple(group["ranks"]))
            seen.setdefault(key, []).append(f"{state['rank']}: {group['next_seq']}")
    for (number, ranks), calls in sorted(seen.items(), key=lambda item: int(item[0][0])):
        table.add_row(number, ", ".join(map(str, ranks)), ", ".join(calls))
    return table


def _details(state: dict[str, Any]) -> list[str]:
    """What went wrong there, and its links: a line each."""
    lines = []
    if state.get("reforming"):
        lines.append("its trainer waits in reform() for the other members")
    elif state.get("broken"):
        lines.append(str(state["broken"]))
    links = [
        f"{peer} ({link['sent_bytes']:,} / {link['received_bytes']:,})"
        for peer, link in state.get("links", {}).items()
    ]
    return [*lines, f"links, bytes sent / received: {', '.join(links) or 'none'}"]
