"""All ranks of this node at one moment: by heartbeats, or else by inactivity."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from monitor.watchdog.inactivity import Inactivity, gpu_pattern
from monitor.watchdog.timeouts import BeatAge, Timeouts
from monitor.watchdog.visible import gpu_of
from rundir import procfs
from rundir.hang.reports import RankReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from monitor.logs.sample import GpuSample, Reading
    from monitor.watchdog.local_ranks import LocalRanks
    from rundir.heartbeat import Child, Heartbeat

_LATE_S = 2.0  # a poll that comes later than this was kept from it: so were the ranks, perhaps


class Observation(NamedTuple):
    """The ranks, and whether the inactivity of any of them calls for a verdict."""

    ranks: tuple[RankReport, ...]
    is_suspicious: bool


@dataclass
class _Known:
    """What stays the same of one process, and its inactivity so far."""

    identity: procfs.Identity | None
    env: Mapping[str, str]
    age: BeatAge
    inactivity: Inactivity


@dataclass
class RankObserver:
    """Classifies every rank at each poll."""

    node: LocalRanks
    timeouts: Timeouts
    monotonic: Callable[[], float] = time.monotonic
    _heartbeats: dict[int, Heartbeat] = field(default_factory=dict)
    """The last one of each rank."""
    _known: dict[tuple[int, int], _Known] = field(default_factory=dict)
    _polled_s: float | None = None
    _skipped_s: float = 0.0
    _reading: Reading | None = None
    _most_w: dict[int | None, float] = field(default_factory=dict)

    def see_gpus(self, reading: Reading) -> None:
        """Take what the recorder has just read; called from its thread."""
        for gpu in reading.gpus:
            if gpu.power_w is not None:
                self._most_w[gpu.index] = max(self._most_w.get(gpu.index, 0.0), gpu.power_w)
        self._reading = reading

    def poll(self) -> Observation:
        """Take one poll."""
        now_s = self._now()
        # a heartbeat that is just being written is none: the one before it still holds
        self._heartbeats |= self.node.heartbeats()
        heartbeats, children = self._heartbeats, self.node.children()
        found = [
            self._classify(rank, heartbeats.get(rank), children.get(rank), now_s)
            for rank in sorted(heartbeats.keys() | children.keys())
        ]
        return Observation(tuple(report for report, _ in found), any(calls for _, calls in found))

    def _now(self) -> float:
        """Give the time, and notice how much of it nothing watched."""
        now_s = self.monotonic()
        if self._polled_s is not None:
            passed_s, usual_s = now_s - self._polled_s, self.timeouts.poll_s()
            if passed_s > usual_s + _LATE_S:
                self._skipped_s += passed_s - usual_s
        self._polled_s = now_s
        return now_s

    def _classify(
        self, rank: int, heartbeat: Heartbeat | None, child: Child | None, now_s: float
    ) -> tuple[RankReport, bool]:
        """Classify one rank; and whether it calls for a verdict by itself."""
        if heartbeat is not None and self._state(rank, heartbeat.pid) is not None:
            return self._classify_heartbeat(heartbeat, child, now_s)
        if child is not None:
            return self._classify_inactivity(child, now_s)
        pid = heartbeat.pid if heartbeat else None
        return RankReport(rank=rank, pid=pid), False  # it has ended: the launcher's business

    def _classify_heartbeat(
        self, heartbeat: Heartbeat, child: Child | None, now_s: float
    ) -> tuple[RankReport, bool]:
        known = self._know(heartbeat.rank, heartbeat.pid)
        age_s = known.age.update(heartbeat, now_s, self._skipped_s)
        limit_s = known.age.limit_s()
        report = RankReport(
            rank=heartbeat.rank,
            local_rank=_local_rank(known.env, child),
            pid=heartbeat.pid,
            gpu=self._gpu(known.env, child, heartbeat.gpu)[0],
            step=heartbeat.step,
            phase=heartbeat.phase,
            collective=heartbeat.collective,
            age_s=round(age_s, 3),
            limit_s=limit_s,
            hung=age_s > limit_s,
            state=self._state(heartbeat.rank, heartbeat.pid),
        )
        return report, report.hung

    def _classify_inactivity(self, child: Child, now_s: float) -> tuple[RankReport, bool]:
        """Classify a command of the user's own, or our trainer that has no heartbeat (yet)."""
        known = self._know(child.rank, child.pid)
        name, pattern = self._gpu(known.env, child)
        limit_s = self.timeouts.command_limit_s()
        if child.is_trainer:
            limit_s = self.timeouts.limit_s("start", has_stepped=False)
        age_s = known.inactivity.update(
            now_s - self._skipped_s, self.node.log_state(child.rank), pattern, limit_s
        )
        state = self._state(child.rank, child.pid)
        report = RankReport(
            rank=child.rank,
            local_rank=child.local_rank,
            pid=child.pid,
            gpu=name,
            age_s=round(age_s, 3),
            limit_s=limit_s,
            hung=state is not None and age_s >= limit_s,
            state=state,
            pattern=pattern,
        )
        is_certain = self.timeouts.given_s is not None or child.is_trainer
        return report, report.hung and (is_certain or pattern == "waiting")

    def _know(self, rank: int, pid: int) -> _Known:
        key = (rank, pid)
        if key not in self._known:
            self._known[key] = _Known(
                identity=procfs.identity(pid),
                env=self.node.environment(pid),
                age=BeatAge(self.timeouts),
                inactivity=Inactivity(lambda: self.node.times(rank)),
            )
        return self._known[key]

    def _state(self, rank: int, pid: int) -> str | None:
        """Return the state; None also if another process has taken the number."""
        if procfs.identity(pid) != self._know(rank, pid).identity:
            return None
        return procfs.state(pid)

    def _gpu(
        self, env: Mapping[str, str], child: Child | None, uuid: str | None = None
    ) -> tuple[str, str | None]:
        """Name the rank's GPU, and its pattern."""
        reading = self._reading
        name, index = gpu_of(env, _local_rank(env, child), reading, uuid)
        gpu = next((g for g in reading.gpus if g.index == index), None) if reading else None
        if gpu is None or index is None or reading is None:
            return name, None
        return name, gpu_pattern(gpu, self._power_limit_w(gpu, reading))

    def _power_limit_w(self, gpu: GpuSample, reading: Reading) -> float | None:
        limit = dict(reading.facts).get(f"power_limit_w {gpu.index}", "")
        return float(limit) if limit.isdecimal() else self._most_w.get(gpu.index)


def _local_rank(env: Mapping[str, str], child: Child | None) -> int | None:
    if child is not None:
        return child.local_rank
    text = env.get("LOCAL_RANK", "")
    return int(text) if text.isdecimal() else None
