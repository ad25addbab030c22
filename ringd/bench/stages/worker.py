"""One rank of either job: times calls as ``ringd bench`` does, and marks them in the traced job."""

from __future__ import annotations

import sys
from typing import Any

from ringd.bench.worker import measure  # first: it gives SIGINT back to the system

import torch  # isort: skip

from ringd.bench.orders import serve
from ringd.bench.stages import marks
from ringd.bench.stages.hooks import trace_trainer
from ringd.bench.stages.marks import Recorder
from ringd.bench.subjects import Ringd
from ringd.bench.tensors import Tensors


class Traced(Ringd):
    """ringd, with the beginning and the end of each call marked."""

    def __init__(self, recorder: Recorder) -> None:
        trace_trainer(recorder)
        super().__init__()
        self._mark = recorder.mark

    def run(self, op: str, tensors: Tensors, algorithm: str) -> None:
        """One operation."""
        self._mark(marks.PREPARE)
        super().run(op, tensors, algorithm)
        self._mark(marks.NOTHING)


def main(argv: list[str]) -> None:
    """``worker CONTROL ringd`` or ``worker CONTROL traced``."""
    torch.set_num_threads(1)
    control, impl = argv
    recorder = Recorder()
    subject = Traced(recorder) if impl == "traced" else Ringd()
    kept: dict[str, Tensors] = {}

    def obey(order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "take":
            return recorder.take()
        return measure(subject, order, kept)

    serve(control, {"impl": impl, "rank": subject.rank}, obey)
    subject.close()


if __name__ == "__main__":
    main(sys.argv[1:])
