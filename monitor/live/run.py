"""What a run reports while it goes on: step, loss, speed, time left, outcome."""

from __future__ import annotations

import math
import os
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from monitor.analysis.rules_faults import REPORTS
from monitor.logs.follow import Follower
from monitor.runs.history import finite, integer
from rundir import codes
from rundir.events import read
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rundir.events import Event

_EVENTS_BYTES = 2**22  # of all launchers of 512 nodes: read once
_METRICS_BYTES = 2**16
_NUM_INTERVALS = 60
_NUM_NOTES = 20
_OUTCOMES = {
    codes.FINISHED: "finished",
    codes.STOPPED: "stopped",
    codes.USAGE: "refused",
    codes.HUNG: "hung",
}


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A run at one moment; None: not reported."""

    name: str
    outcome: str
    """`starting`, `running`, `finished`, `stopped`, `failed (code 1)`, `restarting`, …"""
    attempt: int | None = None
    num_ranks: int | None = None
    step: int | None = None
    num_steps: int | None = None
    """Of the whole run."""
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

    @property
    def is_over(self) -> bool:
        """Whether it reported its end and will not go on by itself."""
        return self.outcome not in ("starting", "running", "restarting", "requeued")


@dataclass
class LiveRun:
    """A run directory as far as it is known."""

    run_dir: str
    job_ids: list[str] = field(default_factory=list)
    """Of every attempt, the last one's last."""
    problem: str | None = None
    """Why it cannot be read; None: it can."""

    def __post_init__(self) -> None:
        files = RunDir(self.run_dir)
        self._events = Follower(files.events, _EVENTS_BYTES)
        self._metrics = Follower(files.metrics, _METRICS_BYTES)
        self._last: dict[str, Event] = {}  # of the last attempt, by name
        self._notes: deque[Event] = deque(maxlen=_NUM_NOTES)
        self._intervals: deque[Event] = deque(maxlen=_NUM_INTERVALS)
        self._ranks: dict[object, Event] = {}
        self._accuracy: float | None = None
        self._attempt: int | None = None

    @property
    def intervals(self) -> tuple[Event, ...]:
        """The trainer's last log intervals, of an attempt that is not over."""
        newest = self._attempt or 0
        found = ((integer(one.get("attempt")), one) for one in self._intervals)
        return tuple(one for attempt, one in found if attempt is None or attempt >= newest)

    @property
    def notes(self) -> tuple[Event, ...]:
        """Events of the last attempt that need a person."""
        return tuple(self._notes)

    @property
    def ranks(self) -> tuple[Event, ...]:
        """Of each rank of the last attempt, which local rank it is."""
        return tuple(self._ranks.values())

    def poll(self) -> None:
        """Read what is new."""
        try:
            new_events, lines = self._events.poll(), self._metrics.poll()
        except OSError as error:
            self.problem = error.strerror or str(error)
            return
        self.problem = None
        for event in read(new_events)[0]:
            self._take(event)
        for line in read(lines)[0]:
            self._count(line)

    def _take(self, event: Event) -> None:
        name, attempt = event.get("event"), integer(event.get("attempt"))
        if not isinstance(name, str):
            return
        if attempt is not None and attempt > (self._attempt or 0):
            self._attempt, self._last, self._ranks = attempt, {}, {}
            self._notes.clear()
        elif attempt is not None and attempt != self._attempt:
            return  # a late event of an earlier attempt
        self._last[name] = event
        if name in REPORTS:
            self._notes.append(event)
        rank = integer(event.get("rank"))
        if name == "rank_up" and rank is not None:
            self._ranks[rank] = {"rank": rank, "local_rank": event.get("local_rank")}
        job_id = event.get("job_id")
        if name == "start" and isinstance(job_id, str) and job_id not in self.job_ids[-1:]:
            self.job_ids.append(job_id)

    def _count(self, line: Event) -> None:
        if "test_accuracy" in line:
            self._accuracy = finite(line["test_accuracy"])
        if integer(line.get("step")) is None or "loss" not in line:
            return
        if self._intervals and self._intervals[-1].get("attempt") != line.get("attempt"):
            self._intervals.clear()
        self._intervals.append(line)

    def progress(self) -> Progress:
        """Sum up what is known."""
        intervals = self.intervals
        now = intervals[-1] if intervals else {}
        summary = _mapping(self._last.get("summary", {}).get("summary"))
        outcome = self._outcome(intervals)
        step = max(
            (s for s in map(integer, (now.get("step"), summary.get("steps"))) if s is not None),
            default=None,
        )
        total = integer(now.get("total_steps"))
        losses = (finite(one.get("loss")) for one in intervals)
        return Progress(
            name=os.path.basename(os.path.abspath(self.run_dir)),
            outcome=outcome,
            attempt=self._attempt,
            num_ranks=integer(self._last.get("start", {}).get("world_size")),
            step=step,
            num_steps=total,
            loss=finite(now.get("loss")),
            samples_per_s=finite(now.get("samples_per_s")),
            tokens_per_s=finite(now.get("tokens_per_s")),
            mfu_pct=finite(now.get("mfu_pct")),
            data_wait_pct=finite(now.get("data_wait_pct")),
            test_accuracy=self._accuracy,
            left_s=0.0 if outcome == "finished" else self._left_s(intervals, step, total),
            losses=tuple(math.nan if loss is None else loss for loss in losses),
        )

    def _outcome(self, intervals: Sequence[Event]) -> str:
        """Return its state by the last attempt's events."""
        decision = self._last.get("decision", {}).get("decision")
        if decision in ("restart", "requeue"):
            return {"restart": "restarting", "requeue": "requeued"}[decision]
        code = integer(self._last.get("end", {}).get("code"))
        summary = _mapping(self._last.get("summary", {}).get("summary"))
        if code is not None:
            return _OUTCOMES.get(code, f"failed (code {code})")
        if isinstance(summary.get("outcome"), str):
            return str(summary["outcome"])
        return "running" if intervals or "first_step" in self._last else "starting"

    @staticmethod
    def _left_s(intervals: Sequence[Event], step: int | None, total: int | None) -> float | None:
        """Return how long the rest takes at the pace of the last intervals of this attempt."""
        if step is None or total is None or len(intervals) < 2:  # noqa: PLR2004 - a pace
            return None
        first, last = intervals[0], intervals[-1]
        begin_s, end_s = (finite(one.get("train_time_s")) for one in (first, last))
        num_steps = last["step"] - first["step"]
        if begin_s is None or end_s is None or num_steps <= 0 or end_s <= begin_s:
            return None
        return float(max(0, total - step) * (end_s - begin_s) / num_steps)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
