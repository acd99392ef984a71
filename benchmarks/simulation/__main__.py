"""A job of thousands of ranks, simulated: what its supervisor costs in each phase of its life.

    python -m benchmarks.simulation [--nodes N …] [--ranks N] [--out FILE]

writes the table. No Slurm, no torch; a few minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import machine
from benchmarks.report import table
from benchmarks.simulation.job import Simulated, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.simulation.meter import Phase

_NUM_NODES, _NUM_LOCAL_RANKS = 512, 8
_TEXT = """\
# A supervisor of thousands of ranks

Written by `python -m benchmarks.simulation`.

{machine}.
Load average {load_before:.1f} before and {load_after:.1f} after.

{tables}
The supervisor is the real one, from `jobs/prelaunch.sh` on; Slurm's programs are fakes, and one
process speaks for all agents. CPU and memory (its peak) are the supervisor's own process; those of
`python -m monitor compose`, which it starts at each end, stand in the last column.
Messages are events that ranks and nodes reported to the supervisor.
Files are the different paths under the output directory that the supervisor or `compose` named to
the system (open, stat, list, link, rename, unlink …), and in brackets how often, as strace counts
them; what ranks and monitors write is not theirs.
Requests are starts of Slurm's programs that ask the controller, all but `scontrol show hostnames`.

A rank in the middle fails; half of the others fail with it, having lost it, and leave what they
report in their node's file, too: those are the files of that phase, a file a node.
While it trains, the supervisor looks once in 2 s + a 16th of a second a node at each node's monitor
log; where all have stopped growing, it asks Slurm for all nodes at once.

## Three nodes with slow links, found by the preflight

{rounds}
Nodes run `trainer/preflight/rounds.py`; the speeds of their links are made up, and so is the store
that rank 0 serves, whose values written and read are counted. A round measures its pairs at the
same time. Each node reports its monitor's readings, its trainer's of 8 GPUs, and its end: these are
the messages of the preflight.
"""


def render(jobs: Mapping[str, Simulated], described: str, load_before: float) -> str:
    """Return the page; keys name the sizes."""
    head = ["phase", "wall", "CPU", "memory", "messages", "files (calls)", "requests", "compose"]
    tables = []
    for size, job in jobs.items():
        rows = [_row(phase) for phase in job.phases.values()]
        tables.append(f"## {size}\n\n{table(head, rows)}")
    rounds = [[size, *map(str, job.links), ", ".join(job.bad_nodes)] for size, job in jobs.items()]
    return _TEXT.format(
        machine=described,
        load_before=load_before,
        load_after=machine.load(),
        tables="\n".join(tables),
        rounds=table(["", "rounds", "pairs", "store", "named"], rounds),
    )


def _row(phase: Phase) -> list[str]:
    requests = ", ".join(f"{name} {num}" for name, num in sorted(phase.requests.items()))
    composed = f"{phase.compose_cpu_s:.1f} s, {phase.compose_mib:.0f} MiB"
    return [
        phase.name,
        f"{phase.wall_s:.1f} s",
        f"{phase.cpu_s:.2f} s",
        f"{phase.peak_mib:.0f} MiB",
        str(phase.num_messages),
        f"{phase.num_files} ({phase.num_file_calls})",
        requests or "0",
        composed if phase.compose_mib else "",
    ]


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[64, _NUM_NODES])
    parser.add_argument("--ranks", type=int, default=_NUM_LOCAL_RANKS, help="of each node")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "simulation.md")
    options = parser.parse_args()
    load_before = machine.load()
    jobs = {}
    for num_nodes in options.nodes:
        size = f"{num_nodes} nodes x {options.ranks} ranks"
        print(f"simulation: {size}", file=sys.stderr)
        jobs[size] = simulate(num_nodes, options.ranks)
    text = render(jobs, machine.describe(sys.executable, ()).rstrip(", "), load_before)
    options.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
