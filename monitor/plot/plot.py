"""`python -m monitor plot`: a picture of a run for a paper or a ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.logs import series
from monitor.plot import metrics as plot_metrics
from monitor.plot import write
from monitor.plot.picture import picture, report_skipped

if TYPE_CHECKING:
    from collections.abc import Sequence

SUFFIXES = (".png", ".svg")
_MAX_ROWS = 256
_BINS_PER_MM = 5
_MM_PER_INCH = 25.4
_WIDTHS_MM = (70, 1000)


def plot(
    paths: Sequence[str],
    out: str,
    *,
    show: str | None = None,
    title: str | None = None,
    width_mm: float = 180,
) -> int:
    """Draw run directories and logs into a file; 0.

    Args:
        paths: run directories, logs, or directories of logs.
        out: a `.png` or `.svg`.
        show: which heat maps, such as `util,power`; None: all that there are.
        title: above it all; None: the run's name and size.
        width_mm: of the picture; fonts keep their size.

    Raises:
        UserError: the input is wrong, or there is nothing to show.

    """
    suffix = write.check(out, SUFFIXES)
    least, most = _WIDTHS_MM
    if not least <= width_mm <= most:
        raise UserError(
            f"--width must be {least} to {most} mm",
            f"{width_mm:g}",
            "a column of a paper has about 88, a page 180",
        )
    metrics = plot_metrics.named(show) if show is not None else None
    run = series.load(paths, plot_metrics.WANTED)
    max_bins = int(_BINS_PER_MM * width_mm)
    made = picture(run, metrics, max_rows=_MAX_ROWS, max_bins=max_bins, title=title)
    from monitor.plot.figure import drawn  # noqa: PLC0415 - matplotlib takes its time

    write.write(out, drawn(made, suffix, width_mm / _MM_PER_INCH))
    report_skipped(made.num_left_out)
    print(out)
    return 0
