"""What a heartbeat costs: all heartbeats of a step, one after the other, as the loop makes them."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from trainer.telemetry.heartbeat import (
    AGREE,
    BACKWARD,
    DATA,
    FORWARD,
    LOG,
    UPDATE,
    Heartbeat,
    SharedHeartbeat,
)

_NUM_STEPS = 20_000
_NUM_REPETITIONS = 7
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- where the launcher puts it, too


@dataclass(frozen=True, kw_only=True)
class Heartbeats:
    """CPU time of the heartbeats of one step, in microseconds: the least of several repetitions."""

    watched_us: float
    unwatched_us: float
    """Without a folder for heartbeats: what every run pays."""
    num_writes: int


def measure() -> Heartbeats:
    """Measure a step of one microbatch, asked about and logged: more than most steps have."""
    folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=folder) as name:
        heartbeat = SharedHeartbeat(Path(name) / "rank-0")
        return Heartbeats(
            watched_us=_time(heartbeat), unwatched_us=_time(Heartbeat()), num_writes=6
        )


def _time(heartbeat: Heartbeat) -> float:
    return min(_time_once(heartbeat) for _ in range(_NUM_REPETITIONS))


def _time_once(heartbeat: Heartbeat) -> float:
    began_s = time.process_time()
    for step in range(_NUM_STEPS):
        heartbeat.enter(DATA)
        heartbeat.enter(FORWARD)
        heartbeat.collective(BACKWARD)
        heartbeat.enter(UPDATE)
        heartbeat.step = step
        heartbeat.collective(AGREE)
        heartbeat.collective(LOG)
    return (time.process_time() - began_s) / _NUM_STEPS * 1e6


if __name__ == "__main__":
    print(measure())
