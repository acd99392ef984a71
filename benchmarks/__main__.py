"""Measure everything and write the table; started by run.sh, which sets the surroundings up."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import (
    checkpoint,
    forks,
    heartbeat,
    machine,
    race,
    reading,
    recorder,
    report,
    startup,
    toy,
    watching,
)
from benchmarks.digits import write_digits
from benchmarks.task import FULL_TASKS, QUICK_TASKS

_FULL_PACE = race.Pace(min_rounds=3, max_rounds=11, budget_s=420)
_QUICK_PACE = race.Pace(min_rounds=1, max_rounds=1, budget_s=0)


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(prog="benchmarks/run.sh", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every row once: a test, no numbers")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.md")
    parser.add_argument("--threads", type=int, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--python", required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    text = report.render(_measure(options.python, options.threads, quick=options.quick))
    options.out.write_text(text, encoding="utf-8")
    print(text)
    print(f"bench: written to {options.out}", file=sys.stderr)


def _measure(python: str, num_threads: int, *, quick: bool) -> report.Measured:
    load_before = machine.load()
    print("bench: the recorder", file=sys.stderr)
    recorded = recorder.measure(duration_s=3 if quick else 60)
    print("bench: reading logs", file=sys.stderr)
    read = reading.measure(quick=quick)
    print("bench: watching logs that grow", file=sys.stderr)
    watched = watching.measure(quick=quick)
    print("bench: from prelaunch.sh to the first step", file=sys.stderr)
    startups = [
        startup.measure(num_ranks, num_repetitions=1 if quick else 5)
        for num_ranks in ((2,) if quick else (1, 2))
    ]
    print("bench: checkpoints", file=sys.stderr)
    saves = checkpoint.measure(quick=quick)
    print("bench: the toy", file=sys.stderr)
    learned = toy.measure(quick=quick)
    print("bench: layouts", file=sys.stderr)
    layouts, on_gpu = forks.measure(quick=quick)
    with tempfile.TemporaryDirectory() as folder:
        digits = Path(folder)
        write_digits(digits)
        speed = race.race(
            QUICK_TASKS if quick else FULL_TASKS,
            digits,
            _QUICK_PACE if quick else _FULL_PACE,
            python,
        )
    return report.Measured(
        machine=machine.describe(python),
        load_before=load_before,
        load_after=machine.load(),
        num_threads=num_threads,
        speed=speed,
        startups=startups,
        recorder=recorded,
        reading=read,
        watching=watched,
        heartbeats=heartbeat.measure(),
        saves=saves,
        toy=learned,
        layouts=layouts,
        on_gpu=on_gpu,
    )


if __name__ == "__main__":
    main()
