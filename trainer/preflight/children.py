"""Calls in processes of their own, which a time limit ends whatever they hang in.

They are forked, so that each has what was imported before, and a GPU's context of its own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from rundir import codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Enter = Callable[[str], None]
    """Names the stage that begins."""
    Call = Callable[[Enter], object]

_REAP_S = 1.0
"""How long a killed process may take to go; one that waits for the kernel may never."""


class Outcome(NamedTuple):
    """How a call ended."""

    value: Any = None
    """What it returned, as JSON has it."""
    problem: str = ""
    """In words; empty if it returned."""
    is_hung: bool = False


class _Child:
    def __init__(self, call: Call) -> None:
        self.fd, write_fd = os.pipe()
        self.data = b""
        self.is_open = True
        self.pid = os.fork()
        if not self.pid:
            _be_child(call, write_fd)
        os.close(write_fd)

    def read(self) -> None:
        data = os.read(self.fd, 1 << 16)
        self.data += data
        self.is_open = bool(data)

    def close(self, limit_s: float) -> Outcome:
        """End it, if it has not ended, and say how it did."""
        os.close(self.fd)
        if self.is_open:
            os.kill(self.pid, signal.SIGKILL)
        status = _reap(self.pid)
        *lines, _torn = self.data.split(b"\n")
        stages = [json.loads(line) for line in lines]
        last = stages[-1] if stages else {}
        stage = last.get("stage", "start")
        if self.is_open:
            return Outcome(problem=f"{stage}, for {limit_s:g} s", is_hung=True)
        if "value" in last:
            return Outcome(last["value"])
        code = codes.of_wait_status(os.waitstatus_to_exitcode(status or 0))
        return Outcome(problem=last.get("error") or f"{stage} {codes.describe(code)}")


def call_all(calls: Sequence[Call], limit_s: float) -> list[Outcome]:
    """Make all calls at the same time; what takes longer than `limit_s` is killed."""
    deadline_s = time.monotonic() + limit_s
    children = [_Child(call) for call in calls]
    while running := {child.fd: child for child in children if child.is_open}:
        left_s = deadline_s - time.monotonic()
        ready = select.select(list(running), [], [], max(left_s, 0))[0]
        if not ready:
            break
        for fd in ready:
            running[fd].read()
    return [child.close(limit_s) for child in children]


def _be_child(call: Call, fd: int) -> NoReturn:
    stage = "start"

    def put(**line: object) -> None:
        os.write(fd, json.dumps(line).encode() + b"\n")

    def enter(name: str) -> None:
        nonlocal stage
        stage = name
        put(stage=name)

    try:
        put(value=call(enter))
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the parent reports it
        text = " ".join(str(error).split("\n")[0].split()) or type(error).__name__
        put(stage=stage, error=f"{stage}: {text}")
    os._exit(0)


def _reap(pid: int) -> int | None:
    deadline_s = time.monotonic() + _REAP_S
    while time.monotonic() < deadline_s:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(0.01)
    return None
