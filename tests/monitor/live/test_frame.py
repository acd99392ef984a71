"""Keys, order, filter and the picture of a live view: no terminal is needed for these."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from monitor.analysis.findings import Summary
from monitor.live import frame, sparkline
from monitor.live import view as live_view
from monitor.live.run import Progress
from monitor.live.snapshot import Row, Snapshot
from monitor.live.terminal import keys
from monitor.live.view import View, chosen, press


def row(host: str = "n1", gpu: int | None = 0, **further: Any) -> Row:
    """Give a busy GPU."""
    usual: dict[str, Any] = {
        "model": "NVIDIA H100",
        "util_pct": 98.0,
        "trend": np.array([50.0, np.nan, 98.0], np.float32),
        "mem_mib": 39_117.0,
        "mem_total_mib": 81_559.0,
        "power_w": 412.0,
        "power_limit_w": 700.0,
        "temp_c": 61.0,
        "pcie_mb_s": 500.0,
        "readings": {"pclk": 1980.0, "mclk": 2619.0, "smact": 90.0, "tensor": 45.0, "cpu": 12.0},
        "throttle": (),
        "is_throttled": False,
        "idle_s": 0.0,
        "quiet_s": 0.0,
        "states": (),
    }
    return Row(host=host, gpu=gpu, **(usual | further))


def snapshot(*rows: Row, **further: Any) -> Snapshot:
    """Give a snapshot of these rows."""
    return Snapshot(name="slurm-7", clock="12:34:56", rows=rows, **({"progress": None} | further))


def progress(**further: Any) -> Progress:
    """Give a run under way."""
    usual: dict[str, Any] = {
        "name": "slurm-7",
        "outcome": "running",
        "step": 120,
        "num_steps": 1000,
        "loss": 0.25,
        "samples_per_s": 1234.4,
        "left_s": 3725.0,
        "losses": (2.0, float("nan"), 1.0, 0.25),
    }
    return Progress(**(usual | further))


def text(
    shown: Snapshot, view: View | None = None, size: tuple[int, int | None] = (80, 24), **more: Any
) -> list[str]:
    """Draw a picture as plain lines."""
    alerts = more.pop("alerts", [])
    picture = frame.picture(
        shown, alerts, view or View(), size, ascii_only=more.pop("ascii_only", False)
    )
    return ["".join(part for part, _ in line) for line in picture.lines()]


def press_all(view: View, *names: str, num_rows: int = 100, num_shown: int = 10) -> View:
    """Press keys one after another."""
    for name in names:
        view = press(view, name, num_rows=num_rows, num_shown=num_shown)
    return view


# ---- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b[5~x\x1b[6~", ["pgup", "x", "pgdn"]),
        (b"\x1b", ["esc"]),
        (b"\x1b\x1b[A", ["esc", "up"]),
        (b"\x1b[200~\x1b[99;5Z/", ["/"]),
        (b"\r\x7f\x15", ["enter", "backspace", "ctrl-u"]),
        ("ä€\n".encode(), ["ä", "€", "enter"]),
        (b"\xff", ["\ufffd"]),
    ],
)
def test_bytes_are_keys(data: bytes, found: list[str]) -> None:
    """As terminals send them; what is unknown is left out."""
    assert keys(data) == found


def test_rows_can_be_moved_through() -> None:
    """By line, by page (of which one row stays in sight), to both ends and no further."""
    assert press_all(View(), "down", "j", "up").top == 1
    assert press_all(View(), "up").top == 0
    assert press_all(View(), "pgdn").top == 9
    assert press_all(View(), "pgdn", "pgup", "pgup").top == 0
    assert press_all(View(), "end").top == 90
    assert press_all(View(), "G", "down", "pgdn").top == 90
    assert press_all(View(), "G", "g").top == 0
    assert press_all(View(), "end", num_rows=3).top == 0


def test_text_is_typed_into_the_filter() -> None:
    """Letters that are keys elsewhere are letters here."""
    typed = press_all(View(), "/", "q", "s", "x", "backspace", " ", "?")
    assert (typed.words, typed.is_typing, typed.is_done) == ("qs ?", True, False)
    assert press_all(typed, "enter").words == "qs ?"
    assert not press_all(typed, "enter").is_typing
    assert press_all(typed, "esc").words == ""
    assert press_all(typed, "ctrl-u", "a").words == "a"
    assert press_all(typed, "enter", "esc").words == ""
    assert press_all(typed, "up", "\x01") == typed
    assert len(press_all(View(), "/", *"x" * 100).words) == 60


def test_pages_open_and_close() -> None:
    """By their key, by q, by Esc; q ends only where the GPUs are."""
    assert press_all(View(), "?").page == "help"
    assert press_all(View(), "?", "?").page == "gpus"
    assert press_all(View(), "a", "h").page == "help"
    assert press_all(View(), "a", "q") == View()
    assert press_all(View(), "?", "esc").page == "gpus"
    assert press_all(View(), "q").is_done
    assert press_all(View(), "?", "Q").is_done
    assert press_all(View(), "p").is_paused
    assert not press_all(View(), "p", " ").is_paused
    assert press_all(View(), "z", "left") == View()


# ---- order and filter ----------------------------------------------------------------------------

ROWS = (
    row("n1", 0, util_pct=90.0, temp_c=50.0),
    row("n1", 1, util_pct=None, temp_c=None, states=("lost",)),
    row("n2", 0, util_pct=3.0, temp_c=70.0, states=("idle",), model="Tesla T4"),
    row("n2", None, util_pct=20.0, temp_c=None, model=""),
)


LOST = Summary(severity="error", rule="lost", where="n1 GPU 1", evidence="no reading in 9 samples")
IDLE = Summary(severity="warning", rule="idle", where="n2 GPU 0", evidence="idle for 3 min")


def places(view: View) -> list[tuple[str, int | None]]:
    """Return the rows that are chosen."""
    return [(one.host, one.gpu) for one in chosen(ROWS, view)]


def test_rows_are_sorted_by_what_may_be_wrong() -> None:
    """Least busy first, hottest first, worst state first; no reading comes last either way."""
    view = press_all(View(), "s")
    assert view.sort == "util"
    assert places(view) == [("n2", 0), ("n2", None), ("n1", 0), ("n1", 1)]
    assert places(replace(view, is_reversed=True))[::3] == [("n1", 0), ("n1", 1)]
    assert places(replace(view, sort="temp"))[:2] == [("n2", 0), ("n1", 0)]
    assert places(replace(view, sort="state"))[:2] == [("n1", 1), ("n2", 0)]
    assert places(replace(view, sort="node", is_reversed=True))[0] == ("n2", None)
    assert press_all(view, "S", "S").sort == "state"
    for sort in live_view.SORTS:
        assert len(places(replace(view, sort=sort))) == 4


@pytest.mark.parametrize(
    ("words", "num"),
    [("n1", 2), ("N2 idle", 1), ("gpu1", 1), ("cpu", 1), ("t4", 1), ("lost n2", 0), (" ", 4)],
)
def test_each_word_of_a_filter_must_be_found(words: str, num: int) -> None:
    """In the node, the GPU's number, its model or its state; small and capital letters alike."""
    assert len(places(View(words=words))) == num


