"""The storm's section of docs/faults.md."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from tests.faults.storm import KINDS, SETTINGS, TRAINING

if TYPE_CHECKING:
    from tests.faults.storm import Hit, Storm

FILE, HEADING = "storm.md", "\n## A storm\n"
GOODPUT_PCT = 90.0
"""What is to be left of a run's speed."""
ABOUT = f"""
Two ranks of the trainer on MNIST, on two nodes and a spare one; `make storm` measures it alone, and writes this section.
Settings: {" ".join(f"`{name}={value}`" for name, value in SETTINGS.items())}; `{" ".join(TRAINING[-6:])}`.
A node that is lost comes back within `SlurmdTimeout`, and is spare again; one that Slurm has given up would not ([elastic.md](elastic.md)).
Steps count once, however often they were done; the time is the clock's, from a step before the first fault.

"""  # noqa: E501 -- a sentence a line


def render(storm: Storm) -> str:
    """Give its section of the document."""
    goodput, num_both = (
        storm.goodput_pct,
        len(storm.stormy.losses.keys() & storm.calm.losses.keys()),
    )
    again = sum(storm.steps_again.get(hit.attempt, 0) for hit in storm.hits)
    verdict = "met" if goodput >= GOODPUT_PCT else "missed"
    calm, stormy = storm.calm.steps_per_s, storm.stormy.steps_per_s
    text = (
        f"{len(storm.hits)} faults in {storm.stormy.window_s:.0f} s, one every"
        f" {storm.interval_s:.0f} s, drawn at random (seed {storm.seed}): {stormy:.1f} steps/s,"
        f" {goodput:.0f} % of the {calm:.1f} of the same run without faults"
        f" (wanted: {GOODPUT_PCT:.0f} %, {verdict}).\n"
        f"{storm.num_starts} starts, {again} steps done again,"
        f" {_median(storm.hits, 'recovered_s')} s from a fault to the next step (median).\n"
        f"The losses in all {num_both} lines of metrics.jsonl that both runs have are the same, to"
        " the bit, also of what was done again; nothing was left behind."
    )
    lines = [
        text,
        "",
        "| " + " | ".join(_COLUMNS) + " |",
        "|" + " --- |" * len(_COLUMNS),
        *(_line(name, storm) for name in KINDS),
    ]
    return ABOUT + "\n".join(lines) + "\n"


_COLUMNS = (
    "fault",
    "injected how",
    "times",
    "seen after, s",
    "decided after, s",
    "ranks up after, s",
    "training again after, s",
    "slowest, s",
    "steps lost, all",
)


def _line(name: str, storm: Storm) -> str:
    hits = [hit for hit in storm.hits if hit.kind == name]
    cells = [name, KINDS[name].how, str(len(hits))]
    cells += [_median(hits, each) for each in ("seen_s", "decided_s", "up_s", "recovered_s")]
    cells.append(f"{max(hit.recovered_s for hit in hits):.1f}" if hits else "-")
    cells.append(str(sum(storm.steps_again.get(hit.attempt, 0) for hit in hits)))
    return "| " + " | ".join(cells) + " |"


def _median(hits: list[Hit], name: str) -> str:
    return f"{median(getattr(hit, name) for hit in hits):.1f}" if hits else "-"
