"""The trainer as a user runs it, timed by the lines it writes to metrics.jsonl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contestant import Lap
from benchmarks.task import LEARNING_RATE, LOG_EVERY_STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.task import Task

_ROOT = Path(__file__).parent.parent
_TIMEOUT_S = 300


def run_round(task: Task, digits: Path) -> Lap:
    """Run `python -m trainer` for the task's steps; the time is from one line to another."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "trainer", *_options(task, digits, Path(folder))]
        ended = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(_ROOT)},
            timeout=_TIMEOUT_S,
        )
        if ended.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr}")
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return _lap(task, lines)


def _options(task: Task, digits: Path, out: Path) -> list[str]:
    chosen = {
        "out": out,
        "data-dir": digits,
        "model": task.model,
        "global-batch-size": task.batch_size,
        "max-steps": task.total_steps,
        "optimizer": "adam",
        "weight-decay": 0,
        "lr": LEARNING_RATE,
        "schedule": "constant",
        "log-every": LOG_EVERY_STEPS,
    }
    return [f"--{name}={value}" for name, value in chosen.items()]


def _lap(task: Task, lines: Sequence[str]) -> Lap:
    intervals = {m["step"]: m for m in map(json.loads, lines) if "loss" in m}
    first, last = intervals[task.num_warmup_steps], intervals[task.total_steps]
    seconds = (_time(last) - _time(first)).total_seconds()
    return Lap(steps_per_s=task.num_steps / seconds, loss=last["loss"])


def _time(line: dict[str, str]) -> datetime:
    return datetime.fromisoformat(line["time"])
