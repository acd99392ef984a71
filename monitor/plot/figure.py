"""Drawing a picture with matplotlib, on paper: sizes in inches, fonts in points."""

from __future__ import annotations

import io
import math
import warnings
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from monitor.analysis.axis import ticks
from monitor.analysis.events import KINDS
from monitor.plot.metrics import THROTTLE_WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

    from monitor.plot.curves import Curve
    from monitor.plot.picture import Panel, Picture

_FONT_PT = 8.0
_DPI = 300
_CELL_INCH = 0.16
_PANEL_INCH = (0.24, 1.3)
"""The least and the greatest height of a heat map."""
_CURVE_INCH = 0.85
_LANE_INCH = 0.15
_TITLE_INCH = 0.4
_HEADING_INCH = 0.26
_FOOT_INCH = 0.52
_BAR_INCH = 0.62
"""To the right of a heat map: its colours and their numbers."""

_CHAR_INCH = 0.066
_MAX_LABELS = 16

_THROTTLE_COLOURS = ("#dfe3e8", "#0072b2", "#d55e00")
_MARKS = {
    "start": (">", "#009e73"),
    "checkpoint": ("D", "#0072b2"),
    "restart": ("o", "#e69f00"),
    "signal": ("v", "#cc79a7"),
    "failure": ("X", "#d55e00"),
    "fault": ("P", "#a11d33"),
    "end": ("s", "#333333"),
}
"""Shape and colour (after Okabe and Ito) of each kind of event: shapes do without colours."""

_RULED = ("restart", "failure", "fault")
"""Kinds whose moment is ruled through all panels."""

_STYLE: dict[Any, Any] = {
    "font.size": _FONT_PT,
    "axes.titlesize": _FONT_PT,
    "axes.labelsize": _FONT_PT,
    "xtick.labelsize": _FONT_PT - 0.5,
    "ytick.labelsize": _FONT_PT - 0.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "hatch.linewidth": 0.4,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.hashsalt": "ddp",  # the same picture is the same file
    "svg.fonttype": "path",
}


