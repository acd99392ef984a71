"""What `export` makes of logs as metrics."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.errors import UserError
from monitor.export import gpus
from monitor.logs import columns, gutil, reader
from monitor.logs.decode import decode
from monitor.logs.log_events import Place
from monitor.logs.newest import Newest
from monitor.logs.parser import Parser
from monitor.logs.sample import GpuSample, HostSample, Row
from tests.monitor.collected import NOW, NOW_S, collect, every_metric

Log = Callable[..., Path]
FACTS = (
    ("host", "n1"),
    ("monitor", "0.1.0"),
    ("interval_s", "15"),
    ("job", "7"),
    ("user", "ada"),
    ("utc_offset", "+00:00"),
    ("driver", "550.163.01"),
    ("gpu 0", "GPU-aa NVIDIA H200"),
    ("gpu 1", "-"),
    ("memory_mib 0", "143771"),
    ("power_limit_w 0", "700"),
    ("host_memory_mib", "1024"),
)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Write a log whose last sample is `age_s` old: `gpu(cycle, index)`."""

    def write(  # noqa: PLR0913 - each has its default
        gpu: Callable[[int, int], dict[str, Any]] = lambda _c, _i: {"sm_pct": 1},
        *,
        num_gpus: int = 2,
        num_cycles: int = 3,
        age_s: float = 5,
        name: str = "slurm-7.n1.gutil",
        facts: tuple[tuple[str, str], ...] = FACTS,
        more: str = "",
    ) -> Path:
        layout = gutil.Layout("pumtcjrgh")
        text = layout.header() + "".join(gutil.comment(*fact) for fact in facts)
        for cycle in range(num_cycles):
            moment = NOW - timedelta(seconds=age_s + 15 * (num_cycles - 1 - cycle))
            samples = [GpuSample(index=i, **gpu(cycle, i)) for i in range(num_gpus)]
            host = HostSample(40, 2048)
            rows = [Row(moment, sample, host) for sample in samples or [GpuSample()]]
            text += layout.block(rows, cycle * max(1, num_gpus))
        path = tmp_path / name
        path.write_text(text + more)
        return path

    return write


def test_the_newest_sample_in_base_units(log: Log) -> None:
    """Shares of one, bytes, hertz; a counter is one; what the log knows of the GPU is a label."""

    def gpu(cycle: int, index: int) -> dict[str, Any]:
        return {
            "sm_pct": 29 + cycle + index,
            "fb_used_mib": 3,
            "energy_j": 10**9 + cycle,
            "sm_clock_mhz": 1980,
            "pcie_rx_mb_s": 7,
            "throttle_bits": 4 + 1,
        }

    found = collect(log(gpu))
    first = {"job": "7", "user": "ada", "node": "n1", "gpu": "0", "uuid": "GPU-aa"}
    second = {"job": "7", "user": "ada", "node": "n1", "gpu": "1"}
    assert found["ddp_gpu_utilization_ratio"] == [(first, 0.31), (second, 0.32)]
    assert found["ddp_gpu_memory_used_bytes"][0] == (first, 3 * 2**20)
    assert found["ddp_gpu_energy_joules_total"][0] == (first, 10**9 + 2)
    assert found["ddp_gpu_sm_clock_hertz"][0] == (first, 1.98e9)
    assert found["ddp_gpu_pcie_receive_bytes_per_second"][0] == (first, 7e6)
    assert found["ddp_gpu_memory_total_bytes"] == [(first, 143771 * 2**20)]
    assert found["ddp_gpu_power_limit_watts"] == [(first, 700)]
    reported = first | {"name": "NVIDIA H200", "driver": "550.163.01"}
    assert found["ddp_gpu_info"][0] == (reported, 1)
    throttled = {labels["reason"]: v for labels, v in found["ddp_gpu_throttled"][:5]}
    assert throttled["power_cap"] == 1
    assert sum(throttled.values()) == 1
    node = {"job": "7", "user": "ada", "node": "n1"}
    assert found["ddp_node_cpu_utilization_ratio"] == [(node, 0.4)]
    assert found["ddp_node_memory_used_bytes"] == [(node, 2**31)]
    assert found["ddp_node_memory_total_bytes"] == [(node, 2**30)]
    assert found["ddp_node_last_sample_timestamp_seconds"] == [(node, NOW_S - 5)]


