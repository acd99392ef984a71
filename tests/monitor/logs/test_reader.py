"""Logs of every series, as files, read back: whole columns and row by row."""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.logs import dmon, reader
from monitor.logs.decode import NO_TIME
from tests.monitor.dmon_letters import LETTERS
from tests.monitor.read_rows import Values, decoded, one_by_one

pytestmark = pytest.mark.slow

SAMPLES = sorted((Path(__file__).parents[1] / "data").glob("*.gutil"))
SHARED = Path(__file__).parents[4] / "shared" / "dmon"


@dataclass(frozen=True)
class Series:
    """How the drivers of a series write, as their format strings say."""

    gap: int
    index: int
    head_cell: int
    cell: int
    head_end: str
    end: str


SERIES = {
    "418": Series(3, 7, 5, 5, "", ""),
    "525": Series(3, 7, 5, 6, "", " "),
    "535": Series(3, 7, 6, 6, " ", " "),
    "550": Series(4, 8, 6, 6, " ", " "),
}
GPM = [("smutil", "GPM:%"), ("mmaact", "GPM:%"), ("pcirxut", "GPM:MiB/s")]


@dataclass(frozen=True)
class Row:
    """What was measured."""

    time: datetime
    gpu: int
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Writer:
    """Writes as `nvidia-smi dmon` does."""

    series: Series
    stamps: str
    columns: list[tuple[str, str]]
    gpm: list[tuple[str, str]]
    csv: bool = False
    units: bool = True

    @property
    def names(self) -> list[str]:
        """The columns after the GPU's index."""
        return [name for name, _ in self.columns + self.gpm]

    def head(self) -> str:
        """The header lines."""
        date = self._line(
            ["Date", "Time"], "gpu", [c[0] for c in self.columns + self.gpm], head=True
        )
        unit = self._line(
            ["YYYYMMDD", "HH:MM:SS"], "Idx", [c[1] for c in self.columns + self.gpm], head=True
        )
        lines = [date, unit] if self.units else [date]
        return "".join(f"#{line[1:] if not self.csv else line}\n" for line in lines)

    def row(self, row: Row) -> str:
        """A line of data."""
        stamps = [row.time.strftime("%Y%m%d"), row.time.strftime("%H:%M:%S")]
        cells = ["-" if value is None else f"{value:g}" for value in row.values]
        return self._line(stamps, str(row.gpu), cells, head=False) + "\n"

    def _line(self, stamps: list[str], index: str, cells: list[str], *, head: bool) -> str:
        chosen = [s for s, letter in zip(stamps, "DT", strict=True) if letter in self.stamps]
        if self.csv:
            return ", ".join([*chosen, index, *cells])
        series = self.series
        width = series.head_cell if head else series.cell
        gpm_from = len(cells) - len(self.gpm)
        reported = "".join(
            f" {cell:>{width if i < gpm_from else 9}}" for i, cell in enumerate(cells)
        )
        gap = " " * series.gap
        before = " " + gap.join(f"{stamp:<8}" for stamp in chosen) if chosen else ""
        place = f"{index:>{series.index if chosen else 5}}"
        return before + place + reported + (series.head_end if head else series.end)

    def text(self, rows: list[Row]) -> str:
        """A whole log."""
        parts = []
        for number, row in enumerate(rows):
            parts.append(self.head() if number % 44 == 0 else "")
            parts.append(self.row(row))
        return "".join(parts)


def tiny(text: str) -> list[dict[str, str]]:
    """A parser of its own, for whole and tidy logs: names over cells, split at spaces."""
    rows: list[dict[str, str]] = []
    names: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            names = names if "Idx" in line else line[1:].split()
        elif len(line.split()) == len(names):
            rows.append(dict(zip(names, line.split(), strict=True)))
    return rows


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_every_sample_reads_exactly(path: Path) -> None:
    """Every cell of the true logs, by a parser that shares nothing with ours."""
    log = reader.read(str(path))
    wanted = tiny(path.read_text())
    assert log.num_rows == len(wanted) > 0
    epoch = datetime(1970, 1, 1)  # noqa: DTZ001
    for (time_s, gpu, values), row in zip(decoded(log), wanted, strict=True):
        time = datetime.strptime(row.pop("Date") + row.pop("Time"), "%Y%m%d%H:%M:%S")  # noqa: DTZ007
        assert epoch + timedelta(seconds=time_s) == time
        assert gpu == int(row.pop("gpu"))
        assert values == {k: None if v == "-" else float(v) for k, v in row.items()}


