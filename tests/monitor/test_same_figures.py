"""Report, diagnose, export and why tell the same figures of the same run, and the right ones.

Each run is made at random: nodes in several zones, clocks that are set, gaps, missing cells, starts
after which an index is another GPU, and attempts that lose steps. What is right is summed up here.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.analysis.engine import evaluate
from monitor.export import rows
from monitor.logs import aggregates, files, gutil, reader, series, stats
from monitor.logs.sample import GpuSample, HostSample, Row
from monitor.report import document
from monitor.runs import why
from tests.monitor.collected import collect

INTERVAL_S = 15
WATTS = 300
BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)
ZONES = (timedelta(0), timedelta(hours=5, minutes=30), timedelta(hours=-8))


@dataclass
class Truth:
    """What one GPU did."""

    num_rows: int = 0
    sm: list[int] = field(default_factory=list)
    watched_s: int = 0
    idle_s: int = 0
    used_j: int = 0
    first: datetime = BEGIN
    last: datetime = BEGIN


@dataclass
class Made:
    """A run's logs, and what is true of them."""

    folder: Path
    gpus: dict[tuple[str, str], Truth]
    pauses: dict[str, list[int]]
    """Seconds without a sample, by node."""


def make(folder: Path, noise: np.random.Generator) -> Made:
    """Write the logs of a run of one to three nodes."""
    gpus: dict[tuple[str, str], Truth] = defaultdict(Truth)
    pauses: dict[str, list[int]] = {}
    num_gpus, num_starts = int(noise.integers(1, 3)), int(noise.integers(1, 4))
    for number in range(int(noise.integers(1, 4))):
        host = f"n{number}"
        node = _Node(noise, num_gpus, ZONES[int(noise.integers(0, 3))])
        text = "".join(node.start(host, n, f"GPU-{host}", gpus) for n in range(num_starts))
        (folder / f"slurm-7.{host}.gutil").write_text(text)
        pauses[host] = node.pauses[:-1]
    return Made(folder, dict(gpus), pauses)


class _Node:
    """Writes one node's log, as a monitor would whose node is as bad as that."""

    def __init__(self, noise: np.random.Generator, num_gpus: int, zone: timedelta) -> None:
        self._noise, self._num_gpus, self._zone = noise, num_gpus, zone
        self._swaps = noise.random() < 0.5
        self._true_s = 0
        self._set_s = 0
        self.pauses: list[int] = []

    def start(self, host: str, number: int, name: str, gpus: dict[tuple[str, str], Truth]) -> str:
        """Return what one start of the job writes."""
        uuids = [
            f"{name}-{index}-{number if self._swaps else 0}" for index in range(self._num_gpus)
        ]
        sign, minutes = "-+"[self._zone >= timedelta(0)], abs(self._zone) // timedelta(minutes=1)
        facts = {"monitor": "0.1.0", "host": host, "job": "7", "attempt": str(number + 1)}
        facts |= {
            "interval_s": str(INTERVAL_S),
            "utc_offset": f"{sign}{minutes // 60:02}:{minutes % 60:02}",
        }
        facts |= {f"gpu {index}": f"{uuid} NVIDIA H100" for index, uuid in enumerate(uuids)}
        layout = gutil.Layout("pumtjhk")
        text = layout.header() + "".join(gutil.comment(*fact) for fact in facts.items())
        moments = list(self._moments())
        for (before_s, _), (true_s, wall) in zip([(None, None), *moments], moments):  # noqa: B905
            samples = []
            for uuid in uuids:
                busy = int(90 * (self._noise.random() < 0.7))
                is_end = true_s in (moments[0][0], moments[-1][0])
                sm = busy if is_end or self._noise.random() < 0.97 else None
                is_counted = is_end or self._noise.random() < 0.9
                energy_j = 1_000_000 + WATTS * true_s if is_counted else None
                reading = {"sm_pct": sm, "power_w": WATTS, "energy_j": energy_j}
                samples.append(GpuSample(index=len(samples), **reading))
                truth = gpus[host, uuid]
                _note(truth, sm, true_s, before_s)
                truth.first, truth.last = (wall if not truth.num_rows else truth.first), wall
                truth.num_rows += 1
            host_sample = HostSample(40, 2048, mono_s=1000 + true_s)
            block = [Row(wall.replace(tzinfo=None), sample, host_sample) for sample in samples]
            text += layout.block(block, 0)
        self.pauses.append(600 + INTERVAL_S)  # in the queue
        self._true_s += 600
        return text

    def _moments(self) -> Iterator[tuple[int, datetime]]:
        """Give true seconds and what the wall clock says, in the node's zone."""
        for stretch in range(int(self._noise.integers(1, 4))):
            if stretch and self._noise.random() < 0.5:
                self._set_s += int(self._noise.choice([-1, 1]) * self._noise.integers(3, 3600))
            elif stretch:
                pause_s = int(self._noise.integers(300, 3600))
                self._true_s += pause_s
                self.pauses.append(pause_s + INTERVAL_S)
            for _ in range(int(self._noise.integers(40, 90))):
                self._true_s += INTERVAL_S
                moment = BEGIN + timedelta(seconds=self._true_s + self._set_s)
                yield self._true_s, moment.astimezone(timezone(self._zone))