def drawn(picture: Picture, suffix: str, width_inch: float) -> bytes:
    """Draw a picture as a `.png` or `.svg`; its bytes."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure = laid_out(picture, width_inch)
        file = io.BytesIO()
        metadata = {"Title": picture.name} | ({"Date": None} if suffix == ".svg" else {})
        figure.savefig(file, format=suffix[1:], dpi=_DPI, metadata=metadata)
    return file.getvalue()


def laid_out(picture: Picture, width_inch: float) -> Figure:
    """Put everything in its place; the figure."""
    with mpl.rc_context(_STYLE):
        return _Page(picture, width_inch).figure


class _Page:
    """A page that is filled from the top down."""

    def __init__(self, picture: Picture, width_inch: float) -> None:
        self._picture = picture
        self._width = width_inch
        self._left = _left_inch(picture, width_inch)
        self._height = _height_inch(picture)
        self._top = 0.0
        self.figure = Figure(figsize=(width_inch, self._height))
        self._axes: list[Axes] = []
        self._title()
        kinds = [kind for kind in KINDS if any(e.kind == kind for e in picture.events)]
        if kinds:
            self._events(kinds)
        for panel in picture.panels:
            self._heat_map(panel)
        for curve in _merged(picture.curves):
            self._curve(curve)
        self._time_axis()

    def _title(self) -> None:
        num_chars = int(self._width / _CHAR_INCH) - 4
        name = self._picture.name
        text = name if len(name) <= num_chars else name[: num_chars - 1] + "…"
        place = (0.1 / self._width, 1 - 0.2 / self._height)
        self.figure.text(*place, text, size=_FONT_PT + 1, weight="bold", va="center")
        if any(np.isnan(panel.values).any() for panel in self._picture.panels):
            place = (0.1 / self._width, 1 - 0.37 / self._height)
            note = "hatched: no reading"
            self.figure.text(*place, note, va="center", color="#555555", size=_FONT_PT - 0.5)
        self._top = _TITLE_INCH

    def _add(self, height_inch: float, heading: str) -> Axes:
        """Add axes of a height below what is there, with a heading above them."""
        self._top += _HEADING_INCH
        axes = self.figure.add_axes(self._box(self._left, self._wide, height_inch))
        axes.set_title(heading, loc="left", pad=3)
        axes.set_xlim(self._picture.axis.begin_s, self._picture.axis.end_s)
        self._axes.append(axes)
        return axes

    @property
    def _wide(self) -> float:
        return self._width - self._left - _BAR_INCH

    def _box(self, left: float, width: float, height: float) -> tuple[float, float, float, float]:
        bottom = self._height - self._top - height
        return (
            left / self._width, bottom / self._height, width / self._width, height / self._height,
        )  # fmt: skip

    def _events(self, kinds: list[str]) -> None:
        height = _LANE_INCH * len(kinds)
        axes = self._add(height, "events")
        for lane, kind in enumerate(kinds):
            shape, colour = _MARKS[kind]
            times = [event.time_s for event in self._picture.events if event.kind == kind]
            axes.axhline(lane, color="#dddddd", linewidth=0.5, zorder=0)
            axes.plot(
                times, [lane] * len(times), shape, color=colour, markersize=4.2, clip_on=False,
                markeredgewidth=0.3, markeredgecolor="white",
            )  # fmt: skip
            axes.annotate(
                f"{len(times)}", (1, lane), (6, 0), xycoords=("axes fraction", "data"),
                textcoords="offset points", va="center", color="#555555", size=_FONT_PT - 0.5,
            )  # fmt: skip
        axes.set_ylim(len(kinds) - 0.4, -0.6)
        axes.set_yticks(range(len(kinds)), [KINDS[kind] for kind in kinds])
        axes.tick_params(left=False, bottom=False)
        axes.spines[:].set_visible(False)
        self._top += height

    def _heat_map(self, panel: Panel) -> None:
        height = _panel_inch(panel)
        axes = self._add(height, _heading(panel))
        axes.patch.set(facecolor="white", hatch="//////", edgecolor="#c4c4c4", linewidth=0)
        axis = self._picture.axis
        num_rows = len(panel.values)
        colours = ListedColormap(_THROTTLE_COLOURS) if panel.metric.is_throttling else "viridis"
        shown = axes.imshow(
            np.ma.masked_invalid(panel.values),
            aspect="auto",
            interpolation="nearest",
            cmap=colours,
            vmin=panel.low - 0.5 * panel.metric.is_throttling,
            vmax=panel.high + 0.5 * panel.metric.is_throttling,
            extent=(axis.begin_s, axis.end_s, num_rows - 0.5, -0.5),
        )
        self._row_labels(axes, panel, height)
        self._colours(panel, shown, height)
        self._rules(axes)
        self._top += height

    def _row_labels(self, axes: Axes, panel: Panel, height: float) -> None:
        num_rows = len(panel.rows.labels)
        most = max(1, min(_MAX_LABELS, int(height / (_FONT_PT * 1.1 / 72))))
        labels = list(enumerate(panel.rows.labels))
        if num_rows > most:  # names of nodes, where their rows begin
            labels = list(panel.rows.nodes[:: -(-len(panel.rows.nodes) // most)])
        axes.set_yticks([row for row, _ in labels], [label for _, label in labels])
        axes.tick_params(axis="y", length=2.5 if num_rows > most else 0)
        if num_rows <= _MAX_LABELS:
            for row in range(1, num_rows):
                axes.axhline(row - 0.5, color="white", linewidth=0.6)

    def _colours(self, panel: Panel, shown: AxesImage, height: float) -> None:
        """Add the colour bar; it may be higher than a map of one row."""
        bar = self.figure.add_axes(self._box(self._left + self._wide + 0.06, 0.08, height))
        words = THROTTLE_WORDS if panel.metric.is_throttling else None
        if words and height < len(words) * _FONT_PT * 1.05 / 72:
            bar.set_visible(False)
            self._colour_words(words, height)
            return
        places = list(range(len(words))) if words else [panel.low, panel.high]
        made = self.figure.colorbar(shown, cax=bar, ticks=places)
        made.outline.set_linewidth(0.4)
        bar.tick_params(length=0, pad=2)
        bar.set_yticklabels(words or [_number(place) for place in places])
        if not words and len(bar.get_yticklabels()) > 1:
            bar.get_yticklabels()[0].set_verticalalignment("bottom")
            bar.get_yticklabels()[-1].set_verticalalignment("top")

    def _colour_words(self, words: tuple[str, ...], height: float) -> None:
        """Put the colours into the heading's line, where there is no room for a bar."""
        handles = [
            Line2D([], [], linestyle="", marker="s", markersize=5, color=colour, label=word)
            for word, colour in zip(words, _THROTTLE_COLOURS, strict=True)
        ]
        self._axes[-1].legend(
            handles=handles, loc="center right", bbox_to_anchor=(1, 1 + 0.1 / height),
            ncols=len(words), frameon=False, handletextpad=0.1, columnspacing=0.8,
            fontsize=_FONT_PT - 0.5, borderpad=0, borderaxespad=0,
        )  # fmt: skip

    def _rules(self, axes: Axes) -> None:
        for event in self._picture.events:
            if event.kind in _RULED:
                axes.axvline(event.time_s, color="white", linewidth=1.4, alpha=0.8)
                axes.axvline(
                    event.time_s, color=_MARKS[event.kind][1], linewidth=0.8, ls=(0, (3, 2))
                )

    def _curve(self, several: tuple[Curve, ...]) -> None:
        unit = f", {several[0].unit}" if several[0].unit else ""
        axes = self._add(_CURVE_INCH, several[0].name + unit)
        for curve, colour in zip(several, ("#0072b2", "#d55e00"), strict=False):
            style = {"linewidth": 1.1} if curve.is_line else {"ls": "", "marker": "o", "ms": 3.2}
            axes.plot(curve.time_s, curve.values, color=colour, label=curve.name, **style)
        if len(several) > 1:
            axes.legend(
                frameon=False, fontsize=_FONT_PT - 0.5, loc="upper right", borderaxespad=0.1
            )
        known = np.concatenate([curve.values for curve in several])
        known = known[np.isfinite(known)]  # a loss beyond all scales has no place on this one
        if known.size and known.min() >= 0:
            axes.set_ylim(0, 1.08 * float(known.max()) or 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.locator_params(axis="y", nbins=4)
        if several[0].unit:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))  # 1M, not 1.0 and a 1e6 above
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.5)
        self._rules(axes)
        self._top += _CURVE_INCH

    def _time_axis(self) -> None:
        axis = self._picture.axis
        places, labels = ticks(axis, max(2, int(self._wide / 0.5)))
        for axes in self._axes:
            axes.set_xticks(places, labels if axes is self._axes[-1] else [])
        self._axes[-1].tick_params(bottom=True)
        self._axes[-1].set_xlabel(axis.words, labelpad=2)