# ---- the picture ---------------------------------------------------------------------------------


def test_the_speed_of_a_language_model_is_in_tokens() -> None:
    """And as a share of the devices' peak, where that is known."""
    output = text(
        snapshot(*ROWS, progress=progress(tokens_per_s=63210.4, mfu_pct=41.46)), size=(90, 24)
    )
    assert "  63210 tokens/s  MFU 41.5 %  1:02:05 left" in output[1]
    assert "samples/s" not in output[1]


def test_a_picture_at_80_by_24() -> None:
    """The run above, a row per GPU, alerts below, keys at the foot."""
    lines = text(snapshot(*ROWS, progress=progress()), alerts=[LOST, IDLE])
    assert len(lines) == 24
    assert lines[0].split() == ["slurm-7", "running", "12:34:56"]
    assert lines[1] == "step 120/1000 ░░░░░░░░ 12 %  loss 0.2500  1234 samples/s  1:02:05 left"
    assert lines[2].startswith("2 nodes, 3 GPUs  util 46 %  memory 48 %  power 1.2 kW")
    assert lines[3].split()[:4] == ["node▲", "gpu", "util", "trend"]
    assert lines[4].split() == (
        "n1 0 90% ▅·█ 38.2/79.6G 412W 700W 50C 1980 -".replace("▅", sparkline.BARS[4]).split()
    )
    assert "lost" in lines[5]
    assert lines[7].split()[:3] == ["n2", "cpu", "20%"]
    assert lines[-4].startswith("alerts: 1 error, 1 warning")
    assert lines[-3].startswith("! n1 GPU 1: no reading in 9 samples")
    assert lines[-1].startswith("1-4 of 4  q quit")


def test_columns_give_way_from_the_right_ones_on() -> None:
    """A narrow screen keeps node, GPU and utilisation; a wide one has all there is."""
    assert text(snapshot(*ROWS), size=(20, 24))[3].split() == ["n1", "0", "90%"]
    wide = text(snapshot(*ROWS), size=(160, 50))[2]
    for title in ("limit", "mclk", "tensor", "smact", "pcie MB/s", "cpu", "throttle, state"):
        assert title in wide
    assert "throttle" in text(snapshot(*ROWS), size=(80, 24))[2]


