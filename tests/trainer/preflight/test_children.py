"""Calls in processes of their own: what they return, and what ends them."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from trainer.preflight.children import Outcome, call_all

if TYPE_CHECKING:
    from trainer.preflight.children import Enter


def answers(enter: Enter) -> list[int]:
    """Return something."""
    enter("adding")
    return [1, 2]


def raises(enter: Enter) -> NoReturn:
    """Fail."""
    enter("dividing")
    raise ValueError("no such\nnumber")


def hangs(enter: Enter) -> None:
    """Never end, whatever is asked."""
    enter("waiting")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def dies(enter: Enter) -> None:
    """End by a signal."""
    enter("crashing")
    os.kill(os.getpid(), signal.SIGKILL)


def test_each_call_has_its_own_end() -> None:
    """A value, an error with its stage, and a signal: long before the time limit."""
    assert call_all([answers, raises, dies], 600) == [
        Outcome([1, 2]),
        Outcome(problem="dividing: no such"),
        Outcome(problem="crashing was killed by signal 9 (SIGKILL), code 137"),
    ]


@pytest.mark.slow
def test_what_hangs_is_ended_by_the_time_limit() -> None:
    """And is told by the stage it hung in; what ended before it keeps its value."""
    began_s = time.monotonic()
    found = call_all([answers, hangs], 8)
    assert time.monotonic() - began_s < 60
    assert found == [Outcome([1, 2]), Outcome(problem="waiting, for 8 s", is_hung=True)]


def test_nothing_is_left_behind() -> None:
    """The one that hung is gone, and reaped."""
    pids: list[int] = []
    fork = os.fork

    def noted() -> int:
        pids.append(fork())
        return pids[-1]

    os.fork = noted
    try:
        call_all([hangs, answers], 0.5)
    finally:
        os.fork = fork
    assert len(pids) == 2
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]  # noqa: PTH110
