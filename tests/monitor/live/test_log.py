"""What a live view reads of logs: the same as every other reader, only newer."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from monitor.analysis.engine import evaluate
from monitor.live import log as live_log
from monitor.live.fleet import window
from monitor.live.log import CAPACITY, LiveLog, Track
from monitor.live.snapshot import Row, Rows, interval_s, total
from monitor.logs import reader
from tests.monitor.live_logs import NONE, LogWriter, gpu, log_of

HERE = Path(__file__).parents[1]
SAMPLES = sorted((HERE / "data").glob("*.gutil"))


def poll(log: LiveLog) -> None:
    """Poll once."""
    live_log.poll([log])


def rows_of(*all_logs: LiveLog) -> tuple[Row, ...]:
    """Give their rows, whenever they were written."""
    return Rows().of(all_logs, 0.0, is_over=True)


def assert_same(live: LiveLog, path: Path) -> None:
    """Every reading of every GPU is what `logs.read` has."""
    log = reader.read(str(path))
    assert {-1 if t.gpu is None else t.gpu for t in live.tracks} == set(log.gpu.tolist())
    for track in live.tracks:
        mine = log.gpu == (-1 if track.gpu is None else track.gpu)
        for name, column in log.values.items():
            np.testing.assert_array_equal(track.column(name), column[mine].astype(np.float32))
        np.testing.assert_array_equal(track.time_s(), log.time_s[mine])
    assert live.num_unreadable == log.num_unreadable


def test_a_row_is_of_its_own_track() -> None:
    """A log that was forgotten leaves its place in memory to the next one, and no row."""
    rows = Rows()
    for number in range(100):
        track = Track(f"n{number}", 0, "7", {})
        log = SimpleNamespace(tracks=[track], alive_s=0.0, is_there=True)
        (row,) = rows.of([log], 0.0, is_over=False)
        assert row.host == f"n{number}"


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
@pytest.mark.parametrize("piece", [7, 93, 10**6])
def test_true_dmon_logs_read_as_everywhere(tmp_path: Path, path: Path, piece: int) -> None:
    """Whatever the pieces they grow by: torn lines, headers within a cycle, lost GPUs."""
    data = path.read_bytes()
    grown = tmp_path / path.name
    live = LiveLog(str(grown))
    for begin in range(0, len(data), piece):
        with grown.open("ab") as file:
            file.write(data[begin : begin + piece])
        poll(live)
    assert_same(live, grown)


def test_damaged_rows_are_counted_and_cost_themselves_alone(tmp_path: Path) -> None:
    """A row of another length, one with a letter in it, one with a hole."""
    writer = log_of(tmp_path, "n1")
    for _ in range(3):
        writer.write(gpu(0), gpu(1))
    lines = writer.path.read_text().splitlines(keepends=True)
    lines[-1] = lines[-1].replace("98", "9x")
    lines[-2] = lines[-2][:50] + lines[-2][55:]
    writer.path.write_text("".join([*lines, "\n", "what is this\n"]))
    live = LiveLog(str(writer.path))
    poll(live)
    assert live.num_unreadable == 3
    assert_same(live, writer.path)


def test_other_columns_after_a_restart_begin_a_new_history(tmp_path: Path) -> None:
    """A requeued job carries its log on, perhaps with other columns: never a guessed one."""
    writer = log_of(tmp_path, "n1", letters="pumt")
    writer.write(gpu(0, sm_pct=11))
    writer.begin_anew()
    writer.letters = "pumtc"
    writer.write(gpu(0, sm_pct=22, sm_clock_mhz=1500))
    live = LiveLog(str(writer.path))
    poll(live)
    (track,) = live.tracks
    assert track.last("pclk") == 1500
    assert track.column("sm").tolist() == [22]
    assert live.num_unreadable == 0


@pytest.mark.parametrize("is_filtered", [False, True])
def test_of_a_large_log_the_end_and_the_facts_are_read(
    tmp_path: Path, *, is_filtered: bool
) -> None:
    """A day's log is not read again; its head has the GPUs' memory; no row counts as damaged.

    A filter may have left its first header alone.
    """
    writer = log_of(tmp_path, "n1")
    cycles = (writer.text(*(gpu(i, sm_pct=n % 100) for i in range(8))) for n in range(700))
    lines = "".join(cycles).splitlines(keepends=True)
    if is_filtered:
        lines[2:] = [one for one in lines[2:] if not one.startswith(("#Date", "#YYYY"))]
    writer.path.write_text("".join(lines))
    live = LiveLog(str(writer.path))
    poll(live)
    assert writer.path.stat().st_size > 8 * 2**17
    assert [track.gpu for track in live.tracks] == list(range(8))
    assert 20 < live.tracks[0].num_samples < 100
    assert live.tracks[3].last("sm") == 699 % 100
    assert live.tracks[3].number("memory_mib") == 81_559
    assert live.num_unreadable == 0
    assert live.host == "n1"


def test_the_oldest_samples_are_forgotten() -> None:
    """What is there is in order, and no more than the capacity."""
    track = Track("n1", 0, None, {})
    names = {"sm": 0, "fb": 1}
    for i in range(CAPACITY + 100):
        track.add(names, np.array([float(i)]), np.array([[i, np.nan]]))
    assert track.time_s().tolist() == list(range(100, CAPACITY + 100))
    assert track.column("sm", 3).tolist() == [CAPACITY + 97, CAPACITY + 98, CAPACITY + 99]
    assert track.last("fb") is None
    assert track.last("pwr") is None
    assert np.isnan(track.column("pwr", 2)).all()
    many = np.arange(3.0 * CAPACITY)
    track.add(names, many, np.stack([many, many], axis=1))
    assert track.column("fb").tolist() == many[-CAPACITY:].tolist()


def test_an_unreadable_log_says_so_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before stays."""
    writer = log_of(tmp_path, "n1")
    writer.write(gpu(0))
    live = LiveLog(str(writer.path))
    poll(live)
    with monkeypatch.context() as patched:

        def refuse(*_: object) -> bytes:
            raise OSError(116, "Stale file handle")

        patched.setattr("os.stat", refuse)
        poll(live)
    assert live.problem == "Stale file handle"
    assert live.tracks[0].last("sm") == 98
    poll(live)
    assert live.problem is None


