"""Training speed on 1 rank, 2 ranks and 2 nodes with 2 ranks, and what each rank adds.

    python -m benchmarks.scaling [--quick] [--out FILE]

writes the table. The nodes are those of the virtual cluster, which is started where it is not up
(Linux, root, Slurm); without one their row is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import machine, startup
from benchmarks.report import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ROOT = Path(__file__).parent.parent
_CLUSTER = _ROOT / "tests" / "cluster" / "cluster.sh"
_BATCH_SIZE = 16
_NUM_ROUNDS = 3
_TEXT = """\
# Scaling

Written by `python -m benchmarks.scaling`.

{machine}.
Load average {load_before:.1f} before and {load_after:.1f} after.

{table}
Digits, the CNN of 1.2 M parameters, {batch_size} samples and one thread a rank, gloo; medians of
{num_rounds} round(s), in which each row runs once; a ratio is taken within its round.
Nothing is timed but steps. Ranks on one node run in place; nodes are those of the virtual cluster,
which share this machine's {num_cores} cores.
Efficiency is samples/s by those of 1 rank and the number of ranks; in brackets, by the number of
cores where there are more ranks than cores, which then wait for each other.
"""


class Layout(NamedTuple):
    """Ranks on each of several nodes."""

    num_nodes: int
    num_local_ranks: int

    @property
    def num_ranks(self) -> int:
        """Of all nodes."""
        return self.num_nodes * self.num_local_ranks


LAYOUTS = (Layout(1, 1), Layout(1, 2), Layout(2, 2))


def render(
    rates: Mapping[Layout, Sequence[float]], load_before: float, described: str, num_cores: int
) -> str:
    """Return the page; `rates` are samples/s, a value a round."""
    single = rates[LAYOUTS[0]]
    rows = []
    for layout, samples_per_s in rates.items():
        factor = median(rate / one for rate, one in zip(samples_per_s, single, strict=True))
        efficiency = f"{100 * factor / layout.num_ranks:.0f} %"
        if layout.num_ranks > num_cores:
            efficiency += f" ({100 * factor / num_cores:.0f} %)"
        steps_per_s = median(samples_per_s) / _BATCH_SIZE / layout.num_ranks
        where = f"{layout.num_nodes} x {layout.num_local_ranks}"
        speed = [f"{steps_per_s:.1f}", f"{median(samples_per_s):.0f}"]
        rows.append([str(layout.num_ranks), where, *speed, efficiency])
    return _TEXT.format(
        machine=described,
        load_before=load_before,
        load_after=machine.load(),
        table=table(["ranks", "nodes x ranks", "steps/s", "samples/s", "efficiency"], rows),
        batch_size=_BATCH_SIZE,
        num_rounds=len(single),
        num_cores=num_cores,
    )


def measure(*, quick: bool) -> dict[Layout, list[float]]:
    """Run each layout in turns; `quick`: once, for a few steps."""
    rates: dict[Layout, list[float]] = {}
    with _cluster() as conf:
        for _ in range(1 if quick else _NUM_ROUNDS):
            for layout in LAYOUTS:
                if conf or layout.num_nodes == 1:
                    print(
                        f"scaling: {layout.num_nodes} x {layout.num_local_ranks}", file=sys.stderr
                    )
                    rates.setdefault(layout, []).append(_run(layout, conf, quick=quick))
    return rates


@contextmanager
def _cluster() -> Iterator[str]:
    """Yield the virtual cluster's SLURM_CONF; empty where there can be none."""
    was_up = subprocess.run([_CLUSTER, "status"], capture_output=True, check=False).returncode == 0
    started = subprocess.run([_CLUSTER, "up"], stderr=subprocess.PIPE, text=True, check=False)
    if started.returncode:
        print(f"scaling: only one node: {started.stderr.strip()}", file=sys.stderr)
        yield ""
        return
    try:
        line = subprocess.run([_CLUSTER, "env"], capture_output=True, text=True, check=True).stdout
        yield line.strip().removeprefix("export SLURM_CONF=")
    finally:
        if not was_up:
            subprocess.run([_CLUSTER, "down"], check=True)


def _run(layout: Layout, conf: str, *, quick: bool) -> float:
    """Train once; samples/s, the median of all intervals but the first."""
    num_steps, log_every = (6, 2) if quick else (300, 20)
    options = {
        "epochs": 1_000_000,
        "max-steps": num_steps,
        "log-every": log_every,
        "val-every": num_steps,
        "global-batch-size": _BATCH_SIZE * layout.num_ranks,
    }
    launch = ["env", "OMP_NUM_THREADS=1"]
    if layout.num_nodes > 1:
        size = [f"--nodes={layout.num_nodes}", f"--ntasks-per-node={layout.num_local_ranks}"]
        launch += [f"SLURM_CONF={conf}", "salloc", "--quiet", *size]
    with tempfile.TemporaryDirectory() as out:
        words = [f"--{name}={value}" for name, value in options.items()]
        run_dir = startup.run_job(layout.num_local_ranks, Path(out), words, launch)
        lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [line["samples_per_s"] for line in map(json.loads, lines) if "samples_per_s" in line]
    return float(median(found[1:]))


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every row once: a test, no numbers")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "scaling.md")
    options = parser.parse_args()
    load_before = machine.load()
    rates = measure(quick=options.quick)
    described = machine.describe(sys.executable, ("torch",))
    text = render(rates, load_before, described, len(os.sched_getaffinity(0)))
    options.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
