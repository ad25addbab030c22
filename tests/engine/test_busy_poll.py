"""Which calls have the loop stay awake."""

from __future__ import annotations

import pytest

from ringd.engine.busy_poll import POLL_BYTES, BusyPoll
from ringd.vocabulary import OpSpec
from tests.engine.scene import Scene


@pytest.mark.parametrize(("size_bytes", "begun"), [(POLL_BYTES, 2), (POLL_BYTES + 4, 0)])
def test_only_small_calls_ask_for_polling(
    size_bytes: int, begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[BusyPoll] = []

    monkeypatch.setattr(BusyPoll, "begin", lambda poll: polls.append(poll))
    scene = Scene(2)

    async def main() -> None:
        spec = OpSpec("all_reduce", "float32", "sum", (size_bytes // 4,))
        ended = await scene.all([scene.call(rank, spec) for rank in range(2)])
        assert [one.error for one in ended] == [None, None]

    scene.run(main)
    assert len(polls) == begun
