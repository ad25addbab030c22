"""Storages that recur are moved into shared memory: the same numbers, and nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.processes.harness import WIDER
from tests.torch.conftest import Both, Own
from tests.torch.programs import adoption
from tests.torch.programs.adoption import COUNT, FREED_BYTES
from tests.torch.ranks import same

ONLY_OURS = ("ringd",)
BYTES = 4 * COUNT


def total(n: int, count: int = COUNT) -> torch.Tensor:
    """What ``data`` of n ranks adds up to."""
    return torch.arange(count, dtype=torch.float32) % 1000 * n + 1000 * (n * (n - 1) // 2)


@pytest.mark.parametrize("adopt", [True, False])
def test_sums_equal_gloos(both: Both, adopt: bool) -> None:
    got = both(adoption.calls, 3, adopt=adopt)
    for (theirs, _), (ours, guest_bytes) in zip(got["gloo"], got["ringd"], strict=True):
        assert same(theirs, ours)
        assert guest_bytes == (BYTES if adopt else 0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 1, "gradient_as_bucket_view": True},
        pytest.param({"bucket_cap_mb": 1, "static_graph": True}, marks=pytest.mark.slow),
        pytest.param({"find_unused_parameters": True}, marks=pytest.mark.slow),
    ],
)
def test_ddp_has_gloos_losses_and_parameters_bit_by_bit(
    both: Both, options: dict[str, Any]
) -> None:
    copied = both(adoption.ddp, 2, adopt=False, **options)
    adopted = both(adoption.ddp, 2, ONLY_OURS, adopt=True, **options)["ringd"]
    for theirs, copies, ours in zip(copied["gloo"], copied["ringd"], adopted, strict=True):
        assert same(theirs[:2], copies[:2])
        assert same(theirs[:2], ours[:2])
        assert copies[2] == 0
        assert ours[2] >= 1


@pytest.mark.parametrize("call", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_storage_that_is_freed_is_given_back_by_client_and_daemon(both: Both, call: bool) -> None:
    for living, still, gone in both(adoption.freed, 2, ONLY_OURS, call=call)["ringd"]:
        assert living == still == (FREED_BYTES, 1, 1)
        assert gone


def test_what_numpy_sees_is_shared_small_partial_or_fleeting_is_not_adopted(both: Both) -> None:
    for sums, guest_bytes in both(adoption.ineligible, 2, ONLY_OURS)["ringd"]:
        assert guest_bytes == 0
        for got in sums:
            assert same(total(2, got.numel()), got)


def test_without_room_for_torchs_file_it_is_copied(both: Both) -> None:
    for tensor, guest_bytes in both(adoption.without_room, 2, ONLY_OURS)["ringd"]:
        assert guest_bytes == 0
        assert same(total(2), tensor)


def test_storages_take_half_of_the_arena_at_most(both: Both) -> None:
    for sums, guest_bytes in both(adoption.without_share, 2, ONLY_OURS)["ringd"]:
        assert guest_bytes == 4 * BYTES
        for got in sums:
            assert same(total(2), got)


@pytest.mark.parametrize(("text", "expected"), [("", BYTES), ("On", BYTES), ("0", 0)])
def test_the_environment_turns_it_off(both: Both, text: str, expected: int) -> None:
    assert both(adoption.switched, 2, ONLY_OURS, text=text)["ringd"] == [expected] * 2


def test_a_setting_that_is_neither_true_nor_false_is_refused(both: Both) -> None:
    for told in both(adoption.misset, 2, ONLY_OURS)["ringd"]:
        assert told["class"] == "ConfigError"
        assert "RINGD_ADOPT_STORAGES = 'perhaps'" in told["text"]


def test_it_can_not_be_resized(both: Both) -> None:
    for told, tensor, guest_bytes in both(adoption.resized, 2, ONLY_OURS)["ringd"]:
        assert told["class"] == "RuntimeError"
        assert "not resizable" in told["text"]
        assert same(total(2), tensor)
        assert guest_bytes == BYTES


def test_a_forked_child_sees_it_and_can_not_change_it(both: Both) -> None:
    for code, unchanged, after, guest_bytes in both(adoption.forked, 2, ONLY_OURS)["ringd"]:
        assert code == 0
        assert unchanged
        assert same(total(2), after)
        assert guest_bytes == BYTES


def test_after_a_failed_call_it_serves_on(both: Both) -> None:
    for told, copied, after, guest_bytes in both(adoption.failed, 2, ONLY_OURS)["ringd"]:
        assert told["class"] == "CollectiveMismatchError"
        assert told["fields"]["in_place"]
        assert "restore it before you call again" in told["text"]
        assert copied["class"] == "CollectiveMismatchError"
        assert "in_place" not in copied["fields"]
        assert "restore it" not in copied["text"]
        assert same(total(2), after)
        assert guest_bytes == BYTES


def test_a_peer_that_dies_in_mid_call_leaves_it_usable(own: Own) -> None:
    told, ones, guest_bytes = own(adoption.peer_dies, 2, which=1)[0]
    assert told["class"] == "PeerLostError"
    assert told["after_s"] < 20 * WIDER
    assert ones == 16 * COUNT
    assert guest_bytes == 16 * BYTES


def test_a_daemon_that_dies_leaves_it_whole(own: Own) -> None:
    for told, tensor in own(adoption.daemon_dies, 2):
        assert told["is_torchs"]
        assert same(total(2), tensor)


def test_a_daemon_that_is_stopped_over_a_deadline_keeps_it_until_it_answers(own: Own) -> None:
    seen = own(adoption.daemon_stops, 2, which=1)
    for told, _, after, guest_bytes in seen:
        assert told["class"] == "CollectiveTimeoutError"
        assert told["is_torchs"]
        assert told["fields"]["in_place"]
        assert same(total(2), after)
        assert guest_bytes == BYTES
    told, at_once, _, _ = seen[1]
    assert told["fields"]["daemon_state"] == "stopped"
    assert "the timeout of the group: 1 s" in told["text"]
    assert "not yours until the daemon answers" in told["text"]
    assert "restore it" not in told["text"]
    assert at_once["class"] == "MemoryInUseError"
    assert at_once["is_torchs"]


def test_a_ddp_model_learns_on_after_steps_that_failed_before_and_after_they_were_posted(
    own: Own,
) -> None:
    seen = own(adoption.ddp_daemon_stops, 2, which=1)
    theirs, texts = (texts for texts, _ in seen)
    assert len(theirs) == len(texts) < adoption.MAX_ATTEMPTS
    assert "did not answer" in texts[0]
    assert "what was put there meanwhile may be lost" in texts[-1]
    for text in texts[1:]:
        assert "MemoryInUseError" in text
        assert "it is void on all ranks" in text
    assert "may still" in theirs[1]  # told what rank 1 was
    assert all(equal for _, equals in seen for equal in equals)


def test_it_serves_in_the_next_life_of_the_group(own: Own) -> None:
    for file, before, after, guest_bytes in own(adoption.another_life, 2):
        assert file.startswith("/memfd:ringd")
        assert (before, guest_bytes) == (0, BYTES)
        assert same(total(2), after)
