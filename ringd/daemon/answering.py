"""A daemon's answer to an inquiry: what its engine knows, what its trainer does, who is away."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ringd.daemon.trainer_state import TrainerState

if TYPE_CHECKING:
    from ringd.daemon.mesh import Mesh
    from ringd.rendezvous.agent import Agent


class Inspected(Protocol):
    """A trainer that can be looked at."""

    pid: int

    def inspect(self, callback: Callable[[TrainerState], None]) -> None:
        """Say what it is doing, soon."""


class Answering:
    """Of one node."""

    def __init__(self, agent: Agent, mesh: Mesh) -> None:
        self._agent = agent
        self._mesh = mesh

    def answer(self, inquiry: int, known: dict[str, Any], trainer: Inspected | None) -> None:
        """Answer, at once or when the trainer was looked at: only one that is absent need be.

        Args:
            known: what the engine says.
            trainer: None: there is none in the epoch.
        """
        if trainer is None:
            self._say(inquiry, known, TrainerState(0, "none"))
        elif known["state"] != "absent":
            self._say(inquiry, known, TrainerState(trainer.pid, "unknown"))
        else:
            trainer.inspect(partial(self._say, inquiry, known))

    def _say(self, inquiry: int, known: dict[str, Any], trainer: TrainerState) -> None:
        facts = {"trainer": trainer.state, "pid": trainer.pid, "stack": list(trainer.stack)}
        unreached = [[peer, text] for peer, text in self._mesh.unreached().items()]
        self._agent.op_answer(inquiry, {**known, **facts, "unreached": unreached})
