"""Jobs of prelaunch.sh on this device: checked, recorded, broken, hung and started again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.on_gpu.case import CaseError
from benchmarks.on_gpu.correctness import events_of
from benchmarks.recorder import build_driver
from benchmarks.warm import Job
from monitor.runs import node_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.on_gpu.case import Place, Values

    Readings = dict[tuple[float, int], dict[str, float]]
    """By time and GPU."""

_ROOT = Path(__file__).parents[2]
_HUNG = 76
_STOPPED = 75
_RUN = "run"
_STUCK_IN = "wait_for_a_kernel"
_LONGEST_S = 25
_REHEARSED_S = 4
_LEAST_SECONDS = 3
TOLERANCES = {
    "pwr": (15, 0.15),
    "gtemp": (3, 0.0),
    "mtemp": (3, 0.0),
    "sm": (15, 0.0),
    "mem": (15, 0.0),
    "fb": (64, 0.02),
    "mclk": (0, 0.05),
    "pclk": (0, 0.1),
}
"""How far the medians may be apart: in the column's unit, or as a share of dmon's."""
_CAUSES = {
    "memory": "ran out of memory",
    "index": "failed an assertion on its GPU",
    "address": "used GPU memory that is not its own",
}
"""What `why` says, by the name of the workload (broken.py), in small letters."""
_NUM_DEATHS = 3
_TEXT = (
    *("--workload", "lm", "--model", "stories15m", "--sequence-length", "256"),
    *("--global-batch-size", "64", "--precision", "bf16"),
)
_WORLD = "gpus 1\nset mtemp * 70\ndriver 580.159\n"


@contextmanager
def _job(place: Place, *options: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run prelaunch.sh in place, with a sample a second."""
    command = [str(_ROOT / "jobs" / "prelaunch.sh"), *options]
    settings = {
        "DDP_OUT": str(place.folder),
        "DDP_RUN_NAME": _RUN,
        "DDP_PYTHON": sys.executable,
        "DDP_NPROC_PER_NODE": "1",
        "DDP_MONITOR_INTERVAL": "1",
        "DDP_MAX_RESTARTS": "0",
    }
    print("$", " ".join(command), flush=True)
    process = subprocess.Popen(command, env=os.environ | settings | env)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _digits(workload: str) -> tuple[str, ...]:
    return ("--workload", f"benchmarks.on_gpu.{workload}", "--model", "mlp", "--epochs", "999")


def hang(place: Place) -> Values:
    """Let a rank wait for a kernel that does not end."""
    with _job(place, *_digits("stuck:Stuck"), DDP_HANG_TIMEOUT="5") as job:
        code = job.wait()
    run_dir = place.folder / _RUN
    if code != _HUNG:
        raise CaseError(f"a job that hangs must end with {_HUNG}; found {code}")
    (verdict,) = events_of(run_dir, "verdict")
    stacks = "".join(path.read_text() for path in (run_dir / "debug").glob("stack-*"))
    print(stacks, flush=True)
    if not all(_STUCK_IN in text for text in (stacks, verdict["text"])):
        raise CaseError(f"the verdict must name the line that waits; found {verdict['text']}")
    return {"verdict": verdict["text"], "code": code}


def broken(place: Place) -> Values:
    """Let a rank meet each error that a GPU gives a program; its job's last words name it."""
    values: dict[str, object] = {}
    wrong = []
    for name, cause in _CAUSES.items():
        with _job(place, *_digits(f"broken:{name.title()}"), DDP_RUN_NAME=name) as job:
            code = job.wait()
        command = [sys.executable, "-P", "-m", "monitor", "why", str(place.folder / name)]
        told = subprocess.run(command, check=False, capture_output=True, text=True).stdout
        print(told, flush=True)
        values[f"{name}_code"] = code
        values[name] = told.partition("\n")[0]
        if not code or not (place.is_rehearsal or cause in told):
            wrong.append(f"{name}: {code}, {told!r}")
    if wrong:
        raise CaseError(f"`why` must name each cause; found {'; '.join(wrong)}", values)
    return values


def preflight(place: Place) -> Values:
    """Check this machine as a job on several nodes checks each of its own."""
    began_s = time.perf_counter()
    with _job(place, "--preflight") as job:
        code = job.wait()
    took_s = time.perf_counter() - began_s
    (found,) = events_of(place.folder / _RUN, "preflight")
    print(found, flush=True)
    if code:
        raise CaseError(f"this machine must pass; found {code}: {found}")
    return {"whole_s": round(took_s, 2)} | {name: value for name, value, _ in found["readings"]}


