"""`python -m monitor html`: a run as one page that opens anywhere, offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from monitor.analysis import engine
from monitor.logs import series
from monitor.page import data, findings, text
from monitor.plot import metrics
from monitor.plot.picture import report_skipped
from monitor.whole_file import beside, suffix_of

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

SUFFIXES = (".html", ".htm")


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATHS", help="run directories, logs, or directories of logs"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="an .html")
    parser.add_argument("--title", help="default: the run's name and size")


def run(options: Namespace) -> int:
    """Write the page, and print its name; 0."""
    return write_page(options.paths, options.out, options.title)


def write_page(paths: Sequence[str], out: str, title: str | None = None) -> int:
    """Write run directories and logs into one page; 0."""
    suffix_of(out, SUFFIXES)
    whole = series.load(paths, metrics.WANTED | engine.columns())
    payload = data.payload(whole, title)
    payload["findings"] = findings.rendered(whole, payload["axis"])
    with beside(out) as path:
        Path(path).write_bytes(text.page(payload).encode("utf-8", "replace"))
    report_skipped(payload["left_out"])
    print(out)
    return 0