def spelled(fb: float, *, has_jpg: bool) -> Values:
    """The readings in the samples, as one sees them in the file."""
    reported: Values = {
        "pwr": 294,
        "gtemp": 61,
        "mtemp": None,
        "sm": 98,
        "mem": 57,
        "enc": 0,
        "dec": 0,
    }
    reported |= {"jpg": 0, "ofa": 0} if has_jpg else {}
    reported |= {"fb": fb, "bar1": 4} | ({"ccpm": None} if has_jpg else {})
    return reported | {"rxpci": 847, "txpci": 9}


LOST = dict.fromkeys(("pwr", "gtemp", "sm", "mem", "fb", "rxpci", "txpci"))
OF_2_GPUS = [(0, 0), (0, 1), (1, 0), (1, 1)]
SPELLED: dict[str, tuple[int, list[tuple[int, int, Values]]]] = {
    "pumt_DT.418.226.00.2gpu": (0, [(*at, spelled(71680, has_jpg=False)) for at in OF_2_GPUS]),
    "pumt_DT.525.147.05.2gpu": (0, [(*at, spelled(71680, has_jpg=False)) for at in OF_2_GPUS]),
    "pumt_DT.525.147.05.allmissing": (
        0,
        [
            (0, gpu, dict.fromkeys(spelled(0, has_jpg=False)) | {"enc": 0, "dec": 0, "bar1": 4})
            for gpu in (0, 1)
        ],
    ),
    "pumt_DT.550.163.01.2gpu": (0, [(*at, spelled(71680, has_jpg=True)) for at in OF_2_GPUS]),
    "pumt_DT.550.163.01.gpu1_lost": (
        1,
        [
            (s, gpu, spelled(61440, has_jpg=True) | (LOST if gpu and s > 1 else {}))
            for s in range(5)
            for gpu in (0, 1)
        ],
    ),
}


@pytest.mark.parametrize("name", SPELLED)
@pytest.mark.parametrize("folder", [SAMPLES[0].parent, SHARED], ids=["data", "shared"])
def test_every_sample_reads_as_spelled_out(folder: Path, name: str) -> None:
    """Seconds since the first row, GPU and readings; what cannot be read is counted."""
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here: its samples are in {SAMPLES[0].parent}, too")
    log = reader.read(str(folder / f"{name}.gutil"))
    num_unreadable, rows = SPELLED[name]
    assert [(time_s - log.time_s[0], gpu, found) for time_s, gpu, found in decoded(log)] == rows
    assert (log.num_unreadable, log.torn, log.dated) == (num_unreadable, False, True)


def test_no_sample_is_left_out() -> None:
    """Those here, and those of the shared folder where there is one."""
    names = {path.stem for path in (*SAMPLES, *SHARED.glob("*.gutil"))}
    assert names == set(SPELLED)


values = st.one_of(st.none(), st.integers(0, 100), st.integers(0, 99_999))
columns = st.permutations(sorted(LETTERS)).flatmap(
    lambda letters: st.integers(1, len(letters)).map(
        lambda num: [column for letter in letters[:num] for column in LETTERS[letter]]
    )
)


