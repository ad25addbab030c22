"""``ringd status``: asks a daemon over its Unix socket, and shows what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ringd.config.loader import Loaded
from ringd.observe.asking import asking, find_one, take
from ringd.wire import ipc


def show(loaded: Loaded, *, scope: str, as_json: bool) -> None:
    """Print the state of a daemon ("daemon") or of its whole group ("group").

    Raises:
        DaemonLostError: no daemon answers at the socket; says which sockets there are.
    """
    status = ask(find_one(loaded), scope)
    if as_json:
        print(json.dumps(status, indent=1))
    else:
        _print(status, scope)


def ask(path: Path, scope: str) -> dict[str, Any]:
    """The state that the daemon at ``path`` tells.

    Raises:
        DaemonLostError: it is not there, or does not answer within 5 s.
    """
    with asking(path) as sock:
        sock.send(ipc.pack(ipc.STATUS, 1, scope))
        status: dict[str, Any] = take(sock, ipc.STATUS_REPLY)[2]
        return status


def _print(status: dict[str, Any], scope: str) -> None:
    daemons = [status] if scope == "daemon" else _daemons(status)
    console = Console()
    table = Table(title="ringd group" if scope == "group" else "ringd daemon")
    for name in ("rank", "address", "trainer pid", "epoch", "next seq", "done", "in flight"):
        table.add_column(name, no_wrap=name == "address")
    for state in daemons:
        table.add_row(*_cells(state))
    console.print(table)
    for state in daemons:
        for line in _details(state):
            console.print(f"rank {state['rank']}: {line}", highlight=False)
    for name in ("missing", "unanswered"):
        if status.get(name):
            console.print(f"{name}: {status[name]}")


def _daemons(status: dict[str, Any]) -> list[dict[str, Any]]:
    if "self" in status:  # the rendezvous is out of reach: only what the asked daemon knows
        return [status["self"]]
    return [report["state"] for report in status.get("reports", [])]


def _cells(state: dict[str, Any]) -> list[str]:
    names = ("rank", "address", "trainer", "epoch", "next_seq", "completed", "in_flight")
    return ["-" if state.get(name) is None else str(state[name]) for name in names]


def _details(state: dict[str, Any]) -> list[str]:
    """What it is doing, and its links: a line each."""
    lines = [
        f"{op['op']} #{op['seq']} for {op['elapsed_s']:g} s, {op['bytes_done']:,} of "
        f"{op['bytes_total']:,} bytes received, waiting on {op['waiting_on']}"
        for op in state.get("operations", [])[:4]
    ]
    if state.get("broken"):
        lines.append(str(state["broken"]))
    links = [
        f"{peer} ({link['sent_bytes']:,} / {link['received_bytes']:,})"
        for peer, link in state.get("links", {}).items()
    ]
    return [*lines, f"links, bytes sent / received: {', '.join(links) or 'none'}"]
