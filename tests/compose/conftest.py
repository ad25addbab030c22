"""Stacks of containers for tests; skipped, with the reason, where there is no engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.compose.stack import IMAGE, Stack, compose_command, docker


@pytest.fixture(scope="session")
def _engine() -> None:
    if docker("info").returncode != 0:
        pytest.skip("no container engine answers (deploy/with-engine.sh starts one)")
    if not compose_command():
        pytest.skip("neither `docker compose` nor docker-compose is here")
    if docker("image", "inspect", IMAGE).returncode != 0:
        pytest.skip(f"there is no image {IMAGE} (deploy/build-image.sh makes it)")


@pytest.fixture
def stack_of(_engine: None) -> Iterator[Callable[..., Stack]]:
    """Makes stacks, and removes them when the test is over."""
    stacks: list[Stack] = []

    def make(*files: str, **environment: str) -> Stack:
        stacks.append(Stack(f"ringdtest{len(stacks)}", *files, **environment))
        stacks[-1].down()  # what a test run that was killed has left
        return stacks[-1]

    yield make
    for stack in stacks:
        stack.down()
