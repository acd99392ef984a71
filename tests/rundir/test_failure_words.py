"""What a rank's log says of its end."""

from __future__ import annotations

import pytest

from rundir.failure import words
from tests.rundir.test_failure import LOST_PEER

TRACEBACK = "Traceback (most recent call last):\n  x\n"


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (f"{TRACEBACK}lib.OtherError: x\n", "lib.OtherError: x"),
        (f"trainer: y\n{TRACEBACK}ImportError: x\n", "ImportError: x"),
        ("OtherError: x\nwith a second line\n", "OtherError: x"),
        ("train.py: error: unrecognized arguments: --x\n", "train.py: error: unrecognized argu"),
        ("trainer: y\n", ""),
        ("OtherError: x\n" + "it goes on\n" * 6, ""),
        ("Exception ignored in: <x>\nOtherError: x\n", ""),
    ],
)
def test_the_exception_with_which_a_log_ends(log: str, found: str) -> None:
    """Whatever program wrote it; one that it survived is none."""
    assert words.last_exception(log).startswith(found)
    assert bool(words.last_exception(log)) == bool(found)


@pytest.mark.parametrize(
    ("last", "is_one"),
    [
        (LOST_PEER, True),
        ("RuntimeError: NCCL error: ncclRemoteError: a call failed\n[rank0]: more", True),
        ("RuntimeError: NCCL error, unhandled system error\n[rank0]: ncclSystemError: x", True),
        ("ValueError: the data is bad", False),
        ("RuntimeError: CUDA error: x in NCCL's watchdog", False),
    ],
)
def test_a_consequence_only_reports_a_lost_peer(last: str, *, is_one: bool) -> None:
    """In the last fatal error of a log."""
    assert bool(words.consequence(None, f"step 5\n[rank0]: {last}\n")) == is_one