def test_no_rows_and_no_steps_are_reported() -> None:
    """Before the first sample and the first step."""
    lines = text(snapshot(progress=progress(step=None, outcome="starting")))
    assert lines[1] == "no step reported yet"
    assert lines[2] == "no samples yet: waiting for logs"
    assert lines[-1].startswith("0-0 of 0")


def test_the_picture_for_a_file_shows_all() -> None:
    """No keys, no end of rows, every alert."""
    rows = [row(f"n{i}", 0, states=("lost",)) for i in range(200)]
    alerts = [
        Summary(severity="error", rule="lost", where=f"n GPU {i}", evidence="x") for i in range(30)
    ]
    lines = text(snapshot(*rows), size=(120, None), alerts=alerts)
    assert len(lines) == 3 + 200 + 31
    assert not any("quit" in line for line in lines)


def test_many_alerts_are_a_page() -> None:
    """The worst on the screen, the others counted; all of them by a key."""
    alerts = [Summary(severity="hint", rule="ecc", where="", evidence=f"x{i}") for i in range(9)]
    lines = text(snapshot(*ROWS), alerts=alerts)
    assert "alerts: 9 hints (5 more: press a)" in lines
    page = text(snapshot(*ROWS), View(page="alerts"), alerts=alerts)
    assert "! x8" in page
    assert page[-1].startswith("1-9 of 9  q back")
    assert "no alerts" in text(snapshot(*ROWS), View(page="alerts"))
    assert text(snapshot(*ROWS), View(page="help"))[2].startswith("up down PgUp")


def test_a_column_without_any_reading_takes_no_room() -> None:
    """Those that logs may lack; the others stay, so that `-` is seen."""
    bare: dict[str, Any] = dict.fromkeys(("pcie_mb_s", "power_w")) | {"readings": {}}
    states = ("throttled",)
    throttled = row(throttle=("software thermal",), is_throttled=True, states=states, **bare)
    lines = text(snapshot(throttled), size=(110, 24))
    heads = next(line for line in lines if "trend" in line)
    assert "power" in heads
    assert "limit" in heads
    for title in ("clock", "mclk", "smact", "tensor", "pcie"):
        assert title not in heads
    assert any("software thermal" in line for line in lines), "words before a long trend"


def test_a_filter_and_a_pause_are_seen() -> None:
    """At the foot and in the title."""
    lines = text(snapshot(*ROWS), View(words="n1", is_paused=True))
    assert "PAUSED" in lines[0]
    assert "/ n1" in lines[-1]
    assert lines[-1].startswith("1-2 of 2")
    assert text(snapshot(*ROWS), View(words="n", is_typing=True))[-1] == "filter: n_  Enter, Esc"


def test_a_poor_terminal_gets_plain_letters() -> None:
    """Nothing beyond ASCII."""
    lines = text(snapshot(*ROWS, progress=progress()), size=(150, 24), ascii_only=True)
    assert all(line.isascii() for line in lines)


def test_what_a_log_says_moves_no_cursor() -> None:
    """Names come from files: escape sequences in them are taken out."""
    bad = row("n\x1b[2J\x071", 0)
    lines = text(
        snapshot(bad),
        alerts=[Summary(severity="hint", rule="", where="\x1b[H GPU 1", evidence="\x9b2J")],
    )
    assert not any(c in line for line in lines for c in "\x1b\x07\x9b")


@given(
    st.integers(1, 200),
    st.integers(1, 60),
    st.sampled_from(["gpus", "alerts", "help"]),
    st.integers(0, 50),
    st.text(max_size=12),
)
@settings(max_examples=100, deadline=None)
def test_every_size_is_filled_and_never_overrun(
    width: int, height: int, page: str, top: int, name: str
) -> None:
    """Lines are as many as the screen has, and none is wider; whatever nodes are called."""
    rows = [row(name, i, states=("stale",), quiet_s=99) for i in range(30)]
    shown = snapshot(*rows, progress=progress())
    alerts = [LOST, IDLE] * 5
    lines = text(shown, View(page=page, top=top), (width, height), alerts=alerts)
    assert len(lines) == height
    assert all(cell_len(line) <= width for line in lines)


def test_bars_stand_for_numbers() -> None:
    """From nothing to the top; a missing reading is a dot, a missing sample a blank."""
    values = [0, 12.4, 12.6, 50, 99.9, 100, 250, float("nan")]
    assert sparkline.sparkline(values, 10, ascii_only=False) == "  ▁▁▂▅████"[:9] + "·"
    assert sparkline.sparkline(values, 2, ascii_only=True) == "# "
    assert sparkline.sparkline(values, 0, ascii_only=False) == ""
