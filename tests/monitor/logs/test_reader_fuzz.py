"""Damaged logs: nothing but a row as it was written is ever reported, and the rest is counted.

`DDP_FUZZ_LINES` says how many lines are damaged, 20,000 if it is not set, and `DDP_FUZZ_SEED` how.
What cannot be noticed is left out: a digit that became another digit or a blank, and a
hole of exactly so many bytes that the rest of one row continues another.
"""

import os
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from monitor.errors import UserError
from monitor.logs import gutil, reader
from monitor.logs.sample import GpuSample, HostSample, Row

pytestmark = pytest.mark.slow

NUM_LINES = int(os.environ.get("DDP_FUZZ_LINES", "20000"))
SEED = int(os.environ.get("DDP_FUZZ_SEED", "4"))
PER_LOG = 500
UNTOLD = set(range(ord("0"), ord("9") + 1)) | set(b" -#\n\r")
GARBAGE = [byte for byte in range(256) if byte not in UNTOLD]


def ours(rng: random.Random) -> list[bytes]:
    """A log as the recorder writes it, in lines."""
    layout = gutil.Layout("pumt" + rng.choice(["", "cjrgh", "jh"]))
    rows = [
        Row(
            datetime(2026, 11, 21, 3) + timedelta(seconds=15 * (i // 8)),  # noqa: DTZ001
            GpuSample(
                index=i % 8,
                power_w=rng.randint(60, 700),
                temp_c=rng.randint(30, 90),
                sm_pct=rng.choice([None, 0, rng.randint(0, 100)]),
                fb_used_mib=rng.randint(0, 81_559),
                energy_j=10**9 + i,
            ),
            HostSample(rng.randint(0, 100), rng.randint(0, 999_999)),
        )
        for i in range(PER_LOG)
    ]
    return (layout.header() + layout.block(rows, 0)).encode().splitlines(keepends=True)


def theirs(rng: random.Random) -> list[bytes]:
    """A log of a sample's series, its rows with other numbers."""
    path = rng.choice(sorted((Path(__file__).parents[1] / "data").glob("*2gpu.gutil")))
    *head, row = path.read_bytes().splitlines(keepends=True)[:3]
    lines: list[bytes] = []
    for i in range(PER_LOG):
        lines += head if i % 44 == 0 else []
        reported = row.replace(b"294", b"%3d" % rng.randint(60, 700))
        reported = reported.replace(b"71680", b"%5d" % rng.randint(0, 81_559))
        lines.append(reported.replace(b"03:26:31", b"03:%02d:%02d" % divmod(i, 60)))
    return lines


def cut(rng: random.Random, lines: list[bytes], place: int) -> None:
    """Lose the end of a line but not its newline: a torn one that was ended later."""
    line = lines[place]
    lines[place] = line[: rng.randrange(len(line) - 1)] + b"\n"


def lose(rng: random.Random, lines: list[bytes], place: int) -> None:
    """Lose some bytes, perhaps over the ends of lines."""
    text = b"".join(lines[place : place + 3])
    begin = rng.randrange(len(lines[place]))
    size = rng.randint(1, 250)
    lengths = {len(line) for line in lines if len(line) > 90}
    while any(size % length == 0 for length in lengths):
        size += 1
    lines[place : place + 3] = (text[:begin] + text[begin + size :]).splitlines(keepends=True)


def spoil(rng: random.Random, lines: list[bytes], place: int) -> None:
    """Overwrite some bytes with garbage."""
    line = bytearray(lines[place])
    for _ in range(rng.randint(1, 4)):
        line[rng.randrange(len(line) - 1)] = rng.choice(GARBAGE)
    lines[place] = bytes(line)


def blot(rng: random.Random, lines: list[bytes], place: int) -> None:
    """Put garbage in between."""
    at = rng.randrange(len(lines[place]) - 1)
    blob = bytes(rng.choice(GARBAGE) for _ in range(rng.randint(1, 30)))
    lines[place] = lines[place][:at] + blob + lines[place][at:]


def zero(rng: random.Random, lines: list[bytes], place: int) -> None:
    """Leave a hole of zero bytes, as a file system may after a crash."""
    text = bytearray(b"".join(lines[place : place + 3]))
    begin = rng.randrange(len(lines[place]))
    for at in range(begin, min(len(text), begin + rng.randint(1, 300))):
        text[at] = 0
    lines[place : place + 3] = bytes(text).splitlines(keepends=True)


def join(rng: random.Random, lines: list[bytes], place: int) -> None:
    """Let another writer go on behind a torn line."""
    torn = lines[place][: rng.randrange(1, len(lines[place]))]
    lines[place] = torn.rstrip(b"\n")


DAMAGES: list[Callable[[random.Random, list[bytes], int], None]] = [
    cut,
    lose,
    spoil,
    blot,
    zero,
    join,
]


def found(path: Path) -> tuple[reader.Log, list[tuple[object, ...]]]:
    """A log and its rows, each as one value."""
    log = reader.read(str(path))
    columns = [np.nan_to_num(log.values[name], nan=-1.0).tolist() for name in sorted(log.values)]
    return log, list(zip(log.time_s.tolist(), log.gpu.tolist(), *columns, strict=True))


@pytest.mark.timeout(3600)
def test_damage_is_counted_and_never_becomes_a_number(tmp_path: Path) -> None:
    """Every row that is read is one that was written; every other line is counted."""
    path = tmp_path / "log.gutil"
    rng = random.Random(SEED)  # noqa: S311 - no secret
    logs_written = []
    for write in (ours, theirs) * 6:
        lines = write(rng)
        path.write_bytes(b"".join(lines))
        whole, written = found(path)
        assert (whole.num_unreadable, len(written)) == (0, PER_LOG)
        logs_written.append((lines, set(whole.values), set(written)))
    num_damaged = num_rows = 0
    while num_damaged < NUM_LINES:
        lines, names, written = rng.choice(logs_written)
        lines = lines.copy()
        places = rng.sample(range(len(lines) // 4 - 1), PER_LOG // 5)
        for place in sorted(places, reverse=True):  # no two damages at one place
            rng.choice(DAMAGES)(rng, lines, 4 * place)
            num_damaged += 1
        text = b"".join(lines)
        path.write_bytes(text)
        try:
            log, read = found(path)
        except UserError:
            pytest.fail("a damaged log is no user error")
        if set(log.values) == names:  # else a column has lost its name
            assert set(read) <= written
        reported = [line for line in text.split(b"\n")[:-1] if line.strip(b" \t\r")]
        assert log.num_rows + log.num_unreadable == sum(not x.startswith(b"#") for x in reported)
        num_rows += log.num_rows
    assert num_rows > 0


def test_no_bytes_at_all_make_the_reader_fail(tmp_path: Path) -> None:
    """Noise, from the first byte on."""
    path = tmp_path / "log.gutil"
    rng = random.Random(SEED)  # noqa: S311 - no secret
    for size in (0, 1, 100, 100_000):
        path.write_bytes(rng.randbytes(size))
        assert reader.read(str(path)).num_rows == 0
