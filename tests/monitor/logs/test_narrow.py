"""Rows of early 525 and 530 programs: each `-` makes its row one character shorter.

Written after the output of 525.105.17 and 530.41.03: a cell has six characters, and a blank follows
a number, but no `-`; cells of GPM have ten, and nothing follows. Headers have cells of six (525) or
seven (530) and know no `jpg`. Snippets in the wild lack the blank at the end.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor import cli
from monitor.live import log as live_log
from monitor.live.log import LiveLog
from monitor.logs import parser, reader
from monitor.logs.newest import Newest
from monitor.runs import node_log
from tests.monitor.dmon_letters import LETTERS
from tests.monitor.read_rows import one_by_one

Cells = list[str]
HINT = (parser.NARROW,)


@dataclass(frozen=True)
class Program:
    """How a program writes."""

    letters: str = "pumt"
    head_cell: int = 6
    stamped: bool = True
    narrow: bool = True
    end: str = ""
    """Of rows that are not narrow."""
    gpm: tuple[str, ...] = ()

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Names and units."""
        plain = [column for letter in self.letters for column in LETTERS[letter]]
        return [*plain, *((name, "GPM:%") for name in self.gpm)]

    def head(self) -> str:
        """Both header lines."""
        stamps = (
            ("#Date       Time        gpu", "#YYYYMMDD   HH:MM:SS    Idx")
            if self.stamped
            else ("# gpu", "# Idx")
        )
        num = len(self.columns) - len(self.gpm)
        widths = [*[self.head_cell] * num, *[10] * len(self.gpm)]
        if self.gpm:
            widths[num] += self.head_cell - 6
        end = " " if self.head_cell == 7 and not self.gpm and self.narrow else ""
        return "".join(
            stamp
            + "".join(f"{c[i]:>{w}}" for c, w in zip(self.columns, widths, strict=True))
            + f"{end}\n"
            for i, stamp in enumerate(stamps)
        )

    def row(self, second: int, gpu: int, cells: Cells) -> str:
        """A row, with its newline."""
        stamp = f" 20261121   03:26:{second:02}{gpu:>7}" if self.stamped else f"{gpu:>5}"
        if not self.narrow:
            return f"{stamp}{''.join(f'{cell:>7}' for cell in cells)}{self.end}\n"
        num = len(cells) - len(self.gpm)
        reported = "".join(f"{cell:>6}" + " " * (cell != "-") for cell in cells[:num])
        return f"{stamp} {reported}{''.join(f'{cell:>10}' for cell in cells[num:])}\n"

    def text(self, rows: list[Cells]) -> str:
        """A log."""
        parts = []
        for i, cells in enumerate(rows):
            parts += [self.head()] if i % 44 == 0 else []
            parts.append(self.row(i // 2 % 60, i % 2, cells))
        return "".join(parts)


PUMT = ["294", "61", "-", "98", "57", "0", "0", "71680", "4", "847", "9"]


def numbers(cells: Cells) -> list[float]:
    """What cells mean; -1 is no reading."""
    return [-1.0 if cell == "-" else float(cell) for cell in cells]


def found(path: Path) -> tuple[reader.Log, list[list[float]]]:
    """A log, and its rows."""
    log = reader.read(str(path))
    columns = [np.nan_to_num(column, nan=-1).tolist() for column in log.values.values()]
    return log, [list(row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("head_cell", [6, 7])
@pytest.mark.parametrize("end", ["\n", "\r\n", "cut off", "head cut off"])
@pytest.mark.parametrize("is_stamped", [True, False], ids=["DT", "no time"])
@pytest.mark.parametrize("gpm", [(), ("gract", "pcirx")], ids=["", "GPM"])
def test_a_log_that_is_narrow_throughout_is_read(
    tmp_path: Path,
    head_cell: int,
    end: str,
    is_stamped: bool,  # noqa: FBT001 - of a parameter
    gpm: tuple[str, ...],
) -> None:
    """Every reading under its own name, wherever a `-` is."""
    rows = [[*PUMT[:3], str(i), *PUMT[4:], *("17", "123456")[: len(gpm)]] for i in range(100)]
    for i, cells in enumerate(rows):
        cells[2] = "66"
        if i > 44:  # until then none at all, as with GPUs that can read everything
            cells[i % len(cells)] = "-"
    rows[50] = ["-"] * len(rows[50])  # a GPU that is lost
    path = tmp_path / "log.gutil"
    text = Program("pumt", head_cell, stamped=is_stamped, gpm=gpm).text(rows)
    begin = {"cut off": "", "head cut off": "#"}.get(end)
    if begin is None:
        text = text.replace("\n", end)
    else:
        text = re.sub(rf"^({begin}.*?) +$", r"\1", text, flags=re.MULTILINE)
    path.write_text(text, newline="")
    log, reported = found(path)
    assert reported == [numbers(cells) for cells in rows]
    assert (log.num_unreadable, log.hints) == (0, ())


def test_rows_as_the_programs_write_them(tmp_path: Path) -> None:
    """In their own characters: `-` before a number, another, GPM's cells, and at the end."""
    text = (
        "# gpu    pwr  gtemp  mtemp     sm  rxpci  txpci      gract    smutil\n"
        "# Idx      W      C      C      %   MB/s   MB/s      GPM:%     GPM:%\n"
        "    0    156      8      -    98  12345      2         17         -\n"
        "    1      -     -     7    100      -     -        17       100\n"
        "# gpu    fb  bar1\n"
        "# Idx    MB    MB\n"
        "    0 125105      -\n"
        "    1      -     5 \n"
        "    2      -     -\n"
    )
    path = tmp_path / "log.gutil"
    path.write_text(text)
    log, reported = found(path)
    assert (log.num_unreadable, log.hints) == (0, ())
    nothing = [-1.0] * 8
    assert reported == [
        [156, 8, -1, 98, 12345, 2, 17, -1, -1, -1],
        [-1, -1, 7, 100, -1, -1, 17, 100, -1, -1],
        [*nothing, 125105, -1],
        [*nothing, -1, 5],
        [*nothing, -1, -1],
    ]


@pytest.mark.parametrize(
    ("kinds", "num_rows", "hints"),
    [
        ("n", 0, HINT),
        ("m", 1, ()),
        ("mx", 1, ()),
        ("mxx", 0, HINT),
        ("b", 1, ()),
        ("bn", 1, HINT),
        ("bnn", 3, ()),
        ("bnw", 2, ()),
        ("nn", 2, ()),
        ("nw", 1, ()),
        ("nnnnw", 1, ()),
        ("nx", 0, HINT),
        ("nnx", 2, ()),
        ("nnxx", 0, HINT),
        ("xnnxn", 3, ()),
        ("xnnnx", 3, ()),
        ("w", 1, ()),
        ("wx", 1, ()),
        ("n#nn", 2, HINT),
        ("nn#ww", 4, ()),
        ("ww#nn", 4, ()),
    ],
)
def test_one_narrow_row_is_no_proof(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kinds: str,
    num_rows: int,
    hints: tuple[str, ...],
) -> None:
    """A stretch decides: two signs of narrow rows (n has one, m two), more than of others (x).

    None may be wide (w); without a `-` they lie both ways (b).
    Wherever the reader's blocks end; and what is unknown is reported in words.
    """
    narrow = Program()
    cells = {"n": PUMT, "m": [*PUMT[:-1], "-"], "b": [*PUMT[:2], "60", *PUMT[3:]], "w": PUMT}
    lines = {
        **{kind: narrow.row(1, 0, cells[kind]) for kind in "nmb"},
        "w": replace(narrow, narrow=False, end=" ").row(1, 0, PUMT),
        "x": " 20261121   03:26:0\n",
        "#": narrow.head(),
    }
    text = narrow.head() + "".join(lines[kind] for kind in kinds)
    path = tmp_path / "log.gutil"
    path.write_text(text)
    for size in (2**22, 512, 64):
        monkeypatch.setattr(reader, "_BLOCK_BYTES", size)
        log, reported = found(path)
        assert len(reported) == num_rows
        assert set(map(tuple, reported)) <= {tuple(numbers(cells[k])) for k in kinds if k in cells}
        assert (log.num_unreadable, log.hints) == (len(kinds.replace("#", "")) - num_rows, hints)
    assert sum(row is not None for row in one_by_one(text)) == num_rows


def test_the_report_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In plain words, below the tables."""
    path = tmp_path / "log.gutil"
    path.write_text(Program().text([PUMT] * 45))
    cli.main(["report", str(path)])
    output = " ".join(capsys.readouterr().out.split())
    assert f"1 row could not be read ({parser.NARROW})" in output


def test_a_narrow_log_is_watched_row_by_row(tmp_path: Path) -> None:
    """The first row of a stretch waits for the second; then all are there."""
    program = Program()
    path = tmp_path / "log.gutil"
    live = LiveLog(str(path))
    seen = []
    for part in (program.head(), *(program.row(i, 0, PUMT) for i in range(3)), program.head()):
        with path.open("a") as file:
            file.write(part)
        live_log.poll([live])
        seen.append(sum(track.num_samples for track in live.tracks))
    assert seen == [0, 0, 2, 3, 3]
    (track,) = live.tracks
    assert [track.last(name) for name, _ in program.columns] == [
        None if cell == "-" else float(cell) for cell in PUMT
    ]
    assert live.num_unreadable == 0


def test_what_waits_when_the_stretch_ends_is_counted(tmp_path: Path) -> None:
    """Alone, or before a row that lies as usual."""
    program = Program()
    wide = replace(program, narrow=False, end=" ")
    path = tmp_path / "log.gutil"
    alone, first = program.row(1, 0, PUMT), program.row(1, 1, PUMT) + wide.row(2, 0, PUMT)
    path.write_text(program.head() + alone + program.head() + first + program.head())
    live = LiveLog(str(path))
    live_log.poll([live])
    assert (sum(track.num_samples for track in live.tracks), live.num_unreadable) == (1, 2)


def test_a_narrow_log_is_exported_and_explained(tmp_path: Path) -> None:
    """The newest sample of each GPU, and what `why` says of a node."""
    path = tmp_path / "log.gutil"
    path.write_text(Program().text([PUMT] * 50))
    now = Newest(str(path)).poll()
    assert now is not None
    assert [(gpu.index, gpu.values["fb"], gpu.values["sm"]) for gpu in now.gpus] == [
        (1, 71680, 98),
        (0, 71680, 98),
    ]
    samples = node_log.read(str(path)).samples
    assert [sample.values["sm"] for sample in samples] == [98] * 50


def test_a_narrow_log_is_exported_as_it_grows(tmp_path: Path) -> None:
    """Though each poll finds but one more row: those before belong to it."""
    program = Program()
    path = tmp_path / "log.gutil"
    path.write_text(program.head())
    newest, seen = Newest(str(path)), []
    for second in range(3):
        with path.open("a") as file:
            file.write(program.row(second, 0, [str(second), *PUMT[1:]]))
        now = newest.poll()
        seen.append(now and now.newest.values["pwr"])
    assert seen == [None, 1, 2]


def test_why_takes_no_row_for_one_of_the_header_before(tmp_path: Path) -> None:
    """A header that is not understood leaves the rows below it without one, as everywhere."""
    program = Program(narrow=False, end=" ")
    path = tmp_path / "log.gutil"
    path.write_text(program.text([PUMT] * 4) + "# gpu ???\n" + program.row(9, 0, PUMT))
    assert len(node_log.read(str(path)).samples) == 4


cell = st.one_of(st.just("-"), st.integers(0, 100).map(str), st.integers(0, 99_999).map(str))


@st.composite
def logs(draw: Any) -> tuple[Program, list[Cells]]:
    """Any columns in any order among which `sm` is, any numbers."""
    letters = draw(st.permutations(sorted(LETTERS)).map("".join))
    program = Program(
        letters[: draw(st.integers(letters.index("u") + 1, len(letters)))],
        draw(st.sampled_from([6, 7])),
        draw(st.booleans()),
        draw(st.booleans()),
        gpm=draw(st.sampled_from([(), ("gract", "pcirx")])),
    )
    if not program.narrow:  # the later ones end as their headers do, or 525 with a blank
        program = replace(program, end=" " if program.head_cell == 6 else "", gpm=())
    width = len(program.columns)
    share = st.integers(0, 100).map(str)
    pool = draw(st.lists(st.lists(cell, min_size=width, max_size=width), min_size=1, max_size=5))
    place = [name for name, _ in program.columns].index("sm")
    for cells in pool:
        cells[place] = draw(share)
    return program, [pool[i % len(pool)] for i in range(draw(st.integers(1, 60)))]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(logs(), st.data())
def test_no_value_lands_in_another_column(
    tmp_path: Path, log: tuple[Program, list[Cells]], data: Any
) -> None:
    """Narrow or as usual, damaged or not: what is read is what was written, all else is counted.

    Each damage takes or puts a blank or a mark somewhere, or tears a line; so no digit is lost.
    """
    program, rows = log
    lines = program.text(rows).splitlines(keepends=True)
    at_rows = [i for i, line in enumerate(lines) if not line.startswith("#")]
    for number in data.draw(st.lists(st.sampled_from(at_rows), max_size=4, unique=True)):
        lines[number] = data.draw(damaged(lines[number]))
    path = tmp_path / "log.gutil"
    path.write_text("".join(lines))
    read, reported = found(path)
    written = {tuple(numbers(cells)) for cells in rows}
    assert {tuple(row) for row in reported} <= written
    assert read.num_rows + read.num_unreadable == sum(
        1 for line in lines if line.strip() and not line.startswith("#")
    )
    slow = [row for row in one_by_one("".join(lines)) if row is not None]
    assert [numbers(list(cells.values())[-len(program.columns) :]) for cells in slow] == reported


def damaged(line: str) -> st.SearchStrategy[str]:
    """The line with a blank less, a blank or a letter more, or without its end."""
    blanks = [found.start() for found in re.finditer(" ", line)]
    places = st.integers(0, len(line) - 1)
    return st.one_of(
        st.sampled_from(blanks).map(lambda at: line[:at] + line[at + 1 :]),
        st.tuples(places, st.sampled_from("x -")).map(lambda x: line[: x[0]] + x[1] + line[x[0] :]),
        places.map(lambda at: line[:at].rstrip("\n0123456789") + "\n"),
    )


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(logs(), st.data())
def test_digits_lost_in_some_rows_make_no_stretch_narrow(
    tmp_path: Path, log: tuple[Program, list[Cells]], data: Any
) -> None:
    """Rows that lie as usual of which some lost a digit behind a `-`: these are counted."""
    program, rows = log
    program = replace(
        program, narrow=False, end=" " if program.head_cell == 6 else "", gpm=(), letters="pucvmet"
    )
    rows = [["294", "61", "-", "98", *cells[:14]] for cells in rows]
    rows = [[*cells, *["7"] * (len(program.columns) - len(cells))] for cells in rows]
    lines = [program.row(1, 0, cells) for cells in rows]
    which = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    which = [one and i % 44 != 7 for i, one in enumerate(which)]
    if len(rows) % 44 in range(1, 8):
        which[len(rows) // 44 * 44] = False  # each stretch has a whole row
    lost = [
        line.replace("-     98", "-     9", 1) if one else line
        for line, one in zip(lines, which, strict=True)
    ]
    assert [len(line) for line in lost] != [len(line) for line in lines] or not any(which)
    heads = [program.head() if i % 44 == 0 else "" for i in range(len(rows))]
    path = tmp_path / "log.gutil"
    path.write_text("".join(head + line for head, line in zip(heads, lost, strict=True)))
    read, reported = found(path)
    assert reported == [numbers(cells) for cells, one in zip(rows, which, strict=True) if not one]
    assert read.num_unreadable == sum(which)