@st.composite
def writers(draw: Any) -> Writer:
    """Any series, any columns in any order, with and without date, time, GPM, CSV, units."""
    csv = draw(st.booleans())
    return Writer(
        series=SERIES[draw(st.sampled_from(sorted(SERIES)))],
        stamps=draw(st.sampled_from(["DT", "D", "T", ""])),
        columns=draw(columns),
        gpm=GPM[: draw(st.integers(0, 3))],
        csv=csv,
        units=not csv or draw(st.booleans()),
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(writers(), st.data())
def test_logs_of_every_series_read_back(tmp_path: Path, writer: Writer, data: Any) -> None:
    """Whatever was chosen to be written, each reading comes back under its own name and time."""
    start = data.draw(st.datetimes(datetime(2000, 1, 1), datetime(2099, 1, 1)))  # noqa: DTZ001
    num = data.draw(st.sampled_from([1, 3, 50]))
    num_gpus = data.draw(st.integers(1, 16))
    seed = data.draw(st.randoms(use_true_random=False))
    pool = data.draw(st.lists(values, min_size=1, max_size=8))
    rows = [
        Row(
            start + timedelta(seconds=15 * (i // num_gpus)),
            i % num_gpus,
            tuple(seed.choice(pool) for _ in writer.names),
        )
        for i in range(num)
    ]
    path = tmp_path / "slurm-1.n.gutil"
    path.write_text(writer.text(rows))
    log = reader.read(str(path))
    assert (log.num_unreadable, log.torn, log.num_rows) == (0, False, num)
    for (time_s, gpu, found), row in zip(decoded(log), rows, strict=True):
        assert gpu == row.gpu
        assert found == dict(zip(writer.names, row.values, strict=True))
        whole = row.time.replace(microsecond=0)
        if writer.stamps == "DT":
            assert time_s == (whole - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001
        elif writer.stamps == "T":
            assert time_s % 86_400 == (whole - whole.replace(hour=0, minute=0, second=0)).seconds
        else:
            assert time_s == NO_TIME
    assert log.dated == ("D" in writer.stamps)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text(max_size=140), max_size=6), st.data())
def test_both_ways_of_reading_agree(tmp_path: Path, garbage: list[str], data: Any) -> None:
    """Reading whole columns gives what reading row by row gives, whatever lies in between."""
    lines = data.draw(st.sampled_from(SAMPLES)).read_text().split("\n")
    for line in garbage:
        place = data.draw(st.integers(0, len(lines)))
        lines.insert(place, line.encode("utf-8", "replace").decode().replace("\r", " "))
    text = "\n".join(lines)
    path = tmp_path / "log.gutil"
    path.write_bytes(text.encode())
    log = reader.read(str(path))
    slow = one_by_one(text)
    assert log.num_unreadable == slow.count(None)
    cells = [found for found in slow if found]
    assert log.num_rows == len(cells)
    for (_, _, found), row in zip(decoded(log), cells, strict=True):
        for name in ("pwr", "fb", "txpci"):
            assert found.get(name) == (dmon.parse_value(row[name]) if name in row else None)


@pytest.mark.parametrize("blank", ["", " ", "\t", " " * 20])
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_other_blanks_are_no_cells(path: Path, blank: str, tmp_path: Path) -> None:
    """Something changed them, in the header or everywhere: no row counts, and all are reported."""
    head, _, *rows = path.read_text().splitlines(keepends=True)
    other = [re.sub(" +", blank, line) for line in (head, *rows)]
    log = tmp_path / "log.gutil"
    for lines in ([other[0], *rows], other):
        log.write_text("".join(lines))
        read = reader.read(str(log))
        assert (read.num_rows, read.num_unreadable) == (0, len(one_by_one("".join(lines))))
        assert read.num_unreadable > 0


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_a_killed_dmon_costs_no_row_of_the_next(path: Path, tmp_path: Path) -> None:
    """As after `>>`: its last row has no end, and the next header stands in the same line."""
    text = path.read_text().removesuffix("rc=0\n")
    log, once = tmp_path / "log.gutil", reader.read(str(path)).num_rows
    for num_bytes in (1, 30, 60):
        log.write_text(text + text[:-num_bytes] + text)
        read, slow = reader.read(str(log)), one_by_one(log.read_text())
        assert (read.num_rows, read.num_unreadable) == (3 * once - (num_bytes > 1), num_bytes > 1)
        assert (len(slow), slow.count(None)) == (3 * once, read.num_unreadable)


def test_a_log_is_read_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    """Wherever a block ends, the rows are the same, and a growing end is left for later."""
    text = (data / "pumt_DT.550.163.01.gpu1_lost.gutil").read_text() * 3 + " 2026112"
    path = tmp_path / "log.gutil"
    path.write_text(text)
    whole = reader.read(str(path))
    assert (whole.num_rows, whole.num_unreadable, whole.torn) == (30, 3, True)
    for size in (1, 7, 128, 129, 500):
        monkeypatch.setattr(reader, "_BLOCK_BYTES", size)
        assert decoded(reader.read(str(path))) == decoded(whole)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_a_log_that_still_grows_has_the_rows_that_are_whole(path: Path, tmp_path: Path) -> None:
    """Cut anywhere: the rows before, none of the rest, and whether the last line has no end."""
    text = path.read_bytes()
    rows = decoded(reader.read(str(path)))
    growing = tmp_path / path.name
    for size in range(0, len(text), 7):
        growing.write_bytes(text[:size])
        log = reader.read(str(growing))
        *lines, rest = text[:size].split(b"\n")
        assert decoded(log) == rows[: sum(line.startswith(b" 2026") for line in lines)]
        assert log.torn == bool(rest.strip())


def test_a_line_of_hashes_is_not_read_for_each_of_them(tmp_path: Path) -> None:
    """As of a progress bar that went into the log, however long it is."""
    text, path = SAMPLES[0].read_text(), tmp_path / "log.gutil"
    once, before = reader.read(str(SAMPLES[0])).num_rows, dmon.parse_header.cache_info().misses
    path.write_text(f"{text}x{'# ' * 5000}\n{text}")
    log = reader.read(str(path))
    assert (log.num_rows, log.num_unreadable) == (2 * once, 1)
    assert dmon.parse_header.cache_info().misses - before < 2500
