"""python -m tests.faults.write RESULTS: docs/faults.md, from what the tests measured.

RESULTS has a file for each row, and the storm's section; with one of both the other part stays.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from tests.faults import rows, storm_page, table
from tests.faults.driver import Then

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "faults.md"

HEAD = """\
# Faults

Every row was brought about for real on the [virtual cluster](virtual-cluster.md), and measured: \
`make faults` writes this page from what the tests in `tests/faults/` saw.
Measured on {cores} cores ({machine}), {shared}: \
most of the time until training goes on again is `import torch`, once a rank.

In every one nothing that was saved was lost: \
the last complete checkpoint before the fault still verified, file by file, \
and the next start began from it, or from the one before where the fault was its damage.
No process of a job was left 15 s after its end.
{targets}

| column | what it means |
| --- | --- |
| seen | until the first event that shows that somebody saw it |
| torn down | until no process of any rank was left on any node |
| training again | until the first step after it was done |
| steps lost | steps that had been done and had to be done again |
| exit code | of that start of the run; `-` where it went on, or where none was reported |
| class | the failure class in `run.json`; `python -m monitor why RUN_DIR` explains it |

"""


TARGET_S = 10.0
"""So soon after a failure was seen it is torn down, and so soon after that training goes on."""


def targets(found: list[rows.Row]) -> str:
    """Say what the slowest restart within the allocation took, and which ones took too long."""
    timed = [
        (row.name, over_s - (row.seen_s or 0.0), row.recovered_s - over_s)
        for row in found
        if row.outcome == Then.RESTART.value and None not in (row.down_s, row.recovered_s)
        for over_s in [max(row.seen_s or 0.0, row.down_s)]  # some never came up
    ]
    slow = [name for name, down_s, again_s in timed if max(down_s, again_s) > TARGET_S]
    verdict = f"missed by: {', '.join(slow)}" if slow else "met"
    return (
        f"Of {len(timed)} that start again in the allocation the slowest was torn down"
        f" {max((down_s for _, down_s, _ in timed), default=0.0):.1f} s after it was seen, and"
        f" trained again {max((again_s for *_, again_s in timed), default=0.0):.1f} s after that"
        f" (allowed: {TARGET_S:.0f} s each, {verdict})."
    )


def main(results: Path) -> int:
    """Write the document. Raises SystemExit if a row is missing: no test may be left out."""
    found, measured = rows.load(results), results / storm_page.FILE
    written = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    matrix, heading, section = written.partition(storm_page.HEADING)
    if found or not measured.exists():
        matrix = _matrix(found) + "\n"
    if measured.exists():
        heading, section = storm_page.HEADING, measured.read_text(encoding="utf-8")
    DOCUMENT.write_text(matrix + heading + section, encoding="utf-8")
    print(f"faults: {len(found)} rows in {DOCUMENT}")
    return 0


def _matrix(found: list[rows.Row]) -> str:
    missing = [name for name in table.NAMES if name not in {row.name for row in found}]
    if missing:
        sys.exit(f"faults: a row for every fault is needed, found none for: {', '.join(missing)}")
    num_jobs = os.environ.get("DDP_FAULT_JOBS", "4")
    head = HEAD.format(
        cores=os.cpu_count(),
        machine=platform.machine(),
        targets=targets(found),
        shared="one job at a time" if num_jobs == "1" else f"which up to {num_jobs} jobs shared",
    )
    return head + rows.render(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
