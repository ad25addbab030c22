"""elastic_digits.py, and a death and a birth: one rank is killed, and a fresh one joins later.

At one step the victim kills its daemon and itself. ``ringd run --max-restarts`` starts both anew;
the others go on, and let the fresh one in at a later step. Every rank prints each step that it has
committed: the weights of all are equal, no step is missing, and none is there twice.

Run it with: ringd run -n 3 --max-restarts 2 -- python examples/elastic_drill.py --victim 1
"""

import argparse
import os
import signal
import time

import elastic_digits
import torch

import ringd_client


class Fated:
    """A communicator whose owner dies at a step, and with which nobody is let in before another.

    It dies before the gradients are summed ("reduce"), when it has entered the agreement
    ("agree"), or when it has the answer and has not committed the step ("commit").
    """

    def __init__(
        self, comm: ringd_client.Communicator, work: elastic_digits.Work, fate: argparse.Namespace
    ) -> None:
        self._comm = comm
        self._work = work
        self._fate = fate
        self._dies = comm.rank == fate.victim and comm.epoch == 1

    def __getattr__(self, name: str) -> object:
        return getattr(self._comm, name)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        self._die("reduce")
        return self._comm.all_reduce(tensor)

    def agree(self, flag: bool) -> bool:
        handle = self._comm.agree_async(flag)
        self._die("agree")
        answer = handle.wait()
        self._die("commit")
        return answer

    def newcomers(self) -> tuple[int, ...]:
        """At its step, wait for the fresh one: a machine may need long to start it."""
        if self._work.step != self._fate.rejoin:
            return ()
        while not (waiting := self._comm.newcomers()):
            time.sleep(0.01)
        return waiting

    def _die(self, point: str) -> None:
        if self._dies and point == self._fate.point and self._work.step == self._fate.at:
            daemons = {each["rank"]: each for each in self._comm.status("group")["daemons"]}
            os.kill(daemons[self._fate.victim]["pid"], signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--victim", type=int, required=True)
    parser.add_argument("--at", type=int, default=30, help="the step in which it dies")
    parser.add_argument("--point", choices=("reduce", "agree", "commit"), default="reduce")
    parser.add_argument("--rejoin", type=int, default=60, help="the first step of the fresh one")
    parser.add_argument("--steps", type=int, default=120)
    arguments = parser.parse_args()
    with ringd_client.connect(timeout_s=300) as communicator:
        # Whatever a rank begins with, it gets the state of the others.
        torch.manual_seed(10 * communicator.epoch + communicator.rank)
        task = elastic_digits.Work(communicator, print_every=1)
        elastic_digits.train(Fated(communicator, task, arguments), task, arguments.steps)
        print(f"accuracy {task.accuracy():.4f} after {task.step} steps")