def _note(truth: Truth, sm: int | None, true_s: int, before_s: int | None) -> None:
    if sm is not None:
        truth.sm.append(sm)
    if before_s is None:
        return
    step_s = true_s - before_s
    truth.used_j += WATTS * step_s  # the counter ran on, also where nobody looked
    if step_s <= 5 * INTERVAL_S:
        truth.watched_s += step_s
        truth.idle_s += step_s if sm == 0 else 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_every_view_of_the_logs_tells_the_same(tmp_path: Path, seed: int) -> None:
    """By node and UUID: hours, energy, means and rows; by node: how long nothing was written."""
    made = make(tmp_path, np.random.default_rng(seed))
    nodes, reported = aggregates.count(files.find([str(tmp_path)]))
    report = document.document(stats.join(nodes), reported, None)
    by_gpu = {(gpu["host"], gpu["uuid"]): gpu for gpu in report["gpus"]}
    paths = sorted(map(str, tmp_path.glob("*.gutil")))
    exported = [
        row for path in paths for row in rows.table(reader.read(path)).iter_rows(named=True)
    ]
    watched = series.load([str(tmp_path)])
    looked_at = {(gpu.host, gpu.facts[f"gpu {gpu.gpu}"].split()[0]): gpu for gpu in watched.gpus}
    assert by_gpu.keys() == made.gpus.keys() == looked_at.keys()
    for key, truth in made.gpus.items():
        gpu, mean = by_gpu[key], np.mean(truth.sm)
        assert gpu["hours"] * 3600 == pytest.approx(truth.watched_s), key
        assert gpu["energy_kwh"] * 3.6e6 == pytest.approx(truth.used_j), key
        assert gpu["idle_min"] * 60 == pytest.approx(truth.idle_s), key
        own = [row for row in exported if (row["node"], row["uuid"]) == key]
        assert len(own) == gpu["num_samples"] == looked_at[key].num_samples == truth.num_rows
        assert np.mean([r["sm_pct"] for r in own if r["sm_pct"] is not None]) == pytest.approx(mean)
        assert np.nanmean(looked_at[key].values["sm"]) == pytest.approx(mean)
        assert [own[0]["time_utc"], own[-1]["time_utc"]] == [truth.first, truth.last]
    gaps = {
        one.host: one
        for one in evaluate(watched)
        if one.rule == "gap" and "written" in one.evidence
    }
    assert gaps.keys() == {host for host, pauses in made.pauses.items() if pauses}
    for host, finding in gaps.items():
        assert finding.weight == max(made.pauses[host])


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.slow
def test_why_and_export_tell_the_same_of_attempts(
    story: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Steps lost, goodput and where the time went, of a run that goes on and of one that ended."""
    noise = np.random.default_rng(seed)
    story.now_s = BEGIN.timestamp()
    saved, lost = 0, 0
    num_attempts, goes_on = int(noise.integers(1, 5)), bool(noise.random() < 0.5)
    for number in range(1, num_attempts + 1):
        story.start()
        last, begun = saved + 10 * int(noise.integers(1, 8)), saved
        if noise.random() < 0.7:
            saved = int(noise.integers(saved // 10 + 1, last // 10 + 1)) * 10
        story.train(begun, last, saves=(saved,) if saved > begun else ())
        is_last = number == num_attempts
        if not (is_last and goes_on):
            story.fail(1, 137, "KILL")
            lost += last - saved
        if not is_last:
            story.now_s += int(noise.integers(1, 60))
            story.again()
    now_s = story.now_s + 5
    monkeypatch.setattr(time, "time", lambda: now_s)
    run_dir = str(story.write())
    reported, found = why.gather(run_dir, now_s), collect(Path(run_dir), now_s=now_s)
    (_, exported_lost) = found["ddp_run_steps_lost"][0]
    (_, share) = found["ddp_run_goodput_ratio"][0]
    spent = {labels["spent_on"]: value for labels, value in found["ddp_run_time_seconds"]}
    assert exported_lost == reported["steps_lost"] == lost
    assert share == pytest.approx(reported["goodput"]["goodput_pct"] / 100)
    for part, value in spent.items():
        assert value == pytest.approx(reported["goodput"][f"{part}_s"])
    assert sum(spent.values()) == pytest.approx(reported["goodput"]["wall_s"], abs=0.02)
    assert reported["attempt"]["attempt"] == found["ddp_run_attempt"][0][1] == num_attempts
