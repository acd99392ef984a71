"""`python -m monitor plot`: a picture of a run for a paper or a ticket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.logs import series
from monitor.plot import metrics as plot_metrics
from monitor.plot.picture import picture, report_skipped
from monitor.whole_file import beside, check, suffix_of

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

SUFFIXES = (".png", ".svg")
_MAX_ROWS = 256
_BINS_PER_MM = 5
_MM_PER_INCH = 25.4
_WIDTHS_MM = (70, 1000)


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATHS", help="run directories, logs, or directories of logs"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="a .png or .svg")
    parser.add_argument(
        "--show",
        metavar="NAMES",
        help="of util,power,memory,temp,throttle,cpu,hostmem (default: what there is of GPUs)",
    )
    parser.add_argument("--title", help="default: the run's name and size")
    parser.add_argument(
        "--width", type=float, default=180.0, metavar="MM", help="default 180; a column has 88"
    )


def run(options: Namespace) -> int:
    """Draw, and print the file's name; 0."""
    out, width_mm = options.out, options.width
    suffix = suffix_of(out, SUFFIXES)
    check(out, options.paths)
    least, most = _WIDTHS_MM
    if not least <= width_mm <= most:
        raise UserError(
            f"--width must be {least} to {most} mm",
            f"{width_mm:g}",
            "a column of a paper has about 88, a page 180",
        )
    metrics = plot_metrics.named(options.show) if options.show is not None else None
    whole = series.load(options.paths, plot_metrics.WANTED)
    max_bins = int(_BINS_PER_MM * width_mm)
    made = picture(whole, metrics, max_rows=_MAX_ROWS, max_bins=max_bins, title=options.title)
    from monitor.plot.figure import drawn  # noqa: PLC0415 - matplotlib takes its time

    with beside(out) as path:
        Path(path).write_bytes(drawn(made, suffix, width_mm / _MM_PER_INCH))
    report_skipped(made.num_left_out)
    print(out)
    return 0