def _heading(panel: Panel) -> str:
    if panel.rows.are_single:
        return panel.metric.heading
    how = "highest" if panel.metric.worst else "mean"
    how = "worst" if panel.metric.is_throttling else how
    return f"{panel.metric.heading}: {how} of {panel.rows.what} a row"


def _merged(curves: tuple[Curve, ...]) -> list[tuple[Curve, ...]]:
    """Put both losses into one panel."""
    losses = tuple(curve for curve in curves if curve.name.endswith("loss"))
    others: list[tuple[Curve, ...]] = [(curve,) for curve in curves if curve not in losses]
    return [losses, *others] if losses else others


def _panel_inch(panel: Panel) -> float:
    least, most = _PANEL_INCH
    return min(most, max(least, _CELL_INCH * len(panel.rows.labels)))


def _left_inch(picture: Picture, width_inch: float) -> float:
    labels = [label for panel in picture.panels for label in panel.rows.labels]
    longest = max(map(len, [*labels, "checkpoint"]))
    return min(0.14 + longest * _CHAR_INCH, width_inch / 3)


def _height_inch(picture: Picture) -> float:
    num_lanes = len({event.kind for event in picture.events})
    heights = [_panel_inch(panel) for panel in picture.panels]
    heights += [_CURVE_INCH for _ in _merged(picture.curves)]
    heights += [_LANE_INCH * num_lanes] if num_lanes else []
    return math.fsum([*heights, _TITLE_INCH, _FOOT_INCH, _HEADING_INCH * len(heights)])


def _number(value: float) -> str:
    """Write a number with three digits, or all of its whole ones: 59.6, 2410."""
    return f"{value:.{max(3, len(f'{value:.0f}'))}g}"