def test_whether_a_gpu_is_up_is_not_guessed_from_other_columns(tmp_path: Path) -> None:
    """A log of `dmon -s c` has only clocks."""
    path = tmp_path / "slurm-7.n1.gutil"
    text = "#Date        Time         gpu   mclk   pclk \n"
    text += "#YYYYMMDD    HH:MM:SS     Idx    MHz    MHz \n"
    text += f"## utc_offset: +00:00\n {NOW:%Y%m%d    %H:%M:%S}       0   1593   1980 \n"
    path.write_text(text)
    found = collect(path)
    assert "ddp_gpu_sm_clock_hertz" in found
    assert "ddp_gpu_up" not in found


def test_a_reading_that_does_not_exist_is_absent_and_a_lost_gpu_is_down(log: Log) -> None:
    """Never 0, and never the reading before."""
    found = collect(log(lambda c, i: {"sm_pct": 9, "power_w": 1} if c < 2 or i == 0 else {}))
    assert [labels["gpu"] for labels, _ in found["ddp_gpu_utilization_ratio"]] == ["0"]
    assert [value for _, value in found["ddp_gpu_up"]] == [1, 0]
    assert "ddp_gpu_temperature_celsius" not in found


def test_the_lost_gpu_of_a_true_dmon_log_is_down(data: Path) -> None:
    """The driver still reports some columns of it; dmon's times are those of this machine."""
    found = collect(data / "pumt_DT.550.163.01.gpu1_lost.gutil", max_age_s=1e9)
    assert [value for _, value in found["ddp_gpu_up"]] == [1, 0]
    ((labels, time_s),) = found["ddp_node_last_sample_timestamp_seconds"]
    assert labels == {"node": "pumt_DT.550.163.01.gpu1_lost"}
    reported = datetime(2026, 11, 21, 3, 29, 8).astimezone()  # local, as dmon's
    assert abs(time_s - reported.timestamp()) <= 2


def test_rows_without_a_date_were_written_when_the_file_was(tmp_path: Path) -> None:
    """The best that can be known; so an old file does not look alive."""
    path = tmp_path / "plain.gutil"
    path.write_text("# gpu   pwr    sm\n# Idx     W     %\n    0   294    98\n    1   294     -\n")
    os.utime(path, (NOW_S - 100, NOW_S - 100))
    found = collect(path)
    assert found["ddp_node_last_sample_timestamp_seconds"] == [({"node": "plain"}, NOW_S - 100)]
    assert found["ddp_gpu_power_watts"][1] == ({"node": "plain", "gpu": "1"}, 294)
    assert "ddp_gpu_power_watts" not in collect(path, now_s=NOW_S + 1000)


def test_dead_jobs_do_not_look_alive(log: Log) -> None:
    """What is older than the limit is left out, and counted; the limit knows long intervals."""
    old = log(age_s=301)
    found = collect(old)
    assert "ddp_gpu_up" not in found
    assert found["ddp_export_logs"] == [
        ({"state": "fresh"}, 0),
        ({"state": "stale"}, 1),
        ({"state": "unreadable"}, 0),
    ]
    assert "ddp_gpu_up" in collect(old, max_age_s=302)
    slow = tuple((k, "120" if k == "interval_s" else v) for k, v in FACTS)
    assert "ddp_gpu_up" in collect(log(age_s=599, facts=slow))
    odd = tuple((k, "soon" if k == "interval_s" else v) for k, v in FACTS)
    assert "ddp_gpu_up" not in collect(log(age_s=599, facts=odd))


def test_a_node_stands_there_once(log: Log) -> None:
    """Of two logs of a node in a job the newer one counts; two jobs on a node are two."""
    log(lambda *_: {"sm_pct": 1}, age_s=50)
    log(lambda *_: {"sm_pct": 2}, age_s=5, name="copy.gutil", num_gpus=1)
    other = (("host", "n1"), ("job", "8"), ("utc_offset", "+00:00"))
    folder = log(lambda *_: {"sm_pct": 3}, name="slurm-8.n1.gutil", facts=other).parent
    found = collect(folder)
    reported = [(lab["job"], lab["gpu"], v) for lab, v in found["ddp_gpu_utilization_ratio"]]
    assert sorted(reported) == [("7", "0", 0.02), ("8", "0", 0.03), ("8", "1", 0.03)]


