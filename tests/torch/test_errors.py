"""Errors are torch's and ours, and travel between processes."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch.distributed as dist

from ringd import errors
from ringd.daemon import absent
from ringd.rendezvous.agent_events import Presence
from ringd.wire import advice
from ringd_client.torch.errors import for_torch

CLASSES = sorted(errors.BY_CODE.values(), key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_class_of_an_error_travels_by_its_name(cls: type[errors.RingdError]) -> None:
    """torch's RPC sends the class of what a callee raised."""
    twin = type(for_torch(cls("text")))
    assert pickle.loads(pickle.dumps(twin)) is twin
    assert twin.__name__ == cls.__name__
    assert issubclass(twin, cls)
    assert issubclass(twin, dist.DistBackendError)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_travels_with_its_facts(cls: type[errors.RingdError]) -> None:
    error = for_torch(cls("text", rank=3))
    got = pickle.loads(pickle.dumps(error))
    assert type(got) is type(error)
    assert (str(got), got.fields, got.retry) == ("text", {"rank": 3}, cls.retry)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"RINGD_RANK": "1"}, "ringd run --max-restarts"),
        ({"TORCHELASTIC_RUN_ID": "x"}, "torchrun --max-restarts"),
        ({"RINGD_RANK": "1", "TORCHELASTIC_RUN_ID": "x"}, "torchrun --max-restarts"),
    ],
)
def test_what_starts_ranks_anew_is_named_as_the_launcher_that_it_is(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], named: str
) -> None:
    for name in ("RINGD_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert f"({named}" in str(for_torch(errors.PeerLostError(f"rank 1 is lost. {advice.REFORM}")))


def test_more_time_to_come_together_is_asked_for_by_torchs_setting() -> None:
    nobody = Presence((), (), (), 0)
    connecting = absent.trainers_missing(0, 2, nobody, "within 6 s")
    joining = advice.of_own_daemon(absent.daemons_missing(0, 2, [], 6.0).message)
    for text in (str(for_torch(connecting)), str(for_torch(errors.RendezvousError(joining)))):
        assert text.endswith("or raise timeout of init_process_group().")


def test_a_process_that_has_raised_none_can_read_one() -> None:
    packed = pickle.dumps((type(for_torch(errors.PeerLostError("x"))), for_torch(CLASSES[0]("y"))))
    program = (
        "import pickle, sys\n"
        "cls, error = pickle.load(sys.stdin.buffer)\n"
        "print(cls.__mro__[1].__name__, cls('text'), error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=packed, capture_output=True)
    assert done.stdout.decode() == "PeerLostError text y\n", done.stderr.decode()
