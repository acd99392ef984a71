"""Layouts that people show of their own dmon, with other numbers; read by two readers, alike.

The other reader splits a row at its blanks and goes by the number of names above it.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from monitor.live import log as live_log
from monitor.live.log import LiveLog
from monitor.logs import reader

P = "pwr:W gtemp:C mtemp:C"
U = "sm:% mem:% enc:% dec:%"
U2 = f"{U} jpg:% ofa:%"
C = "mclk:MHz pclk:MHz"
M2 = "fb:MB bar1:MB ccpm:MB"
E = "sbecc:errs dbecc:errs pci:errs"
T = "rxpci:MB/s txpci:MB/s"
GPM = "gract:GPM:% smutil:GPM:% pcirx:GPM:MiB/s"


@dataclass(frozen=True)
class Shape:
    """Columns as `name:unit`, how wide they are, what stamps precede them, how lines end."""

    columns: str
    width: int
    stamps: str = ""
    end: str = ""
    gpm: tuple[int, ...] = ()
    """How wide the last columns are."""
    gap: int = 3
    between: str = ""
    """Between two rows."""

    def line(self, stamps: list[str], index: str, cells: list[str]) -> str:
        """A line, without its newline."""
        reported = [
            stamp for letter, stamp in zip("DT", stamps, strict=True) if letter in self.stamps
        ]
        before = " " + (" " * self.gap).join(reported) if reported else ""
        num = len(cells) - len(self.gpm)
        widths = (*(self.width,) * num, *self.gpm)
        place = f"{index:>{self.gap + 4 if reported else 5}}"
        return before + place + "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))

    def text(self, rows: list[list[str]]) -> str:
        """A log."""
        reported = [column.partition(":") for column in self.columns.split()]
        stamps = (["Date    ", "Time    "], "gpu"), (["YYYYMMDD", "HH:MM:SS"], "Idx")
        lines = [
            "#" + self.line(*stamp, [column[i] for column in reported])[1:] + self.end
            for stamp, i in zip(stamps, (0, 2), strict=True)
        ]
        for number, cells in enumerate(rows):
            stamp = ["20261121", f"03:26:{number:02}"]
            lines += [self.line(stamp, str(number % 2), cells) + self.end + self.between]
        return "".join(f"{line}\n" for line in lines)


SHAPES = {
    "375": Shape(f"pwr:W temp:C {U} {C}", 6),
    "375 all": Shape(f"pwr:W temp:C {U} {C} pviol:% tviol:bool fb:MB bar1:MB {E} {T}", 6),
    "460": Shape(f"{P} {U} {C} {E} {T}", 6, "DT"),
    "470 um": Shape(f"{U} fb:MB bar1:MB", 6),
    "470 mu": Shape(f"fb:MB bar1:MB {U}", 6, "D"),
    "470 all": Shape(f"{P} {U} {C} pviol:% tviol:bool fb:MB bar1:MB {E} {T}", 6, "T"),
    "535": Shape(f"{P} {U2} {C}", 7, end=" "),
    "535 without the blanks": Shape(f"{P} {U2} {C} fb:MB bar1:MB", 7),
    "535 mutc": Shape(f"{M2} {U2} {T} {C}", 7, "DT", " ", between="\n"),
    "550": Shape(f"{P} {U2} {C} pviol:% tviol:bool {M2} {E} {T}", 7, "DT", " ", gap=4),
    "550 um": Shape(f"{U2} {M2}", 7, "T", gap=4),
    "550 t": Shape(T, 7, end=" "),
    "550 tu": Shape(f"{T} {U2}", 7, end=" "),
    "GPM": Shape(f"{P} {U2} {C} {GPM}", 7, gpm=(11, 10, 10)),
    "GPM, wider": Shape(f"{P} {U2} {C} {GPM}", 7, "DT", gpm=(11, 11, 11), gap=4),
    "GPM beside t": Shape(f"{T} {GPM}", 7, end=" ", gpm=(11, 10, 10)),
}


def simply(text: str) -> list[dict[str, float]]:
    """Read by names and blanks."""
    rows, names = [], list[str]()
    for line in text.splitlines():
        words = line.lstrip("#").split()
        if line.startswith("#"):
            names = names if "Idx" in words else words
        elif words:
            reported = dict(zip(names, words, strict=True))
            cells = ((k, reported[k]) for k in names if k not in ("Date", "Time", "gpu"))
            rows.append({k: np.nan if cell == "-" else float(cell) for k, cell in cells})
    return rows


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_two_readers_and_the_live_view_agree(tmp_path: Path, name: str, newline: str) -> None:
    """Every cell of every row, whatever the layout."""
    rng = random.Random(name)  # noqa: S311 - no secret
    num = len(SHAPES[name].columns.split())
    kinds = ["-", "0", "7", "42", "100", "1980", "71680"]
    text = SHAPES[name].text([[rng.choice(kinds) for _ in range(num)] for _ in range(20)])
    path = tmp_path / "log.gutil"
    path.write_text(text, newline=newline)
    log, wanted = reader.read(str(path)), simply(text)
    assert (log.num_rows, log.num_unreadable, log.hints) == (20, 0, ())
    for column, values in log.values.items():
        np.testing.assert_array_equal(values, [row[column] for row in wanted])
    live = LiveLog(str(path))
    live_log.poll([live])
    assert live.num_unreadable == 0
    for track in live.tracks:
        mine = wanted[track.gpu or 0 :: 2]
        for column in log.values:
            np.testing.assert_array_equal(track.column(column), [row[column] for row in mine])