def test_marks_are_received(tmp_path: Path) -> None:
    """`## event:` lines; a damaged one is counted."""
    writer = log_of(tmp_path, "n1")
    writer.write(gpu(0))
    with writer.path.open("a") as file:
        file.write("## event: 2026-11-21T12:00:00.000+01:00 xid gpu=0 xid=79 text=off_the_bus\n")
        file.write("## event: 2026-11-21T12:00 xid\n")
    live = LiveLog(str(writer.path))
    poll(live)
    assert [(mark.kind, mark.gpu) for mark in live.events] == [("xid", 0)]
    assert live.num_unreadable == 1


# ---- rows ----------------------------------------------------------------------------------------


def test_a_row_tells_the_newest_reading(tmp_path: Path) -> None:
    """Of a GPU its own; what does not exist is None and never 0."""
    writer = log_of(tmp_path, "n1")
    writer.write(gpu(0, sm_pct=10), gpu(1))
    writer.write(gpu(0, sm_pct=55, throttle_bits=4, power_w=None), gpu(1, throttle_bits=64))
    live = LiveLog(str(writer.path))
    poll(live)
    first, second = rows_of(live)
    assert (first.host, first.gpu, first.util_pct, first.power_w) == ("n1", 0, 55, None)
    assert first.trend.tolist() == [10, 55]
    assert (first.mem_mib, first.mem_total_mib, first.power_limit_w) == (39_117, 81_559, 700)
    assert (first.throttle, first.is_throttled, first.states) == (("power cap",), False, ())
    assert (second.throttle, second.states) == (("hardware thermal",), ("throttled",))
    assert first.pcie_mb_s == 500


def test_a_node_without_a_gpu_is_shown_by_its_host(tmp_path: Path) -> None:
    """Processors and memory; it is never idle or lost."""
    writer = log_of(tmp_path, "n1")
    for cpu in (3, 1):
        writer.write(NONE, cpu=cpu)
    live = LiveLog(str(writer.path))
    poll(live)
    (row,) = rows_of(live)
    assert (row.gpu, row.util_pct, row.mem_mib, row.mem_total_mib) == (None, 1, 120_000, 515_000)
    assert row.states == ()
    of_all = total([row])
    assert (of_all.num_gpus, of_all.util_pct, of_all.power_w) == (0, 1, None)


def test_idle_and_lost_gpus_are_named(tmp_path: Path) -> None:
    """Idle: for two minutes by the log's own times. Lost: it had readings and has none."""
    writer = log_of(tmp_path, "n1")
    writer.write(gpu(0), gpu(1), gpu(2))
    for _ in range(9):
        lost = NONE.__class__(index=2)
        writer.write(gpu(0, sm_pct=5), gpu(1, sm_pct=6), lost)
    live = LiveLog(str(writer.path))
    poll(live)
    idle, busy, lost_row = rows_of(live)
    assert (idle.states, idle.idle_s) == (("idle",), 120)
    assert busy.states == ()
    assert (lost_row.states, lost_row.util_pct) == (("lost",), None)
    assert math.isnan(lost_row.trend[-1])


