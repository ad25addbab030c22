"""What a daemon has to say to a rendezvous that comes back, and may know nothing: bookkeeping."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from ringd.rendezvous.hearing import count_of
from ringd.rendezvous.news import Claim

MAX_REPORTS = 256
"""Reports that wait for the rendezvous; of more the oldest are dropped."""


class Unsaid:
    """One daemon's wish, farewell, and reports, each as the frame that says it."""

    def __init__(self) -> None:
        self._attempt = 0
        self._wish = b""  # b"": our trainer waits for no epoch
        self._farewell = (0, b"")  # how our trainer's part in that epoch ended
        self._reports: deque[tuple[int, bytes]] = deque(maxlen=MAX_REPORTS)
        self._n_verdicts = 0

    def next_attempt(self) -> int:
        """The number of our trainer's next wish."""
        self._attempt += 1
        return self._attempt

    def wish(self, frame: bytes) -> bytes:
        """Our trainer waits for an epoch; the frame."""
        self._wish = frame
        return frame

    def fulfilled(self, attempt: int) -> bool:
        """Whether this is the answer to the wish that waits; then none waits any more.

        An answer may cross our trainer's giving up; then it is not for the one that waits now.
        """
        if not self._wish or attempt != self._attempt:
            return False
        self._wish = b""
        return True

    def farewell(self, epoch: int, how: str, frame: bytes) -> None:
        """Our trainer gave up its wish, or its part in ``epoch`` (0: it had none) is over."""
        withdrawn = bool(self._wish) and how == "gave_up"  # in its epoch it may ask again
        self._wish = b""
        if epoch and not withdrawn:
            self._farewell = (epoch, frame)

    def report(self, epoch: int, frame: bytes) -> None:
        """Something happened in ``epoch`` while the rendezvous was out of reach."""
        self._reports.append((epoch, frame))

    def heard(self, verdict: object) -> None:
        """The id of a verdict."""
        self._n_verdicts = max(self._n_verdicts, count_of(verdict))

    def completed(self, claim: Claim | None) -> Claim | None:
        """The claim with what is known here: a part that ended counts, as its end is told again."""
        if claim is None:
            return None
        running = claim.running or self._farewell[0] == claim.epoch
        return replace(claim, running=running, n_verdicts=self._n_verdicts)

    def to_say(self, epoch: int) -> list[bytes]:
        """What follows a claim of ``epoch`` (0: none), in order; reports are told once."""
        reports, self._reports = self._reports, deque(maxlen=MAX_REPORTS)
        told = [frame for its, frame in (self._farewell, *reports) if its == epoch and frame]
        return [*told, self._wish] if self._wish else told
