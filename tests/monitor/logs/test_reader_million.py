"""A million damaged lines, read as a slow reader of another kind reads them.

That reader is one regular expression a series, written after the drivers' format strings, line by
line. `DDP_FUZZ_SEED` says how lines are damaged.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from monitor.logs import gutil, reader

NUM_LINES = 1_000_000
PER_LOG = 20_000
NUM_DISTINCT = 2_000
SEED = int(os.environ.get("DDP_FUZZ_SEED", "4"))

Text = NDArray[np.uint8]
Rng = np.random.Generator

NUMBERS = np.frombuffer(b"0123456789 -:", np.uint8)
"""What a number or a blank may become without being noticed."""
ANY = np.array([byte for byte in range(256) if byte not in b"#\n"], np.uint8)
GARBAGE = np.array([byte for byte in ANY if byte not in b"0123456789 -\r"], np.uint8)
"""What is never part of a number."""


@dataclass(frozen=True)
class Series:
    """How rows are written: blanks around the stamps, widths of the cells, the end."""

    head: bytes
    gap: int
    index: int
    widths: tuple[int, ...]
    end: str

    def row(self, seconds: int, gpu: int, cells: list[str]) -> bytes:
        """A line of data, with its newline."""
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        reported = "".join(
            f"{cell:>{width}}" for cell, width in zip(cells, self.widths, strict=True)
        )
        return f" 20261121{' ' * self.gap}{clock}{gpu:>{self.index}}{reported}{self.end}\n".encode()

    def pattern(self) -> "re.Pattern[bytes]":
        """What a row must look like, each cell a number or `-` at the right of its width."""
        clock = r"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d)"
        cells = "".join(map(_cell, self.widths))
        text = rf" (\d{{8}}) {{{self.gap}}}{clock}{_cell(self.index)}{cells}{self.end}\r?"
        return re.compile(text.encode())


def _cell(width: int) -> str:
    numbers = (f" {{{width - k}}}[1-9]\\d{{{k - 1}}}" for k in range(1, width + 1))
    return f"((?: {{{width - 1}}}[-0]|{'|'.join(numbers)}))"


def _head(series: str) -> bytes:
    path = Path(__file__).parents[1] / "data" / f"pumt_DT.{series}.2gpu.gutil"
    return b"".join(path.read_bytes().splitlines(keepends=True)[:2])


OURS = gutil.Layout("pumtcjrgh")
ALL_SERIES = {
    "418": Series(_head("418.226.00"), 3, 7, (6,) * 11, ""),
    "525": Series(_head("525.147.05"), 3, 7, (7,) * 11, " "),
    "550": Series(_head("550.163.01"), 4, 8, (7,) * 14, " "),
    "ours": Series(OURS.header().encode(), 4, 8, tuple(c.width + 1 for c in OURS.columns), " "),
}


def whole(rng: Rng, series: Series) -> Text:
    """Rows as they were written, (rows, characters) with the newline."""
    most_digits = rng.integers(2, 7, len(series.widths))  # of each column
    limits = 10 ** rng.integers(0, most_digits, (NUM_DISTINCT, len(series.widths)))
    numbers = rng.integers(0, limits)
    cells = np.where(rng.random(numbers.shape) < 0.1, "-", numbers.astype(str)).tolist()
    lines = [series.row(15 * (i // 8), i % 8, cells[i]) for i in range(NUM_DISTINCT)]
    rows = np.frombuffer(b"".join(lines), np.uint8).reshape(NUM_DISTINCT, -1)
    return np.tile(rows, (PER_LOG // NUM_DISTINCT, 1))


def spoil(rng: Rng, rows: Text, pool: Text) -> bytes:
    """Overwrite one to three characters."""
    spoiled = rows.copy()
    lines = np.arange(len(rows))
    for share in (1, 0.5, 0.5):
        hit = lines[rng.random(len(rows)) < share]
        spoiled[hit, rng.integers(0, rows.shape[1] - 1, len(hit))] = rng.choice(pool, len(hit))
    return spoiled.tobytes()


def touch(rng: Rng, rows: Text, pool: Text) -> bytes:
    """Overwrite a character where some rows have one: cells stay as short as they are."""
    touched = rows.copy()
    inked = np.flatnonzero((rows[:, :-1] != ord(" ")).any(0))
    touched[np.arange(len(rows)), rng.choice(inked, len(rows))] = rng.choice(pool, len(rows))
    return touched.tobytes()


def cut(rng: Rng, rows: Text, _pool: Text) -> bytes:
    """Lose the end of each line, but not its newline."""
    columns, last = np.arange(rows.shape[1]), rows.shape[1] - 1
    kept = columns < rng.integers(0, last, (len(rows), 1))
    left: Text = rows[kept | (columns == last)]
    return left.tobytes()


def join(rng: Rng, rows: Text, _pool: Text) -> bytes:
    """Lose the end of every other line, with its newline."""
    kept = np.arange(rows.shape[1]) < rng.integers(1, rows.shape[1], (len(rows), 1))
    kept[1::2] = True
    return rows[kept].tobytes()


def holes(rng: Rng, rows: Text) -> NDArray[np.bool_]:
    """Choose some bytes from each line on, perhaps over its end; flat."""
    begins = np.arange(len(rows)) * rows.shape[1] + rng.integers(0, rows.shape[1], len(rows))
    changes = np.zeros(rows.size + 300, np.int64)
    changes[begins] += 1
    np.subtract.at(changes, begins + 1 + (rng.random(len(rows)) ** 4 * 250).astype(int), 1)
    return np.cumsum(changes)[: rows.size] > 0


def lose(rng: Rng, rows: Text, _pool: Text) -> bytes:
    """Lose some bytes of each line, perhaps over its end."""
    return rows.ravel()[~holes(rng, rows)].tobytes()


def zero(rng: Rng, rows: Text, _pool: Text) -> bytes:
    """Leave zero bytes, as a file system may after a crash."""
    return np.where(holes(rng, rows), 0, rows.ravel()).astype(np.uint8).tobytes()


def blot(rng: Rng, rows: Text, pool: Text) -> bytes:
    """Put some bytes in between."""
    num, width = rows.shape
    at, size = rng.integers(0, width, (num, 1)), rng.integers(1, 20, (num, 1))
    columns = np.arange(width + 20)
    source = np.where(columns < at, columns, columns - size)
    is_blot = (columns >= at) & (columns < at + size)
    text = np.take_along_axis(rows, np.clip(source, 0, width - 1), 1)
    text[is_blot] = rng.choice(pool, int(is_blot.sum()))
    left: Text = text[columns < width + size]
    return left.tobytes()


Damage = Callable[[Rng, Text, Text], bytes]
DAMAGES: list[tuple[Damage, Text]] = [
    (spoil, NUMBERS),
    (touch, NUMBERS),
    (spoil, ANY),
    (touch, ANY),
    (spoil, GARBAGE),
    (cut, GARBAGE),
    (join, GARBAGE),
    (lose, GARBAGE),
    (zero, GARBAGE),
    (blot, ANY),
    (blot, GARBAGE),
]


@lru_cache(maxsize=1000)
def _day_s(day: bytes) -> int | None:
    try:
        return (date.fromisoformat(day.decode()) - date(1970, 1, 1)).days * 86_400
    except ValueError:
        return None


def slowly(series: Series, lines: list[bytes]) -> NDArray[np.float64]:
    """Read lines one by one: time, GPU and readings of those that are rows."""
    fits = series.pattern().fullmatch
    read = [found.groups() for line in lines if (found := fits(line))]
    days = [_day_s(row[0]) for row in read]
    good = [row for row, day in zip(read, days, strict=True) if day is not None]
    good = [row for row in good if len(row[2].strip()) < 5]  # there is no other GPU
    times_s = [
        _day_s(row[0]) + int(row[1][:2]) * 3600 + int(row[1][3:5]) * 60 + int(row[1][6:])  # type: ignore[operator]
        for row in good
    ]
    text = b" ".join(cell for row in good for cell in row[2:]).replace(b"-", b"nan")
    numbers = np.fromstring(text, sep=" ").reshape(-1, len(series.widths) + 1)
    numbers[np.isnan(numbers[:, 0]), 0] = -1
    return np.column_stack([np.array(times_s, np.float64), numbers])


def quickly(path: Path, num_cells: int) -> tuple[reader.Log, NDArray[np.float64]]:
    """The same, by the reader that is tested."""
    log = reader.read(str(path))
    values = list(log.values.values()) or [np.empty(0)] * num_cells
    return log, np.column_stack([log.time_s, log.gpu, *values]).astype(np.float64)


def as_one(rows: NDArray[np.float64]) -> NDArray[np.void]:
    """Each row as one value."""
    whole_rows = np.ascontiguousarray(np.nan_to_num(rows, nan=-1.0))
    return whole_rows.view(np.dtype((np.void, whole_rows.itemsize * rows.shape[1]))).ravel()


@pytest.fixture
def untraced() -> Iterator[None]:
    """Measure no coverage: it would take ten times as long, and other tests read the same lines."""
    trace = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(trace)


@pytest.mark.slow
@pytest.mark.usefixtures("untraced")
def test_a_million_damaged_lines_never_become_a_wrong_number(tmp_path: Path) -> None:
    """Both readers find the same rows with the same numbers, and all other lines are counted.

    Where nothing that looks like a number was put in, every row is one that was written.
    """
    path = tmp_path / "log.gutil"
    rng = np.random.default_rng(SEED)
    num_lines = num_rows = turn = 0
    kinds = [(series, whole(rng, series)) for series in ALL_SERIES.values()]
    originals = [as_one(slowly(kind, [bytes(row[:-1]) for row in rows])) for kind, rows in kinds]
    assert all(len(written) == PER_LOG for written in originals)
    while num_lines < NUM_LINES:
        (series, rows), (damage, pool) = kinds[turn % len(kinds)], DAMAGES[turn % len(DAMAGES)]
        lines = damage(rng, rows, pool).removesuffix(b"\n").split(b"\n")
        reported = sum(1 for line in lines if line.strip(b" \t\r"))
        blocks = (lines[i : i + 44] for i in range(0, len(lines), 44))
        path.write_bytes(b"".join(series.head + b"\n".join([*block, b""]) for block in blocks))
        log, found = quickly(path, len(series.widths))
        np.testing.assert_array_equal(found, slowly(series, lines))
        assert (log.num_rows + log.num_unreadable, log.torn) == (reported, False)
        if pool is GARBAGE and damage is not lose:  # holes may add up to whole rows
            assert np.isin(as_one(found), originals[turn % len(kinds)]).all()
        turn += 1
        num_lines += len(rows)
        num_rows += log.num_rows
    assert turn > len(kinds) * len(DAMAGES)  # each damage, to each series
    assert num_rows > NUM_LINES // 50