def test_rank_and_further_columns_where_the_log_has_them(tmp_path: Path) -> None:
    """The rank is a label; columns of later recorders have their metrics."""
    path = tmp_path / "slurm-7.n1.gutil"
    names = ["sm", "rank", "step", "rfb", "sbecc", "tviol"]
    names += ["smmax", "nvrx", "disk", "ibrx", "dram", "x"]
    cells = ["50", "3", "120", "2", "4", "25", "99", "5", "87", "6", "1", "1"]
    path.write_text(
        f"#Date        Time         gpu{''.join(f' {n:>6}' for n in names)} \n"
        "## monitor: 1\n## utc_offset: +00:00\n"
        f" 20261121    11:59:55       0{''.join(f' {c:>6}' for c in cells)} \n"
    )
    found = collect(path)
    labels = {"job": "7", "node": "n1", "gpu": "0", "rank": "3"}
    for name, value in (
        ("ddp_gpu_rank_step", 120),
        ("ddp_gpu_rank_memory_used_bytes", 2**21),
        ("ddp_gpu_ecc_corrected_errors_total", 4),
        ("ddp_gpu_thermal_throttled_ratio", 0.25),
        ("ddp_gpu_utilization_peak_ratio", 0.99),
        ("ddp_gpu_nvlink_receive_bytes_per_second", 5e6),
    ):
        assert found[name] == [(labels, value)]
    node = {"job": "7", "node": "n1"}
    assert found["ddp_node_disk_used_ratio"] == [(node, 0.87)]
    assert found["ddp_node_infiniband_receive_bytes_per_second"] == [(node, 6e6)]
    path.write_text(path.read_text().replace("## monitor: 1\n", ""))
    of_dmon = collect(path)
    assert "ddp_gpu_thermal_throttled_ratio" not in of_dmon  # dmon's own is a yes or no
    assert "ddp_gpu_dram_active_ratio" in of_dmon


def test_every_column_of_the_recorder_is_reported(log: Log) -> None:
    """A column without a metric would be lost without a word."""
    reported = {column.name for column, _ in (*gpus.GPU_METRICS, *gpus.NODE_METRICS)}
    elsewhere = {"throt", "rank", "mono"}  # reasons; a label; a clock of no meaning elsewhere
    assert {column.name for column in columns.COLUMNS} - reported - elsewhere == set()
    assert log().exists()
    names = [metric.name for metric in every_metric()]
    assert len(set(names)) == len(names)


def test_events_of_a_gpu_are_counted_wherever_they_stand(log: Log) -> None:
    """By kind and by XID, with the time of the last one; a damaged one is none."""
    events = (
        "## event: 2026-11-21T10:00:00.000+00:00 xid gpu=1 xid=79 text=off_the_bus\n"
        "## event: 2026-11-21T11:00:00.000+00:00 xid gpu=1 xid=79\n"
        "## event: - ecc gpu=0\n"
        "## event: 2026-11-21T11 xid gpu=0 xid=1\n"
    )
    path = log(num_cycles=2)
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*text[:3], events, *text[3:]]))
    found = collect(path)
    base = {"job": "7", "user": "ada", "node": "n1"}
    xid = base | {"gpu": "1", "event": "xid", "xid": "79"}
    ecc = base | {"gpu": "0", "uuid": "GPU-aa", "event": "ecc"}
    assert found["ddp_gpu_events_total"] == [(ecc, 1), (xid, 2)]
    assert found["ddp_gpu_event_last_timestamp_seconds"] == [(xid, NOW_S - 3600)]


def test_a_growing_log_is_read_on_and_a_new_one_anew(log: Log) -> None:
    """The same at every poll as reading all of it; half a line counts when it is whole."""
    path = log(num_cycles=40, num_gpus=3)
    whole = path.read_bytes()
    newest = Newest(str(path))
    for end in (0, 10, 700, 701, 5000, 5003, len(whole) - 7, len(whole)):
        path.write_bytes(whole[:end])  # the same file, cut and then longer
        assert newest.poll() == Newest(str(path)).poll()
    last = newest.poll()
    assert last is not None
    assert [gpu.time_s for gpu in last.gpus] == [NOW_S - 5] * 3
    log(lambda *_: {"sm_pct": 77}, num_cycles=1, num_gpus=1)
    small = newest.poll()
    assert small is not None
    assert [gpu.values["sm"] for gpu in small.gpus] == [77]


def test_a_damaged_last_row_leaves_the_one_before(log: Log) -> None:
    """With its own time."""
    path = log(lambda c, _i: {"sm_pct": c})
    text = path.read_text()
    path.write_text(text[:-40] + "?" + text[-39:])
    found = Newest(str(path)).poll()
    assert found is not None
    assert {gpu.index: gpu.values["sm"] for gpu in found.gpus} == {0: 2, 1: 1}


