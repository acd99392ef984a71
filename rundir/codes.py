"""Exit codes: of a rank, and of the job, whose code is the first failing rank's."""

from __future__ import annotations

import signal

FINISHED = 0
USAGE = 64
"""The user's input or environment is wrong: no retry helps."""
FAILED = 70
"""A rank failed."""
STOPPED = 75
"""Stopped on request with a checkpoint written: requeue me."""
HUNG = 76
"""The watchdog found a rank that hangs."""
KILLED = 128 + signal.SIGKILL

_MOST_SIGNALS = 64


def signal_name(code: int) -> str | None:
    """Name the signal behind code 128+N, such as KILL; None for any other code."""
    number = code - 128
    if not 0 < number <= _MOST_SIGNALS:
        return None
    try:
        return signal.Signals(number).name[len("SIG") :]
    except ValueError:
        low = number - signal.SIGRTMIN
        return f"RTMIN+{low}" if low >= 0 else None


def of_wait_status(returncode: int) -> int:
    """Turn a child's returncode, which is -N for signal N, into an exit code."""
    return returncode if returncode >= 0 else 128 - returncode


def describe(code: int) -> str:
    """Say for a person how a process ended: `was killed by signal 9 (SIGKILL), code 137`."""
    name = signal_name(code)
    if name is None:
        return f"ended with code {code}"
    return f"was killed by signal {code - 128} (SIG{name}), code {code}"
