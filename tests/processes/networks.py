"""A job whose daemons stand on hosts of their own, in a network that can be cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringd.bench.faults.network import Network
from tests.processes.harness import Daemons

COORDINATOR = "coordinator"


def hosts(n: int) -> list[str]:
    """The names of all hosts: one for each rank, one for the rendezvous."""
    return [COORDINATOR, *(f"rank{rank}" for rank in range(n))]


class NetworkedDaemons(Daemons):
    """The same, each daemon and the rendezvous in a network namespace of its own.

    Trainers and the test reach the daemons by their Unix sockets, which know no networks.
    """

    def __init__(self, n: int, folder: Path, owner: str, network: Network, **settings: Any) -> None:
        self.network = network
        super().__init__(n, folder, owner, **settings)

    def _prefix(self, rank: object) -> list[str]:
        return self.network.enter(COORDINATOR if rank is None else f"rank{rank}")

    def _where_it_listens(self) -> dict[str, object]:
        return {"bind": self.network.address(COORDINATOR)}

    def cut(self, rank: int) -> None:
        """All packets from and to this rank's host are lost from now on."""
        self.network.cut(f"rank{rank}")

    def heal(self, rank: int) -> None:
        """Its packets pass again."""
        self.network.heal(f"rank{rank}")