def test_gpus_that_only_an_earlier_start_had_are_not_reported(log: Log) -> None:
    """Each GPU of the job has a row in every sample."""
    path = log(num_gpus=4, age_s=3000)
    text = path.read_text()
    log(num_gpus=1, num_cycles=2)
    path.write_text(text + path.read_text())
    now = Newest(str(path)).poll()
    assert now is not None
    assert [gpu.index for gpu in now.gpus] == [0]


def test_columns_and_offset_may_change_within_a_log(log: Log) -> None:
    """Each row has the header and the offset above it; a node without GPUs has its host."""
    path = log(num_gpus=0)
    layout = gutil.Layout("pumt")
    moment = NOW + timedelta(hours=1, seconds=-2)
    row = layout.line(Row(moment, GpuSample(index=0, sm_pct=5), HostSample()))
    path.write_text(path.read_text() + layout.header() + "## utc_offset: +01:00\n" + row)
    found = collect(path)
    node = {"job": "7", "user": "ada", "node": "n1"}
    assert found["ddp_node_last_sample_timestamp_seconds"] == [(node, NOW_S - 2)]
    assert found["ddp_gpu_utilization_ratio"][0][1] == 0.05
    assert len(found["ddp_gpu_up"]) == 1


@pytest.mark.parametrize(
    "name", ["slurm-7.n1.gutil", "slurm-7_3.a.b.gutil", "x.gutil", "slurm-.gutil"]
)
def test_job_and_node_are_read_from_the_name_as_all_readers_do(log: Log, name: str) -> None:
    """Where the log itself says nothing."""
    path = log(name=name, facts=())
    (place,) = reader.read(str(path)).places
    found = Newest(str(path)).poll()
    assert found is not None
    assert (found.job, found.host) == (place.job, place.host)


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 600))
def test_no_damage_raises(junk: bytes, at: int) -> None:
    """Whatever stands in a log, there is a number from a row or none."""
    parser = Parser(Place(None, "n"), is_patient=False)
    text = gutil.Layout("pumth").header() + "## host: n\n" * 3
    data = text.encode()[:at] + junk + text.encode()[at:] + b"\n"
    stretches = parser.take(data) + parser.end()
    lines = [line for stretch in stretches for text in stretch.texts for line in text.split(b"\n")]
    assert set(filter(None, lines)) <= set(data.split(b"\n"))
    decode(stretches)


def test_facts_that_are_no_numbers_are_none(log: Log) -> None:
    """A damaged line costs what it held."""
    odd = (*FACTS, ("memory_mib 0", "much"), ("power_limit_w 0", "inf"))
    found = collect(log(facts=odd))
    assert "ddp_gpu_memory_total_bytes" not in found
    assert "ddp_gpu_power_limit_watts" not in found


def test_a_directory_that_cannot_be_looked_into_is_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may look anywhere: here the system says no in its place."""

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(UserError, match="Permission denied"):
        collect(tmp_path)


def test_a_log_that_cannot_be_read_is_counted_unless_it_was_named(log: Log) -> None:
    """One vanishes between listing and reading; a directory of that name is no log."""
    folder = log().parent
    (folder / "b.gutil").mkdir()
    (folder / "c.gutil").write_text("nothing that we know\n")
    (folder / "d.gutil").write_text("")
    found = collect(folder)
    assert found["ddp_export_logs"] == [
        ({"state": "fresh"}, 1),
        ({"state": "stale"}, 1),
        ({"state": "unreadable"}, 1),
    ]
    with pytest.raises(UserError, match=r"none\.gutil"):
        collect(folder / "none.gutil")
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="found none in"):
        collect(folder / "empty")


def test_a_log_that_vanishes_while_it_is_read_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one, as a recorder has just made it."""
    path = tmp_path / "a.gutil"
    path.touch()
    monkeypatch.setattr(Newest, "poll", lambda _log: path.unlink())
    assert collect(tmp_path)["ddp_export_logs"][-1] == ({"state": "unreadable"}, 1)


def test_metrics_need_neither_numpy_nor_polars() -> None:
    """A node's exporter stays small: it reads rows one by one, and only the last ones."""
    code = "import sys, monitor.export.metrics; sys.exit(len({'numpy', 'polars'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
