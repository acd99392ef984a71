"""From jobs/prelaunch.sh to the first optimizer step, and what of it is not `import torch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROOT = Path(__file__).parent.parent
_TIMEOUT_S = 300
_IMPORT = ["-c", "import torch, time; print(time.time())"]
_BY_HAND = ["-P", "-m", "benchmarks.plain_start"]
_OPTIONS = ["--max-steps=1", "--log-every=1"]


@dataclass(frozen=True, kw_only=True)
class Startup:
    """Seconds, a value a repetition."""

    num_ranks: int
    total_s: Sequence[float]
    """To the line of the first step in metrics.jsonl."""
    import_torch_s: Sequence[float]
    """Until as many bare interpreters, started together, have imported torch."""
    by_hand_s: Sequence[float]
    """Until as many programs written by hand, started together, have taken a first step."""
    phases_s: Mapping[str, Sequence[float]]
    """What happens in `total_s`, one after the other."""


def measure(num_ranks: int, num_repetitions: int) -> Startup:
    """Start jobs, bare interpreters and programs by hand in turns."""
    totals, imports, by_hand, phases = [], [], [], []
    for _ in range(num_repetitions):
        imports.append(_time_python(_IMPORT, num_ranks))
        by_hand.append(_time_python(_BY_HAND, num_ranks))
        totals.append(_time_job(num_ranks))
        phases.append(_time_phases(num_ranks))
    return Startup(
        num_ranks=num_ranks,
        total_s=totals,
        import_torch_s=imports,
        by_hand_s=by_hand,
        phases_s={name: [p[name] for p in phases] for name in phases[0]},
    )


def _time_python(words: list[str], num_processes: int) -> float:
    """Seconds until the last of as many interpreters has printed its time."""
    command = [sys.executable, *words]
    with tempfile.TemporaryDirectory() as unused:
        env = environment(num_processes, Path(unused))
    began_s = time.time()
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        for _ in range(num_processes)
    ]
    outputs = [process.communicate(timeout=_TIMEOUT_S)[0] for process in started]
    return max(map(float, outputs)) - began_s


def _time_job(num_ranks: int) -> float:
    with tempfile.TemporaryDirectory() as out:
        began_s = time.time()
        run_dir = run_job(num_ranks, Path(out), _OPTIONS)
        lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return epoch_s(json.loads(lines[0])) - began_s


def _time_phases(num_ranks: int) -> dict[str, float]:
    """Run once more with the trainer's phases marked, as a command of the user's."""
    with tempfile.TemporaryDirectory() as out:
        marks_path = Path(out) / "marks.json"
        command = [sys.executable, "-P", "-m", "benchmarks.phases", str(marks_path), *_OPTIONS]
        began_s = time.time()
        check = [sys.executable, "-P", "-m", "trainer", "--check", *_OPTIONS]
        subprocess.run(check, check=True, env=environment(num_ranks, Path(out)))
        checked_s = time.time()
        run_dir = run_job(num_ranks, Path(out), ["--", *command])
        marks = json.loads(marks_path.read_text(encoding="utf-8"))
        lines = (run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = {event["event"]: event for event in reversed([json.loads(line) for line in lines])}
    ends = [
        ("prelaunch.sh: options checked (`--check`)", checked_s),
        ("prelaunch.sh: settings, run directory", epoch_s(events["start"])),
        ("launcher.sh, interpreter", marks[0][1]),
        *((name, end_s) for name, end_s in marks[1:]),
    ]
    last = next(i for i, (name, _) in enumerate(ends) if name == "its line in metrics.jsonl")
    phases = {}
    for name, end_s in ends[: last + 1]:
        phases[name] = end_s - began_s
        began_s = end_s
    return phases


def run_job(num_ranks: int, out: Path, words: list[str], launch: Sequence[str] = ()) -> Path:
    """Run a job to its end, by default in place, and return its run directory."""
    ended = subprocess.run(
        [*launch, str(_ROOT / "jobs" / "prelaunch.sh"), *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=out,
        env=environment(num_ranks, out),
        timeout=_TIMEOUT_S,
    )
    if ended.returncode:
        raise RuntimeError(f"prelaunch.sh ended with {ended.returncode}: {ended.stderr}")
    return out / "run"


def environment(num_ranks: int, out: Path) -> dict[str, str]:
    """Return the variables of a job in place."""
    # Bytecode may be kept: pip compiled torch's when it was installed, as the image does with ours.
    dropped = ("DDP_", "OMP_", "SLURM_", "PYTHONDONTWRITEBYTECODE")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return kept | {
        "DDP_OUT": str(out),
        "DDP_RUN_NAME": "run",
        "DDP_NPROC_PER_NODE": str(num_ranks),
        "DDP_PREFLIGHT": "0",
        "DDP_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), kept.get("PYTHONPATH")))),
    }


def epoch_s(line: Mapping[str, str]) -> float:
    """Return the time of a line of metrics.jsonl or events.jsonl, in seconds since 1970."""
    return datetime.fromisoformat(line["time"]).timestamp()
