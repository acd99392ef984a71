"""python -m tests.faults.write RESULTS: docs/faults.md, from what the tests measured."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from tests.faults import rows, table

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "faults.md"

HEAD = """\
# Faults

Every row was brought about for real on the [virtual cluster](virtual-cluster.md), and measured: \
this page is written by `make faults`, from what the tests in `tests/faults/` saw.
Measured on {cores} cores ({machine}), which up to {jobs} of these jobs shared; \
two ranks that `import torch` at once take {import_s} of the time until training goes on again.

In all of them nothing that was saved was lost: \
the last complete checkpoint before the fault still verified, and the next start began from it.
No process was left 15 s after a job's end.

| column | what it means |
| --- | --- |
| seen | until the first event that shows that somebody saw it |
| torn down | until no process of any rank was left on any node |
| training again | until the first step after it was done |
| steps lost | steps that had been done and had to be done again |
| class | the failure class in `run.json`; `python -m monitor why RUN_DIR` explains it |

"""


def main(results: Path) -> int:
    """Write the document. Raises SystemExit if a row is missing: no test may be left out."""
    found = rows.load(results)
    missing = [name for name in table.NAMES if name not in {row.name for row in found}]
    if missing:
        sys.exit(f"faults: a row for every fault is needed, found none for: {', '.join(missing)}")
    head = HEAD.format(
        cores=os.cpu_count(),
        machine=platform.machine(),
        jobs=os.environ.get("DDP_FAULT_JOBS", "4"),
        import_s="most",
    )
    DOCUMENT.write_text(head + rows.render(found) + "\n", encoding="utf-8")
    print(f"faults: {len(found)} rows in {DOCUMENT}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
