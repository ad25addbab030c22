"""A job on the hosts of a lab: rank K, its daemon and its trainer, on host K."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringd.lab.lab import Lab
from tests.processes.harness import Daemons


class LanDaemons(Daemons):
    """The same as on one host, with a LAN between the ranks.

    Args:
        apart: the rendezvous is alone on the last host; else it is on host 0, beside rank 0.
    """

    def __init__(self, lab: Lab, folder: Path, owner: str, *, apart: bool, **settings: Any) -> None:
        self.lab = lab
        hosts = lab.spec.hosts
        self._service_host = hosts - 1 if apart else 0
        super().__init__(hosts - apart, folder, owner, **settings)

    def _prefix(self, rank: object) -> list[str]:
        return self.lab.enter(rank if isinstance(rank, int) else self._service_host)

    def _trainer_prefix(self, rank: int) -> list[str]:
        return self.lab.enter(rank)

    def _where_it_listens(self) -> dict[str, object]:
        return {"bind": self.lab.address(self._service_host)}

    def links(self, rank: int) -> dict[int, str]:
        """The addresses at which a daemon has its peers."""
        return {int(peer): link["peer"] for peer, link in self.status(rank)["links"].items()}
