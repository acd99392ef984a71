from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.errors import UserError
from monitor.logs import columns, dmon, gutil
from monitor.logs.sample import GpuSample, HostSample, RankSample, Row
from tests.monitor.read_rows import one_by_one as read

ALL = columns.letters()
FURTHER_LETTERS = ALL.removeprefix("pumt")
SERIES = ["418.226.00.2gpu", "525.147.05.2gpu", "550.163.01.2gpu"]


def row(second: int, index: int, **readings: int | None) -> Row:
    """A row as the samples have it."""
    known = {
        "power_w": 294,
        "temp_c": 61,
        "sm_pct": 98,
        "mem_pct": 57,
        "enc_pct": 0,
        "dec_pct": 0,
        "jpg_pct": 0,
        "ofa_pct": 0,
        "fb_used_mib": 71680,
        "bar1_used_mib": 4,
        "pcie_rx_mb_s": 847,
        "pcie_tx_mb_s": 9,
    }
    gpu = GpuSample(index=index, **{**known, **readings})
    return Row(datetime(2026, 11, 21, 3, 26, second), gpu, HostSample())  # noqa: DTZ001


def test_pumt_is_what_the_550_series_writes_byte_for_byte(data: Path) -> None:
    """Header and rows equal the bytes that the real nvidia-smi 550 wrote."""
    layout = gutil.Layout("pumt")
    rows = [row(second, index) for second in (31, 32) for index in (0, 1)]
    text = layout.header() + layout.block(rows, 0)
    assert text.encode() == (data / "pumt_DT.550.163.01.2gpu.gutil").read_bytes()


def test_missing_readings_are_dashes_in_the_550_layout(data: Path) -> None:
    """A lost GPU's row equals the one nvidia-smi wrote, `-` in the same places."""
    lost = dict.fromkeys(
        ("power_w", "temp_c", "sm_pct", "mem_pct", "fb_used_mib", "pcie_rx_mb_s", "pcie_tx_mb_s")
    )
    gone = row(6, 1, **lost)
    line = gutil.Layout("pumt").line(gone).replace("03:26:06", "03:29:06")
    assert line in (data / "pumt_DT.550.163.01.gpu1_lost.gutil").read_text()


def test_further_columns_leave_pumt_where_it_is() -> None:
    """The line with further columns begins with the whole pumt line."""
    plain, more = gutil.Layout("pumt"), gutil.Layout(ALL)
    assert more.line(row(1, 0)).startswith(plain.line(row(1, 0)).rstrip("\n"))
    for ours, theirs in zip(more.header().split("\n"), plain.header().split("\n"), strict=True):
        assert ours.startswith(theirs)


def test_headers_come_again_after_44_rows() -> None:
    """Lines 1, 47 and 93 are headers, also where that splits a cycle of 8 GPUs."""
    layout = gutil.Layout("pumt")
    text = layout.header()
    for cycle in range(12):
        text += layout.block([row(cycle, index) for index in range(8)], cycle * 8)
    heads = [n for n, line in enumerate(text.splitlines(), 1) if line.startswith("#Date")]
    assert heads == [1, 47, 93]


@pytest.mark.parametrize("letters", ["", "umt", "pumtz", "pumtjj", "tpum", "pumtjhj"])
def test_wrong_letters_are_named(letters: str) -> None:
    """What is no choice of columns is an error that lists the letters there are."""
    with pytest.raises(UserError, match=FURTHER_LETTERS):
        gutil.Layout(letters)


readings = st.one_of(st.none(), st.integers(0, 999_999))
gpu_samples = st.builds(
    GpuSample,
    **dict.fromkeys(GpuSample.fields, readings),
    index=st.one_of(st.none(), st.integers(0, 127)),
)
rows = st.builds(
    Row,
    st.datetimes(datetime(2000, 1, 1), datetime(2099, 1, 1)),  # noqa: DTZ001
    gpu_samples,
    st.builds(HostSample, **dict.fromkeys(HostSample.fields, readings)),
    st.builds(RankSample, **dict.fromkeys(RankSample.fields, readings)),
)


@given(rows, st.permutations(FURTHER_LETTERS), st.integers(0, 6))
@settings(deadline=None)
def test_what_is_written_is_read_again(row: Row, letters: list[str], num_letters: int) -> None:
    """Whatever the values, each reading comes back under its name; None comes back as None."""
    layout = gutil.Layout("pumt" + "".join(letters[:num_letters]))
    (found,) = read(layout.header() + layout.line(row))
    assert found is not None
    assert found["Date"] + found["Time"] == row.time.strftime("%Y%m%d%H:%M:%S")
    assert dmon.parse_value(found["gpu"]) == row.gpu.index
    for column in layout.columns:
        wanted = getattr(getattr(row, column.of), column.field)
        assert dmon.parse_value(found[column.name]) == wanted


def test_a_reading_too_wide_for_its_cell_costs_only_itself() -> None:
    """It would move what follows, and the reader would not believe the row.

    Neither in a column of ours nor in one of dmon's, as where a sick GPU reports 4294967295 %.
    """
    layout = gutil.Layout(ALL)
    wide = row(1, 0, throttle_bits=12_345_678, ecc_corrected=7, sm_pct=2**32 - 1)
    (found,) = read(layout.header() + layout.line(wide))
    assert found is not None
    assert (found["throt"], found["sm"], found["sbecc"], found["pwr"]) == ("-", "-", "7", "294")


