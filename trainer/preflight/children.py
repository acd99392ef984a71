"""Calls in processes of their own, which a time limit ends whatever they hang in.

They are forked, so that each has what was imported before, and a GPU's context of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, NamedTuple

from rundir import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Enter = Callable[[str], None]
    """Names the stage that begins."""
    Call = Callable[[Enter], object]

_FORK = multiprocessing.get_context("fork")
_REAP_S = 1.0
"""How long a killed process may take to go; one that waits for the kernel may never."""


class Outcome(NamedTuple):
    """How a call ended."""

    value: Any = None
    """What it returned."""
    problem: str = ""
    """In words; empty if it returned."""
    is_hung: bool = False


class _Child:
    def __init__(self, call: Call) -> None:
        self.pipe, theirs = _FORK.Pipe(duplex=False)
        self.outcome: Outcome | None = None
        self._stage = "start"
        self._process = _FORK.Process(target=_run, args=(call, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def receive(self) -> None:
        """Take the next stage, or the end."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):  # in the middle of a message, too
            self._process.join(_REAP_S)
            code = codes.of_wait_status(self._process.exitcode or 0)
            message = Outcome(problem=f"{self._stage} {codes.describe(code)}")
        if isinstance(message, Outcome):
            self.outcome = message
        else:
            self._stage = message

    def close(self, limit_s: float) -> Outcome:
        """End it, if it has not ended; return how it did."""
        self._process.kill()
        self._process.join(_REAP_S)
        hung = Outcome(problem=f"{self._stage}, for {limit_s:g} s", is_hung=True)
        return self.outcome or hung


def call_all(calls: Sequence[Call], limit_s: float) -> list[Outcome]:
    """Make all calls at the same time; what takes longer than `limit_s` is killed."""
    deadline_s = time.monotonic() + limit_s
    children = [_Child(call) for call in calls]
    while running := [child for child in children if child.outcome is None]:
        left_s = max(deadline_s - time.monotonic(), 0)
        ready = connection.wait([child.pipe for child in running], left_s)
        if not ready:
            break
        for child in running:
            if child.pipe in ready:
                child.receive()
    return [child.close(limit_s) for child in children]


def _run(call: Call, pipe: connection.Connection) -> None:
    """Send each stage, and the outcome."""
    stage = "start"

    def enter(name: str) -> None:
        nonlocal stage
        stage = name
        pipe.send(stage)

    try:
        outcome = Outcome(call(enter))
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the parent reports it
        text = " ".join(str(error).split("\n")[0].split()) or type(error).__name__
        outcome = Outcome(problem=f"{stage}: {text}")
    pipe.send(outcome)
    os._exit(0)  # what torch or a driver does at its end may hang
