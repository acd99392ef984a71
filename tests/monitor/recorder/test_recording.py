"""`python -m monitor record` with all columns: files that change, events, calls that hang."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monitor.logs import columns, reader
from monitor.logs.log_events import LogEvent

Until = Callable[..., None]
pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds

ALL = "pumtcjrghevxnisqdk"
FULL = (
    *("gpus 2", "set gpm * 1", "set gpm2 * 50", "set gpm5 * 40", "set gpm10 * 30"),
    *("set mtemp * 70", "set ccpm * 1048576", "grow samples * 20", "grow pviol_ns * 250000000"),
    *("set tviol_ns * 0", "grow nvrx_kib * 1000000", "grow nvtx_kib * 500000", "set sbecc 1 12"),
)


def column(recording: Any, name: str, gpu: int) -> list[str]:
    """The cells of one column and GPU, in order."""
    place = recording.text().splitlines()[0].replace("#", "").split().index(name)
    rows = [row.split() for row in recording.rows()]
    return [row[place] for row in rows if row[2] == str(gpu)]


def marks(path: Path) -> list[LogEvent]:
    """What the log tells of, as its readers see it."""
    return list(reader.read(str(path)).events)


def test_report_reads_all_columns(bench: Any, driver: Any, until: Until, tmp_path: Path) -> None:
    """Every column is in the log, and the reader leaves no row and no line out."""
    heartbeats = tmp_path / "beats"
    heartbeats.mkdir()
    (heartbeats / "rank-3").write_bytes(
        struct.pack("<8s7q16x", b"DDPBEAT1", 4001, 77, 1, 2, 1, 1, 1)
    )
    (heartbeats / "child-3").write_text("4000 1 trainer\n")
    driver.does(*FULL, "process 4001 1 1234")
    env = driver.env | {"DDP_BEAT_DIR": str(heartbeats), "DDP_JOB_ID": "42"}
    recording = bench.start("--interval", 0.2, env=env)
    until(lambda: len(recording.rows()) >= 48)  # the header came again
    assert recording.end() == (0, "")
    log = reader.read(str(recording.out))
    assert log.num_unreadable == 0
    names = [c.name for c in columns.COLUMNS if c.letter in ALL]
    head = recording.text().splitlines()[0].split()
    assert head[3:] == names
    for name in ("smact", "tensor", "dram", "pviol", "tviol", "nvrx", "nvtx", "step", "mono"):
        assert column(recording, name, 1)[-2].isdigit(), name
    assert (column(recording, "step", 1)[-2], column(recording, "sbecc", 1)[-2]) == ("77", "12")
    command = [sys.executable, "-m", "monitor", "report", "--json", str(recording.out)]
    output = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert "42" in json.dumps(output["jobs"])


def test_ranks_by_the_uuids_of_their_gpus(
    bench: Any, driver: Any, until: Until, tmp_path: Path
) -> None:
    """Where a device cgroup hides GPU 0 and CUDA's 0 is NVML's 1; in a MIG instance, too."""
    heartbeats = tmp_path / "beats"
    heartbeats.mkdir()
    for rank, number in enumerate((1, 201)):  # GPU 1, and the first instance of GPU 2
        reported = struct.pack("<8s7q", b"DDPBEAT1", 2**22 + rank, 70 + rank, 1, 2, 1, 1, 1)
        (heartbeats / f"rank-{rank}").write_bytes(reported + bytes.fromhex(f"{number:032}"))
        (heartbeats / f"child-{rank}").write_text(f"{2**22 + rank} {rank} trainer\n")
    driver.does("gpus 3", "fail nvmlDeviceGetHandleByIndex_v2 0 4", "set mig 2 2")
    env = driver.env | {"DDP_BEAT_DIR": str(heartbeats), "CUDA_VISIBLE_DEVICES": "0,1"}
    recording = bench.start("--interval", 0.2, env=env)
    until(lambda: recording.rows() and "1" in column(recording, "rank", 2))
    assert recording.end() == (0, "")
    for gpu, rank in ((1, "0"), (2, "1")):
        assert column(recording, "rank", gpu)[-1] == rank
        assert column(recording, "step", gpu)[-1] == f"7{rank}"


def test_memory_of_no_rank_is_found(bench: Any, driver: Any, until: Until, tmp_path: Path) -> None:
    """What a dead job has left on a GPU: in the log with its process, and named by `diagnose`."""
    heartbeats = tmp_path / "beats"
    heartbeats.mkdir()
    (heartbeats / "rank-3").write_bytes(
        struct.pack("<8s7q16x", b"DDPBEAT1", 4001, 77, 1, 2, 1, 1, 1)
    )
    driver.does("gpus 2", "process 4001 0 1234", "process 4100 0 20480", "process 4001 1 300")
    recording = bench.start(
        "--interval", 0.2, env=driver.env | {"DDP_BEAT_DIR": str(heartbeats), "DDP_JOB_ID": "42"}
    )
    until(lambda: len(recording.rows()) >= 20)
    assert recording.end() == (0, "")
    for gpu, (own, others) in enumerate([("1234", "20480"), ("300", "0")]):
        assert set(column(recording, "rfb", gpu)) == {own}
        assert set(column(recording, "ofb", gpu)) == {others}
    lines = [line for line in recording.text().splitlines() if line.startswith("## processes")]
    assert lines == [
        "## processes 0: 4001 rank 3 1234 MiB; 4100 20480 MiB",
        "## processes 1: 4001 rank 3 300 MiB",
    ]
    command = [sys.executable, "-m", "monitor", "diagnose", "--set", "stray_minutes=0.01"]
    reported = subprocess.run(
        [*command, recording.out], capture_output=True, check=False, text=True
    )
    assert reported.returncode == 3
    output = " ".join(reported.stdout.split())
    assert "WARNING unattributed: " in output
    assert "processes of no rank held up to 20.0 GiB of its memory" in output
    assert "4100 20480 MiB -> what a job before has left behind" in output


def test_an_xid_stands_in_the_log_as_it_happens(bench: Any, driver: Any, until: Until) -> None:
    """Long before the next sample, with its time; so does an ECC error."""
    recording = bench.start("--interval", 3600, env=driver.env)
    until(recording.rows)
    before_s = time.time()
    driver.does("gpus 2", "event 8 1 79", "event 2 0 0")
    until(lambda: recording.text().count("## event: ") == 2)
    xid, ecc = marks(recording.out)
    assert (xid.kind, xid.gpu, xid.details["xid"]) == ("xid", 1, "79")
    assert (ecc.kind, ecc.gpu, ecc.details) == ("ecc", 0, {"bits": "double"})
    assert before_s - 0.01 <= xid.time_s <= time.time()
    assert len(recording.rows()) == 2
    assert recording.end() == (0, "")


def test_a_call_that_hangs_for_20_s_costs_its_own_cells(
    bench: Any, driver: Any, until: Until, patience: Callable[[float], float]
) -> None:
    """The other columns, the other GPU and the host go on; the end does not wait for it."""
    driver.does(*FULL)
    recording = bench.start("--interval", 0.5, env=driver.env)
    until(lambda: len(recording.rows()) >= 4)
    driver.does(*FULL, "slow nvmlDeviceGetTemperature 20000 1")
    until(lambda: column(recording, "gtemp", 1)[-1] == "-")
    num_rows = len(recording.rows())
    until(lambda: len(recording.rows()) >= num_rows + 8)
    assert set(column(recording, "gtemp", 1)[-3:]) == {"-"}
    assert set(column(recording, "gtemp", 0)) == {"61"}
    for name in ("pwr", "sm", "fb", "energy", "nvrx", "hmem"):
        cells = column(recording, name, 1)[1:]  # rates begin with the second poll
        assert all(cell.isdigit() for cell in cells), (name, cells)
    began_s = time.monotonic()
    assert recording.end() == (0, "")
    assert time.monotonic() - began_s < patience(2)
    assert [mark.kind for mark in marks(recording.out)] == ["slow"]


def test_a_gpu_is_lost_and_comes_back(bench: Any, driver: Any, until: Until) -> None:
    """Its row stays all the while, and the log tells when."""
    recording = bench.start("--interval", 0.1, env=driver.env)
    until(lambda: len(recording.rows()) >= 4)
    for world, cell in ((("gpus 2", "lost 1 0"), "-"), (("gpus 2",), "294")):
        driver.does(*world)
        until(lambda cell=cell: column(recording, "pwr", 1)[-1] == cell)
    assert recording.end() == (0, "")
    assert [(mark.kind, mark.gpu) for mark in marks(recording.out)] == [("lost", 1), ("back", 1)]
    assert set(column(recording, "pwr", 0)) == {"294"}


def test_sighup_opens_the_log_anew(bench: Any, driver: Any, until: Until) -> None:
    """Moved away by somebody, as logrotate does: with the next sample there is a new, whole log."""
    recording = bench.start("--interval", 0.1, "--columns", "pumtk", env=driver.env)
    until(lambda: len(recording.rows()) >= 4)
    moved = recording.out.with_suffix(".gutil.1")
    recording.out.rename(moved)
    num_rows = moved.read_text().count("\n 2")
    until(lambda: moved.read_text().count("\n 2") > num_rows)  # until it is told it writes there
    recording.process.send_signal(signal.SIGHUP)
    until(lambda: len(recording.rows()) >= 4)
    recording.process.send_signal(signal.SIGHUP)  # nothing was moved: nothing happens
    until(lambda: len(recording.rows()) >= 8)
    assert recording.end() == (0, "")
    assert recording.text().count("#Date") == 1
    assert recording.text().splitlines()[2].startswith("## host: ")
    assert "## gpu 1: GPU-" in recording.text()
    for path in (moved, recording.out):
        assert reader.read(str(path)).num_unreadable == 0


def test_the_log_rotates(bench: Any, driver: Any, until: Until) -> None:
    """At its size, between two polls; each file is a whole log, and the oldest goes."""
    filler = "## note: " + "x" * 1000 + "\n"
    recording = bench.start(
        *("--interval", 0.1, "--rotate-mib", 1, "--rotate-keep", 2), env=driver.env
    )
    first, second = (recording.out.with_suffix(f".gutil.{n}") for n in (1, 2))
    for path in (first, second, None):  # rows alone would take minutes to fill a MiB
        until(lambda: len(recording.rows()) >= 8)
        with recording.out.open("a") as file:
            file.write(filler * 1030)
        until(path.exists if path else lambda: recording.out.stat().st_size < 2**20)
    until(lambda: len(recording.rows()) >= 8)
    assert recording.end() == (0, "")
    files = {first, second, recording.out}
    assert set(recording.out.parent.glob("job.gutil*")) == files
    for path in files:
        lines = path.read_text().splitlines()
        assert lines[0].startswith("#Date")
        assert any(line.startswith("## gpu 1: GPU-") for line in lines)
        rows = [line.split() for line in lines if line.startswith(" ")]
        assert [row[2] for row in rows] == ["0", "1"] * (len(rows) // 2)
        assert reader.read(str(path)).num_unreadable == 0


CLOCK = """
import sys, time, datetime as d
from monitor.recorder import loop
from monitor.__main__ import main
class Stepping(loop.SystemClock):
    num_calls = 0
    def now(self):
        self.num_calls += 1
        return super().now() - d.timedelta(hours=1 if self.num_calls > 3 else 0)
from monitor.recorder import recording
recording.SystemClock = Stepping
sys.exit(main(sys.argv[1:]))
"""


def test_a_clock_that_is_set_back_does_no_harm(bench: Any, driver: Any, until: Until) -> None:
    """The cadence stays, the log stays readable, and the monotonic column goes on."""
    words = bench.command("--out", bench.directory / "job.gutil", "--interval", 0.5)
    command = [sys.executable, "-c", CLOCK, *words[3:]]
    process = subprocess.Popen(command, env={**os.environ, **driver.env}, stderr=subprocess.PIPE)
    bench.started.append(process)
    out = bench.directory / "job.gutil"
    until(lambda: out.exists() and out.read_text().count("\n 2") >= 16)
    process.terminate()
    assert process.wait(timeout=20) == 0
    log = reader.read(str(out))
    assert log.num_unreadable == 0
    rows = [line.split() for line in out.read_text().splitlines() if line.startswith(" ")]
    clocks = [" ".join(row[:2]) for row in rows]  # an hour earlier may be the day before
    monotonic_s = [int(row[-1]) for row in rows]
    assert clocks != sorted(clocks)
    assert monotonic_s == sorted(monotonic_s)
    assert monotonic_s[-1] - monotonic_s[0] <= 20