def test_work_between_two_polls_is_no_idleness(tmp_path: Path) -> None:
    """The driver's own samples saw it."""
    writer = log_of(tmp_path, "n1", letters="pumtx")
    for index in range(10):
        writer.write(gpu(0, sm_pct=0, sm_avg_pct=30 if index == 4 else 0))
    live = LiveLog(str(writer.path))
    poll(live)
    (row,) = rows_of(live)
    assert row.idle_s == 60


def test_a_gpu_lost_long_ago_is_lost(tmp_path: Path) -> None:
    """Its readings lie before the part that is read; its facts show that there were some."""
    writer = log_of(tmp_path, "n1")
    for lost in (gpu(1), *[NONE.__class__(index=1)] * 400):
        writer.write(gpu(0), lost)
    live = LiveLog(str(writer.path))
    poll(live)
    assert live.tracks[1].num_samples < 400
    there, lost_row = rows_of(live)
    assert (there.states, lost_row.states) == ((), ("lost",))


def test_a_clock_set_back_changes_no_order(tmp_path: Path) -> None:
    """As in autumn, or at midnight in a log without dates: what came last is now."""
    writer = log_of(tmp_path, "n1")
    for cycle in range(60):
        writer.num_cycles -= 240 * (cycle == 50)
        is_first = cycle < 30
        writer.write(gpu(0, sm_pct=0 if is_first else 90), gpu(1, sm_pct=90 if is_first else 0))
    live = LiveLog(str(writer.path))
    poll(live)
    assert [row.states for row in rows_of(live)] == [(), ("idle",)]
    assert rows_of(live)[1].idle_s == 28 * 15
    now = window([live])
    assert [one.gpu for one in evaluate(now) if one.rule == "idle"] == [1]
    assert [np.diff(one.time_s).tolist() for one in now.gpus] == [[15] * 59] * 2


def test_a_lost_gpu_of_a_true_dmon_log_is_lost(data: Path, tmp_path: Path) -> None:
    """Of it dmon goes on to write some columns, as 0 or as the last reading."""
    path = tmp_path / "live.gutil"
    path.write_bytes((data / "pumt_DT.550.163.01.gpu1_lost.gutil").read_bytes())
    live = LiveLog(str(path))
    poll(live)
    assert [row.states for row in rows_of(live)] == [(), ("lost",)]


def test_a_silent_log_is_stale_by_its_own_interval(tmp_path: Path) -> None:
    """Five intervals without growth; never where the run is over; gone, where the file is."""
    writer = log_of(tmp_path, "n1", interval_s=15)
    writer.write(gpu(0))
    live = LiveLog(str(writer.path))
    poll(live)
    assert interval_s(live.tracks[0]) == 15
    rows = Rows()

    def states(quiet_s: float, *, is_over: bool = False) -> tuple[str, ...]:
        (row,) = rows.of([live], live.alive_s + quiet_s, is_over=is_over)
        return row.states

    assert states(74) == ()
    assert states(76) == ("stale",)
    assert states(76, is_over=True) == ()
    writer.path.unlink()
    poll(live)
    assert states(76) == ("gone",)
    assert states(10) == ()  # on its way from one name to the next, perhaps


def test_a_log_without_an_interval_is_classified_by_its_samples() -> None:
    """As dmon's logs."""
    track = Track("n1", 0, None, {})
    assert interval_s(track) == 15
    times = np.array([0.0, 4, 8, 8, 12])
    track.add({"sm": 0}, times, np.zeros((5, 1)))
    assert interval_s(track) == 4


# ---- what to watch -------------------------------------------------------------------------------


def test_nodes_are_sorted_by_their_numbers(tmp_path: Path) -> None:
    """gpu2 before gpu10."""
    lives = []
    for host in ("gpu10", "gpu2", "login"):
        writer: LogWriter = log_of(tmp_path, host)
        writer.write(gpu(1), gpu(0))
        lives.append(LiveLog(str(writer.path)))
        poll(lives[-1])
    places = [(row.host, row.gpu) for row in rows_of(*lives)]
    assert places == [(host, i) for host in ("gpu2", "gpu10", "login") for i in (0, 1)]


def test_a_gpu_that_a_start_before_had_is_none_of_the_jobs(tmp_path: Path) -> None:
    """After a requeue that gave one of two, the other has no row, and no part in sums."""
    writer = log_of(tmp_path, "n1")
    live = LiveLog(str(writer.path))
    for _ in range(4):
        writer.write(gpu(0), gpu(1, sm_pct=0))
        poll(live)
    writer.num_cycles += 40  # in the queue
    for _ in range(2):
        writer.write(gpu(0))
        poll(live)
        assert [row.gpu for row in rows_of(live)] == [0]
    again = LiveLog(str(writer.path))
    poll(again)
    assert [row.gpu for row in rows_of(again)] == [0]
    assert total(rows_of(again)).power_w == 412
    writer.write(gpu(0), gpu(1))
    poll(again)
    assert [row.gpu for row in rows_of(again)] == [0, 1]
