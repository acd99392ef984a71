"""`python -m monitor html`: a run as one page that opens anywhere, offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.analysis import engine
from monitor.logs import series
from monitor.page import data, findings, text
from monitor.plot import metrics, write
from monitor.plot.picture import report_skipped

if TYPE_CHECKING:
    from collections.abc import Sequence

SUFFIXES = (".html", ".htm")


def write_page(paths: Sequence[str], out: str, title: str | None = None) -> int:
    """Write run directories and logs into one page; 0.

    Args:
        paths: run directories, logs, or directories of logs.
        out: an `.html`.
        title: above it all; None: the run's name and size.

    Raises:
        UserError: the input is wrong, or there is nothing to show.

    """
    write.check(out, SUFFIXES)
    run = series.load(paths, metrics.WANTED | engine.columns())
    payload = data.payload(run, title)
    payload["findings"] = findings.rendered(run, payload["axis"])
    write.write(out, text.page(payload).encode("utf-8", "replace"))
    report_skipped(payload["left_out"])
    print(out)
    return 0
