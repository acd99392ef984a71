"""The trainer, its command line and its own loop, timed by the lines it writes to metrics.jsonl.

    python -P -m benchmarks.ours FILE [trainer options]

runs it, and notes in FILE the CPU time at each of those lines; it is otherwise `python -m trainer`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contestant import Lap
from benchmarks.startup import epoch_s
from benchmarks.task import LEARNING_RATE, LOG_EVERY_STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.task import Task

_ROOT = Path(__file__).parent.parent
_TIMEOUT_S = 300


def run_round(task: Task, digits: Path) -> Lap:
    """Run `python -m trainer` for the task's steps; the time is from one line to another."""
    with tempfile.TemporaryDirectory() as folder:
        cpu_path = Path(folder) / "cpu.json"
        words = _options(task, digits, Path(folder))
        command = [sys.executable, "-P", "-m", "benchmarks.ours", str(cpu_path), *words]
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
        cpu_s = {int(k): v for k, v in json.loads(cpu_path.read_text(encoding="utf-8")).items()}
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return _lap(task, lines, cpu_s)


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


def _lap(task: Task, lines: Sequence[str], cpu_s: Mapping[int, float]) -> Lap:
    intervals = {m["step"]: m for m in map(json.loads, lines) if "loss" in m}
    first, last = intervals[task.num_warmup_steps], intervals[task.total_steps]
    seconds = epoch_s(last) - epoch_s(first)
    cpu_seconds = cpu_s[task.total_steps] - cpu_s[task.num_warmup_steps]
    return Lap(
        steps_per_s=task.num_steps / seconds,
        steps_per_cpu_s=task.num_steps / cpu_seconds,
        loss=last["loss"],
    )


def main(path: Path, argv: list[str]) -> int:
    """Train, with the CPU time noted at each log interval."""
    from trainer import __main__ as entry  # noqa: PLC0415 -- the race itself needs no torch
    from trainer.loop.loop import Loop  # noqa: PLC0415 -- the same

    cpu_s: dict[int, float] = {}
    log = Loop._log  # noqa: SLF001 -- no public hook; what it does is left as it is

    def marked(loop: Loop, step: int) -> None:
        log(loop, step)
        cpu_s[step] = time.process_time()

    patched: Any = Loop
    patched._log = marked  # noqa: SLF001 -- see above
    code = entry.main(argv, os.environ)
    path.write_text(json.dumps(cpu_s), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