@given(st.text(), st.text())
def test_no_text_at_all_makes_the_reader_fail(before: str, after: str) -> None:
    """Garbage before and after the rows is skipped, never raised."""
    layout = gutil.Layout("pumt")
    read(before + "\n" + layout.header() + layout.line(row(1, 0)) + after + "\n")


@given(st.integers(0, 127))
def test_a_row_cut_short_is_never_a_row(length: int) -> None:
    """A torn row that was later ended with a newline is counted, not believed."""
    layout = gutil.Layout("pumt")
    line = layout.line(row(1, 0)).rstrip("\n")[:length]
    assert read(layout.header() + line + "\n") in ([None], [])


@pytest.mark.parametrize("series", SERIES)
def test_every_series_is_read_by_its_header(data: Path, series: str) -> None:
    """The logs of true nvidia-smi programs give the values they were fed."""
    found = read((data / f"pumt_DT.{series}.gutil").read_text())
    assert len(found) == 4
    for cells in found:
        assert cells is not None
        shown = [cells[name] for name in ("pwr", "mtemp", "sm", "dec", "fb", "rxpci", "txpci")]
        assert shown == ["294", "-", "98", "0", "71680", "847", "9"]


def test_touching_cells_are_cut_by_the_header(data: Path) -> None:
    """A value of six digits that touches its neighbour in a 418 log is still told apart."""
    text = (
        (data / "pumt_DT.418.226.00.2gpu.gutil").read_text().replace("    0 71680", "    0143771")
    )
    cells = [found for found in read(text) if found]
    assert [c["fb"] for c in cells] == ["143771"] * 4
    assert [(c["dec"], c["bar1"]) for c in cells] == [("0", "4")] * 4


def test_touching_cells_of_525_are_cut_by_the_rows_own_width(data: Path) -> None:
    """The 525 series writes rows wider than its header: the cut follows the rows."""
    text = (data / "pumt_DT.525.147.05.2gpu.gutil").read_text()
    cells = [found for found in read(text.replace("      0  71680", "      01143771")) if found]
    assert [c["fb"] for c in cells] == ["1143771"] * 4


def test_a_number_too_wide_for_its_cell_costs_its_row(data: Path) -> None:
    """It moves what follows, as a hole over the end of a line would: they cannot be told apart."""
    text = (data / "pumt_DT.550.163.01.2gpu.gutil").read_text()
    assert read(text.replace("  71680", " 11437710")) == [None] * 4


def test_an_unterminated_last_line_is_left_for_later(data: Path) -> None:
    """A file read while it grows gives the whole rows and nothing of the last."""
    text = (data / "pumt_DT.550.163.01.2gpu.gutil").read_text()
    assert len(read(text[:-1])) == 3


def test_each_header_begins_anew() -> None:
    """A log that goes on with other columns is read by the header above each row."""
    one, two = gutil.Layout("pumt"), gutil.Layout("pumtj")
    text = one.header() + one.line(row(1, 0)) + two.header() + two.line(row(2, 0, energy_j=5))
    first, second = read(text)
    assert first is not None
    assert second is not None
    assert "energy" not in first
    assert second["energy"] == "5"


def test_csv_rows_are_read() -> None:
    """The comma-separated form of 550 and later goes by its header too."""
    text = "#Date, Time, gpu, pwr, sm\n#YYYYMMDD, HH:MM:SS, Idx, W, %\n"
    assert read(text + "20261121, 03:26:31, 0, 294, -\n") == [
        {"Date": "20261121", "Time": "03:26:31", "gpu": "0", "pwr": "294", "sm": "-"}
    ]


def test_comments_round_trip_and_are_no_headers() -> None:
    """A `##` line gives its key and value, on one line whatever the value holds."""
    line = gutil.comment("gpu 0", "GPU-1\nNVIDIA  X")
    assert gutil.parse_comment(line) == ("gpu 0", "GPU-1 NVIDIA X")
    assert dmon.parse_header(line) is None
    assert gutil.parse_comment("#Date") is None
    assert gutil.parse_comment("## nothing") is None


def test_rows_of_other_shapes_are_unreadable() -> None:
    """Rows before any header, of too few cells, or with a cell that is no number do not count."""
    layout = gutil.Layout("pumt")
    line = layout.line(row(1, 0))
    assert read(line) == [None]
    for bad in (line.replace("294", "2x4"), line.replace("20261121", "2026112x"), " 1 2 3\n"):
        assert read(layout.header() + bad) == [None]


@pytest.mark.parametrize(
    ("head", "row", "keys"),
    [
        ("# gpu   pwr\n# Idx     W\n", "    0   294\n", {"gpu": "0"}),
        (
            "#Time        gpu    pwr \n#HH:MM:SS    Idx      W \n",
            " 03:26:31      0    294 \n",
            {"Time": "03:26:31", "gpu": "0"},
        ),
        (
            "#Date       gpu   pwr\n#YYYYMMDD   Idx     W\n",
            " 20261121     0   294\n",
            {"Date": "20261121", "gpu": "0"},
        ),
    ],
)
def test_logs_without_date_or_time(head: str, row: str, keys: dict[str, str]) -> None:
    """Written without `-o`, or with one of its letters, they are read by their header as well."""
    assert read(head + row) == [{**keys, "pwr": "294"}]
