"""Write made-up logs and a made-up run, to show what pictures of large runs look like.

python docs/synthetic_logs.py OUT [NODES [GPUS [HOURS [INTERVAL_S]]]]

All of it is invented, and says so: the job, the run and the nodes are named `synthetic`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from monitor.logs import gutil

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

_BEGIN = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
_OFFSET = timedelta(hours=1)
_SEED = 4
_LIMIT_W, _MEMORY_MIB = 700, 81_559
_CHECKPOINT_S = 1800
_BREAK_S = 300
_NUM_STEPS = 20_000


@dataclass
class Synthetic:
    """A job that never ran: it breaks once, one GPU idles, one is lost, one node grows too hot."""

    out: Path
    nodes: int = 16
    gpus: int = 8
    hours: float = 6
    interval_s: float = 15
    under_way: bool = False
    """It has not come to its end yet."""
    rng: Generator = field(default_factory=lambda: np.random.default_rng(_SEED))

    def __post_init__(self) -> None:
        self.passed_s: NDArray[np.float64] = np.arange(
            0, self.hours * 3600, self.interval_s, dtype=np.float64
        )
        self.last_s = float(self.passed_s[-1])
        self.broke_s = 0.55 * self.hours * 3600

    def write(self) -> Path:
        """Write a log a node, and the run directory beside them; the run directory."""
        run_dir = self.out / "slurm-synthetic"
        run_dir.mkdir(parents=True, exist_ok=True)
        for node in range(self.nodes):
            self._log(node)
        for name, lines in (("metrics.jsonl", self._metrics()), ("events.jsonl", self._events())):
            (run_dir / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return run_dir

    def _log(self, node: int) -> None:
        host = f"synthetic{node + 1:0{max(2, len(str(self.nodes)))}d}"
        cells = [self._cells(node, gpu) for gpu in range(self.gpus)]
        facts = [("host", host), ("job", "synthetic"), ("utc_offset", "+01:00")]
        facts += [(f"memory_mib {gpu}", f"{_MEMORY_MIB}") for gpu in range(self.gpus)]
        facts += [(f"power_limit_w {gpu}", f"{_LIMIT_W}") for gpu in range(self.gpus)]
        facts.append(("note", "synthetic: these numbers are invented"))
        if node == self.nodes // 3:
            facts.append(
                ("event", f"{_time(self.broke_s)} xid gpu=2 xid=79 text=GPU_has_fallen_off_the_bus")
            )
        header, num_rows = gutil.Layout("pumtr").header(), 0
        with (self.out / f"slurm-synthetic.{host}.gutil").open("w") as file:
            file.write(header)
            file.writelines(gutil.comment(key, value) for key, value in facts)
            for cycle, after_s in enumerate(self.passed_s.tolist()):
                if self.broke_s < after_s < self.broke_s + _BREAK_S:
                    continue  # nothing ran between the two starts
                stamp = f"{_BEGIN + _OFFSET + timedelta(seconds=after_s):%Y%m%d    %H:%M:%S}"
                for gpu in range(self.gpus):
                    if num_rows and num_rows % gutil.ROWS_PER_HEADER == 0:
                        file.write(header)
                    file.write(f" {stamp}{gpu:>8}{cells[gpu][cycle]} \n")
                    num_rows += 1

    def _cells(self, node: int, gpu: int) -> list[str]:
        """Make up the cells of one GPU, a text a cycle."""
        passed_s, count = self.passed_s, len(self.passed_s)
        part = passed_s / max(1.0, self.last_s)
        busy = np.clip(self.rng.normal(88, 6, count), 0, 100)
        busy[passed_s % _CHECKPOINT_S < 60] = 12
        busy[passed_s < 120] = 2
        memory = np.where(passed_s < 90, 600, 61_000 + 300 * (gpu % 4))
        if node == self.nodes // 2 and gpu == min(5, self.gpus - 1):
            idle = (part > 0.2) & (part < 0.4)
            busy, memory = np.where(idle, 0, busy), np.where(idle, 9_000, memory)
        power = 90 + busy * 5.6 + self.rng.normal(0, 12, count)
        temp = 34 + power / 17 + 1.5 * (gpu % 4)
        bits = np.where(power > 665, 4, np.where(busy < 5, 1, 0))
        if node == self.nodes // 4:
            hot = part > 0.7
            temp, power = temp + 11 * hot, np.where(hot, 0.75 * power, power)
            bits = np.where(hot, 32, bits)
        none = 0 * busy
        columns = [power, temp, temp + 9, busy, busy * 0.6, none, none, none, none, memory]
        columns += [none + 4, none, none, none, bits]
        whole = np.stack(columns).astype(np.int64).T
        is_lost = (passed_s > self.broke_s) & (node == self.nodes // 3) & (gpu == 2)
        blank = f" {'-':>6}" * len(columns)
        rows = ["".join(f" {value:>6}" for value in row) for row in whole.tolist()]
        return [blank if lost else row for row, lost in zip(rows, is_lost, strict=True)]

    def _metrics(self) -> list[dict[str, object]]:
        lines: list[dict[str, object]] = []
        for number, after_s in enumerate(np.arange(150, self.last_s, 30).tolist()):
            if self.broke_s - 30 < after_s < self.broke_s + _BREAK_S + 120:
                continue
            attempt = 2 if after_s > self.broke_s else 1
            loss = 2.1 + 8 * np.exp(-after_s / (0.18 * self.last_s)) + self.rng.normal(0, 0.03)
            rate = 210 if after_s % _CHECKPOINT_S > 60 else 120
            rate *= self.nodes * self.gpus * self.rng.normal(1, 0.012)
            line = {"time": _time(after_s), "attempt": attempt, "step": 20 * number}
            line |= {"loss": loss, "samples_per_s": rate, "data_wait_pct": 1.5}
            lines.append(line | {"train_time_s": 30 * number, "total_steps": _NUM_STEPS})
        return lines

    def _events(self) -> list[dict[str, object]]:
        size = self.nodes * self.gpus
        again_s = self.broke_s + _BREAK_S
        story = [(0.0, "start", 1, {"world_size": size, "job_id": "synthetic"})]
        for after_s in np.arange(_CHECKPOINT_S, self.last_s, _CHECKPOINT_S).tolist():
            number = 2 if after_s > self.broke_s else 1
            story.append((after_s, "checkpoint", number, {"step": int(after_s * 2 / 3)}))
        failed = {"rank": 2, "node": "synthetic", "code": 134, "signal": "ABRT"}
        story.append((self.broke_s, "first_failure", 1, failed))
        story.append((again_s, "start", 2, {"world_size": size, "job_id": "synthetic"}))
        if not self.under_way:
            story.append((self.last_s - 130, "signal", 2, {"signal": "USR1"}))
            story.append((self.last_s, "end", 2, {"code": 75}))
        return [
            {"time": _time(after_s), "event": name, "source": "prelaunch", "attempt": number}
            | {"host": "synthetic", **further}
            for after_s, name, number, further in sorted(story, key=lambda one: one[0])
        ]


def _time(after_s: float) -> str:
    return (_BEGIN + timedelta(seconds=after_s)).isoformat(timespec="milliseconds")


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv[2:]] + [16, 8, 6, 15][len(sys.argv) - 2 :]
    print(Synthetic(Path(sys.argv[1]), int(numbers[0]), int(numbers[1]), *numbers[2:]).write())
