"""The end of a node's log, as `why` and the record read it."""

from datetime import UTC, datetime
from pathlib import Path

from monitor.logs import gutil
from monitor.runs import node_log
from tests.monitor.logs.test_gutil import row

NUM_ROWS = 6000


def test_a_large_log_is_read_from_its_end(tmp_path: Path) -> None:
    """Its last rows, at the offset from UTC that its head states, and the faults among them."""
    layout = gutil.Layout("pumt")
    rows = [row(i // 2 % 60, i % 2) for i in range(NUM_ROWS)]
    head = gutil.comment("utc_offset", "+05:30") + "## xid: 13 long ago\n" + layout.header()
    path = tmp_path / "slurm-7.n1.gutil"
    path.write_text(head + layout.block(rows, 0) + "## xid: 79 GPU 0\n", "utf-8")
    assert path.stat().st_size > 2**18
    log = node_log.read(str(path))
    assert 1000 < len(log.samples) < NUM_ROWS // 2
    assert log.faults == ("xid: 79 GPU 0",)
    last = log.samples[-1]
    written = path.read_text("utf-8").splitlines()[-2].split()
    local = datetime.strptime(" ".join(written[:2]) + " +0530", "%Y%m%d %H:%M:%S %z")
    assert (last.time_s, last.index) == (local.astimezone(UTC).timestamp(), 1)


def test_rows_without_a_date_are_skipped(tmp_path: Path) -> None:
    """They have no place in the run's time."""
    path = tmp_path / "slurm-7.n1.gutil"
    path.write_text("# gpu    pwr\n# Idx      W\n    0    300\n", "utf-8")
    assert node_log.read(str(path)) == node_log.NodeLog(str(path), (), ())


def test_the_faults_of_an_attempt_are_those_since_its_start(tmp_path: Path) -> None:
    """All where the log does not say when it began."""
    path = tmp_path / "slurm-7.n1.gutil"
    path.write_text("## attempt: 1\n## xid: 79 GPU 0\n## attempt: 2\n## xid: 13 GPU 1\n", "utf-8")
    assert node_log.of_node(str(tmp_path / "run"), {"job_id": 7, "attempt": 2}, "n1").faults == (
        "xid: 13 GPU 1",
    )
    assert len(node_log.read(str(path), 3).faults) == 2