def restart(place: Place) -> Values:
    """Kill a rank: how long until the next one's first step, with one that waits and without."""
    words = ("--model", "mlp") if place.is_rehearsal else _TEXT
    options = [*words, "--max-steps", "999999", "--checkpoint-every", "20"]
    values: dict[str, object] = {}
    for is_warm in (True, False):
        folder = place.folder / f"warm-{int(is_warm)}"
        folder.mkdir()
        job = Job(folder, is_warm=is_warm, num_ranks=1, options=options)
        try:
            took_s = [job.kill_rank(attempt) for attempt in range(1, _NUM_DEATHS + 1)]
        finally:
            job.end()
            print((folder / "run" / "events.jsonl").read_text(), flush=True)
        values["warm_s" if is_warm else "cold_s"] = round(median(took_s), 2)
    return values


def recorder(place: Place) -> Values:
    """Record a training with our recorder and with dmon at once, keep both, and compare them."""
    env, options = _training(place)
    with _dmon(place, env) as log, _job(place, *options, **env) as job:
        _run_for(job, _REHEARSED_S if place.is_rehearsal else _LONGEST_S, place.folder / _RUN)
        code = job.wait()
    (ours,) = place.folder.glob("*.gutil")
    shutil.copy(ours, place.out)
    kept = place.out / _RUN
    kept.mkdir(exist_ok=True)
    for name in ("events.jsonl", "metrics.jsonl", "run.json"):
        shutil.copy(place.folder / _RUN / name, kept)
    if code not in {0, _STOPPED}:
        raise CaseError(f"the recorded job must end with 0 or {_STOPPED}; found {code}")
    return compare(read(ours), read(log))


def _training(place: Place) -> tuple[dict[str, str], list[str]]:
    """Return what is recorded: the environment, and the trainer's options."""
    if not place.is_rehearsal:
        return {}, [*_TEXT, "--max-steps", "1500", "--checkpoint-every", "500"]
    env = build_driver(place.folder, _WORLD)
    return env, ["--model", "mlp", "--global-batch-size", "2", "--epochs", "999"]


@contextmanager
def _dmon(place: Place, env: Mapping[str, str]) -> Iterator[Path]:
    """Let `nvidia-smi dmon` write a log; in a rehearsal our recorder, whose rows are like it."""
    path = place.out / "dmon.txt"
    if place.is_rehearsal:
        program = [sys.executable, "-P", "-m", "monitor", "record"]
        command = [*program, "--interval", "1", "--columns", "pumtc", "--out", str(path)]
    else:
        command = ["stdbuf", "-oL", "nvidia-smi", "dmon", "-s", "pucmt", "-o", "DT", "-d", "1"]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        command += ["-i", visible] if visible else []
    with (place.folder / "dmon.out" if place.is_rehearsal else path).open("wb") as output:
        process = subprocess.Popen(command, env=os.environ | env, stdout=output)
    try:
        yield path
    finally:
        process.terminate()
        process.wait()


def _run_for(job: subprocess.Popen[bytes], duration_s: float, run_dir: Path) -> None:
    """Ask the job to stop, so long after its first step, if it still runs."""
    end_s = None
    while job.poll() is None and (end_s is None or time.monotonic() < end_s):
        if end_s is None and events_of(run_dir, "first_step"):
            end_s = time.monotonic() + duration_s
        time.sleep(0.1)
    job.terminate()


def read(path: Path) -> Readings:
    """Read a log: the readings of each row."""
    return {
        (sample.time_s, sample.index): {
            name: value for name, value in sample.values.items() if value is not None
        }
        for sample in node_log.read(str(path)).samples
        if sample.index is not None
    }


def compare(ours: Readings, theirs: Readings) -> Values:
    """Return the median of each of dmon's columns over the seconds that both have, in both logs.

    Raises CaseError where they are too far apart, or where only dmon has readings.
    """
    seconds = sorted(ours.keys() & theirs.keys())
    if len(seconds) < _LEAST_SECONDS:
        raise CaseError(
            f"both must have {_LEAST_SECONDS} seconds or more in common; found {len(seconds)} "
            f"among {len(ours)} rows of ours and {len(theirs)} of dmon's"
        )
    values: dict[str, object] = {"seconds": len(seconds)}
    wrong = []
    for name in dict.fromkeys(name for second in seconds for name in theirs[second]):
        own, other = (
            [log[second][name] for second in seconds if name in log[second]]
            for log in (ours, theirs)
        )
        values[name] = [median(own) if own else None, median(other)]
        unit, share = TOLERANCES.get(name, (None, 0.0))
        if not own:
            wrong.append(f"{name}: none of ours")
        elif unit is not None and abs(median(own) - median(other)) > max(
            unit, share * median(other)
        ):
            wrong.append(f"{name}: {median(own):g} beside {median(other):g}")
    if wrong:
        raise CaseError(f"the recorder must read what dmon reads; found {', '.join(wrong)}", values)
    return values
