"""Reading GPU logs: which column a value belongs to, and what is no row."""

from pathlib import Path

import numpy as np
import pytest

from monitor.errors import UserError
from monitor.export.rows import table
from monitor.logs import log_events, reader
from monitor.logs.log_events import LogEvent

pytestmark = pytest.mark.slow


def test_only_the_wanted_columns_are_kept(data: Path) -> None:
    """And what counts as a row does not hang on them."""
    path = str(data / "pumt_DT.550.163.01.gpu1_lost.gutil")
    some = reader.read(path, frozenset({"sm", "none"}))
    assert (list(some.values), some.num_rows, some.num_unreadable) == (["sm"], 10, 1)


def test_midnight_in_a_log_without_dates(tmp_path: Path) -> None:
    """Time goes on where the clock starts anew; a small step back is a step back."""
    head = "#Time        gpu    sm\n#HH:MM:SS    Idx     %\n"
    rows = "".join(f" {time}      0     7\n" for time in ("23:59:50", "00:00:05", "00:00:04"))
    path = tmp_path / "log.gutil"
    path.write_text(head + rows)
    log = reader.read(str(path))
    assert (np.diff(log.time_s).tolist(), log.dated) == ([15, -1], False)
    assert table(log)["time_utc"].to_list() == [None] * 3


HEAD = "# gpu    pwr     sm \n# Idx      W      % \n"
ROW = "    0    294     98 \n"
WIDE = HEAD.replace("# ", "#   ")


@pytest.mark.parametrize(
    ("text", "num_rows", "num_unreadable"),
    [
        (HEAD + ROW, 1, 0),
        (ROW + HEAD + ROW, 1, 1),
        ("# gpu    pwr     sm \n" + ROW, 1, 0),
        ("# Idx      W      % \n" + ROW, 0, 1),
        (HEAD + "# something else\n" + ROW, 0, 1),
        (HEAD + "# gpu    p#r     sm \n" + ROW, 0, 1),
        (HEAD + "# gpu    pwr     s\n# Idx      W      % \n" + ROW, 0, 1),
        (HEAD.replace("W", "C") + ROW, 0, 1),
        (HEAD.replace("pwr     sm", "pwr    pwr") + ROW, 0, 1),
        (HEAD.replace("gpu", "   ") + ROW, 0, 1),
        (HEAD + "## any: thing\n" + ROW, 1, 0),
        (HEAD + "\n \t\n" + ROW, 1, 0),
        (HEAD + ROW.replace("294", "94"), 0, 1),
        (HEAD + ROW.replace(" 294", "0294"), 0, 1),
        (HEAD + ROW.replace("294", "2 4"), 0, 1),
        (HEAD + ROW.replace("294", "2.4"), 0, 1),
        (HEAD + ROW.replace(" 294", "294 "), 0, 1),
        (HEAD + ROW.replace("294", "-94"), 0, 1),
        (HEAD + ROW.replace("  0", "1 0"), 0, 1),
        (HEAD + ROW.rstrip() + "\n", 0, 1),
        (HEAD + ROW.replace("    294", "1234567"), 1, 0),
        (HEAD + ROW.replace("    294", " 1234567"), 0, 1),
        (WIDE + "".join(f"{i:>7}{ROW[5:]}" for i in (0, 1234, 12345, 1234567, "12 4")), 2, 3),
        ("#gpu, pwr, sm\n#Idx, W, %\n0, 294 W, 98 %\n1, -, 7\n", 2, 0),
        ("#gpu, pwr, sm\n0, 294, 98, 7\n0, 294\n0, 294 C, 8\n", 0, 3),
        ("0, 294, 98\n", 0, 1),
    ],
)
def test_a_column_is_never_guessed(
    tmp_path: Path, text: str, num_rows: int, num_unreadable: int
) -> None:
    """What has no header, or does not lie in it, is counted; the next whole header heals it."""
    path = tmp_path / "log.gutil"
    path.write_text(text)
    log = reader.read(str(path))
    assert (log.num_rows, log.num_unreadable) == (num_rows, num_unreadable)
    path.write_text(text + HEAD + ROW)
    healed = reader.read(str(path))
    assert (healed.num_rows, healed.num_unreadable) == (num_rows + 1, num_unreadable)


def test_a_file_that_is_none_is_the_users_error(tmp_path: Path) -> None:
    """A directory, a missing file."""
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match="must be a file that can be read"):
            reader.read(str(path))


def test_wide_numbers_keep_every_digit(tmp_path: Path) -> None:
    """Energies of twelve digits, and what lies just past a part of four characters."""
    numbers = [0, 9, 9999, 10_000, 10_001, 100_000, 99_999_999, 100_000_000, 123_456_789_012]
    head = "# gpu       energy \n# Idx            J \n"
    rows = "".join(f"    0 {number:>12} \n" for number in numbers)
    path = tmp_path / "log.gutil"
    wrong = ("1    2", "-00002", "09520", "0000", "000000000")
    path.write_text(head + rows + "".join(f"    0 {text:>12} \n" for text in wrong))
    log = reader.read(str(path))
    assert log.values["energy"].tolist() == numbers
    assert log.num_unreadable == len(wrong)


def test_what_happened_is_read_and_what_is_torn_of_it_is_counted(tmp_path: Path) -> None:
    """Marks come in their order, change no rows and are no facts; half a mark is counted."""
    lost = LogEvent(1795258800.5, "xid", 3, {"xid": "79", "text": "fallen_off"})
    back = LogEvent(1795258860.0, "back", 3)
    torn = ["## event", "## event:", "## event: ", "## event: 2026-11-21T12:0", "## event: - xid g"]
    reported = [log_events.line(lost), *(f"{line}\n" for line in torn), log_events.line(back)]
    path = tmp_path / "log.gutil"
    path.write_text(HEAD + "".join(line + ROW for line in reported) + "## events: 3\n")
    log = reader.read(str(path))
    assert log.events == (lost, back)
    assert (log.num_rows, log.num_unreadable) == (len(reported), len(torn))
    assert log.facts == {"events": "3"}
