"""What a run tells of itself while it goes on: step, loss, speed, time left, outcome."""

from __future__ import annotations

import math
import os
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monitor import events
from monitor.logs.follow import Follower
from monitor.runs.history import integer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitor.events import Event

_EVENTS_BYTES = 2**22  # of 512 nodes' launchers in all: told in one place, read once
_METRICS_BYTES = 2**16
_NUM_INTERVALS = 60
_NUM_NOTES = 20
_OUTCOMES = {0: "finished", 75: "stopped", 64: "refused", 76: "hung"}
_TELLING = ("verdict", "lost_node", "failure", "non_finite", "checkpoint_failed", "signal")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A run at one moment; None: it did not tell."""

    name: str
    outcome: str
    """`starting`, `running`, `finished`, `stopped`, `failed (code 1)`, `restarting`, …"""
    attempt: int | None = None
    num_ranks: int | None = None
    step: int | None = None
    num_steps: int | None = None
    """Of the whole run."""
    epoch: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    mfu_pct: float | None = None
    data_wait_pct: float | None = None
    test_accuracy: float | None = None
    left_s: float | None = None
    """At the pace of the last intervals; 0 at the end."""
    losses: tuple[float, ...] = ()
    """Of the last intervals, the newest last."""
    notes: tuple[Event, ...] = ()
    """Events of the last attempt that say what went wrong."""

    @property
    def is_over(self) -> bool:
        """Whether it told its end, and will not go on by itself."""
        return self.outcome not in ("starting", "running", "restarting", "requeued")


@dataclass
class LiveRun:
    """A run directory as far as it is known.

    Args:
        run_dir: the files need not be there yet.

    """

    run_dir: str
    job_ids: list[str] = field(default_factory=list)
    """Of every attempt, the last one's last."""
    problem: str | None = None
    """Why it cannot be read; None: it can."""

    def __post_init__(self) -> None:
        self._events = Follower(self._path("events.jsonl"), _EVENTS_BYTES)
        self._metrics = Follower(self._path("metrics.jsonl"), _METRICS_BYTES)
        self._last: dict[str, Event] = {}  # of the last attempt, by name
        self._notes: deque[Event] = deque(maxlen=_NUM_NOTES)
        self._intervals: deque[Event] = deque(maxlen=_NUM_INTERVALS)
        self._accuracy: float | None = None
        self._attempt: int | None = None

    def _path(self, *names: str) -> str:
        return os.path.join(self.run_dir, *names)  # noqa: PTH118 - start time

    def poll(self) -> None:
        """Look whether it told more."""
        try:
            told, lines = self._events.poll(), self._metrics.poll()
        except OSError as error:
            self.problem = error.strerror or str(error)
            return
        self.problem = None
        for event in events.read(told)[0]:
            self._hear(event)
        for line in events.read(lines)[0]:
            self._count(line)

    def _hear(self, event: Event) -> None:
        name, attempt = event.get("event"), integer(event.get("attempt"))
        if not isinstance(name, str):
            return
        if attempt is not None and attempt > (self._attempt or 0):
            self._attempt, self._last = attempt, {}
            self._notes.clear()
        elif attempt is not None and attempt != self._attempt:
            return  # a late word of an earlier start
        self._last[name] = event
        if name in _TELLING:
            self._notes.append(event)
        job_id = event.get("job_id")
        if name == "start" and isinstance(job_id, str) and job_id not in self.job_ids[-1:]:
            self.job_ids.append(job_id)

    def _count(self, line: Event) -> None:
        if "test_accuracy" in line:
            self._accuracy = _finite(line["test_accuracy"])
        if integer(line.get("step")) is None or "loss" not in line:
            return
        if self._intervals and self._intervals[-1].get("attempt") != line.get("attempt"):
            self._intervals.clear()
        self._intervals.append(line)

    def progress(self) -> Progress:
        """Sum up what is known."""
        now = self._intervals[-1] if self._intervals else {}
        summary = _mapping(self._last.get("summary", {}).get("summary"))
        outcome = self._outcome()
        step = max(
            (s for s in map(integer, (now.get("step"), summary.get("steps"))) if s is not None),
            default=None,
        )
        total = integer(now.get("total_steps"))
        return Progress(
            name=os.path.basename(os.path.abspath(self.run_dir)),  # noqa: PTH100, PTH119
            outcome=outcome,
            attempt=self._attempt,
            num_ranks=integer(self._last.get("start", {}).get("world_size")),
            step=step,
            num_steps=total,
            epoch=integer(now.get("epoch")),
            loss=_finite(now.get("loss")),
            samples_per_s=_finite(now.get("samples_per_s")),
            tokens_per_s=_finite(now.get("tokens_per_s")),
            mfu_pct=_finite(now.get("mfu_pct")),
            data_wait_pct=_finite(now.get("data_wait_pct")),
            test_accuracy=self._accuracy,
            left_s=0.0 if outcome == "finished" else self._left_s(step, total),
            losses=tuple(_number(one.get("loss")) for one in self._intervals),
            notes=tuple(self._notes),
        )

    def _outcome(self) -> str:
        """Tell where it stands by the last attempt's events."""
        decision = self._last.get("decision", {}).get("decision")
        if decision in ("restart", "requeue"):
            return {"restart": "restarting", "requeue": "requeued"}[decision]
        code = integer(self._last.get("end", {}).get("code"))
        summary = _mapping(self._last.get("summary", {}).get("summary"))
        if code is not None:
            return _OUTCOMES.get(code, f"failed (code {code})")
        if isinstance(summary.get("outcome"), str):
            return str(summary["outcome"])
        return "running" if self._intervals or "first_step" in self._last else "starting"

    def _left_s(self, step: int | None, total: int | None) -> float | None:
        """Tell how long the rest takes at the pace of the last intervals of this attempt."""
        if step is None or total is None or len(self._intervals) < 2:  # noqa: PLR2004 - a pace
            return None
        first, last = self._intervals[0], self._intervals[-1]
        begin_s, end_s = (_finite(one.get("train_time_s")) for one in (first, last))
        num_steps = last["step"] - first["step"]
        if begin_s is None or end_s is None or num_steps <= 0 or end_s <= begin_s:
            return None
        return float(max(0, total - step) * (end_s - begin_s) / num_steps)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    found = _finite(value)
    return math.nan if found is None else found


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
