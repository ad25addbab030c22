"""Ranks that share no network: one port per container, published on the host, is enough."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compose.stack import Stack

pytestmark = [pytest.mark.compose, pytest.mark.timeout(300)]

RANKS = ("rank0", "rank1")
StackOf = Callable[..., Stack]


def test_one_published_port_per_container_is_enough(stack_of: StackOf) -> None:
    stack = stack_of("tests/compose/published.yml")
    stack.compose("up", "-d")
    stack.await_line("IN FULL SWING", *RANKS)
    assert "advertised as outside:17101" in stack.log("rank1")


def test_an_advertised_port_that_nobody_published_is_named_within_the_join_timeout(
    stack_of: StackOf,
) -> None:
    stack = stack_of("tests/compose/published.yml", RANK1="outside:17109", JOIN_TIMEOUT_S="30")
    stack.compose("up", "-d")
    for service in RANKS:
        told = stack.verdict(service)
        assert told["code"] == "peer_lost"
        assert told["fields"]["case"] == "link lost"
        assert "can't connect to outside:17109" in told["text"]
        assert told["elapsed_s"] < 30
