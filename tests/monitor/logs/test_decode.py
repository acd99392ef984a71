"""Columns that vary in every way are read as `dmon.parse_row` reads them, row by row."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.logs import dmon, gutil, reader
from monitor.logs.decode import decode
from monitor.logs.log_events import Place
from monitor.logs.parser import Parser
from tests.monitor.read_rows import decoded, one_by_one

Draw = Callable[[random.Random, int, int], list[str]]


def digits(rng: random.Random, num: int) -> str:
    """A number of so many digits."""
    return str(rng.randrange(10 ** (num - 1) if num > 1 else 0, 10**num))


def same(rng: random.Random, width: int, num_rows: int) -> list[str]:
    """The same number, or none, in all rows."""
    return [rng.choice(["-", digits(rng, rng.randint(1, width))])] * num_rows


def alike(rng: random.Random, width: int, num_rows: int) -> list[str]:
    """Numbers of as many digits, of which the first may be the same."""
    num = rng.randint(1, width)
    stem = digits(rng, num)[: rng.randint(0, num - 1)]
    if stem:
        return [stem + f"{rng.randrange(10**6):06}"[: num - len(stem)] for _ in range(num_rows)]
    return [digits(rng, num) for _ in range(num_rows)]


def growing(rng: random.Random, width: int, num_rows: int) -> list[str]:
    """A number that comes to have a digit more."""
    first = max(0, 10 ** rng.randint(1, width - 1) - rng.randint(0, num_rows))
    return [str(first + row) for row in range(num_rows)]


def mixed(rng: random.Random, width: int, num_rows: int) -> list[str]:
    """Numbers of any length, and here and there none."""
    pool = ["-", *(digits(rng, rng.randint(1, width)) for _ in range(5))]
    return [rng.choice(pool) for _ in range(num_rows)]


def damaged(rng: random.Random, width: int, num_rows: int) -> list[str]:
    """One of the others with some other character in some rows."""
    cells = rng.choice([same, alike, growing, mixed])(rng, width, num_rows)
    for row in rng.sample(range(num_rows), rng.randint(0, min(2, num_rows))):
        place = rng.randrange(width)
        cell = cells[row].rjust(width)
        cells[row] = cell[:place] + rng.choice("0 -x/:") + cell[place + 1 :]
    return cells


def log_of(rng: random.Random, ways: list[Draw]) -> str:
    """A log of a few columns of any width, which may touch; each varies in one of these ways."""
    num_rows, widths = rng.randint(1, 70), [rng.randint(3, 13) for _ in range(6)]
    index = [str(rng.choice([0, 7, 12])) if rng.random() < 0.9 else "-" for _ in range(num_rows)]
    columns = [rng.choice(ways)(rng, width, num_rows) for width in widths]
    stamps = [f" 20261121    {row // 60:02}:{row % 60:02}:00" for row in range(num_rows)]
    heads = (
        f"{stamp}{gpu:>8}{''.join(f'{name}{i}'.rjust(w) for i, w in enumerate(widths))} \n"
        for stamp, gpu, name in (
            ("#Date        Time    ", "gpu", "c"),
            ("#YYYYMMDD    HH:MM:SS", "Idx", "u"),
        )
    )
    rows = zip(
        *([c.rjust(w) for c in cs] for cs, w in zip(columns, widths, strict=True)), strict=True
    )
    lines = zip(stamps, index, rows, strict=True)
    return "".join([*heads, *(f"{s}{i:>8}{''.join(row)} \n" for s, i, row in lines)])


@pytest.mark.slow
@pytest.mark.parametrize("draw", [same, alike, growing, mixed, damaged])
def test_columns_are_read_as_row_by_row(draw: Draw, tmp_path: Path) -> None:
    """However the characters of a column differ, alone and beside other columns."""
    rng = random.Random(5)  # noqa: S311 - no secret
    path = tmp_path / "log.gutil"
    for number in range(60):
        text = log_of(rng, [draw] if number % 2 else [draw, same, alike, growing, mixed])
        path.write_text(text)
        log, slow = reader.read(str(path)), one_by_one(text)
        wanted = [row for row in slow if row is not None]
        assert log.num_unreadable == slow.count(None)
        assert [gpu for _, gpu, _ in decoded(log)] == [
            -1 if row["gpu"] == "-" else int(row["gpu"]) for row in wanted
        ]
        assert [values for _, _, values in decoded(log)] == [
            {name: dmon.parse_value(row[name]) for name in row if name.startswith("c")}
            for row in wanted
        ]
        assert draw is damaged or len(wanted) == len(slow)


@pytest.mark.parametrize(
    "sign", [gzip.compress(b"a\nb\n", mtime=0), b"\x28\xb5\x2f\xfd\x00", b"\x78\x9c\x01"]
)
def test_rows_that_begin_as_a_compressed_file_does_are_damage(sign: bytes) -> None:
    """A disk's damage may stand at the beginning of a block: each of its lines is counted."""
    parser = Parser(Place(None, "n"), is_patient=False)
    head = gutil.Layout("pumt").header().encode()
    (found,) = decode(parser.take(head + sign + b"\n") + parser.end())
    assert found.num_unreadable == len([line for line in sign.split(b"\n") if line])
