from pathlib import Path

import numpy as np
import pytest

from monitor.errors import UserError
from monitor.logs import gutil, newest, series

HEAD = (
    "#Date        Time         gpu    pwr     sm \n#YYYYMMDD    HH:MM:SS     Idx      W      % \n"
)


MOMENT = "2026-11-21T12:00:00.000+00:00"


def row(clock: str, gpu: int | str, power: object, busy: object) -> str:
    """A line in the layout of the 550 series."""
    return f" 20261121    {clock}{gpu:>8} {power:>6} {busy:>6} \n"


def log(path: Path, *rows: str, head: str = HEAD) -> Path:
    """Write a log of some rows."""
    path.write_text(head + "".join(rows))
    return path


def test_each_gpu_has_its_readings_by_time(tmp_path: Path) -> None:
    """Rows of two GPUs come in turns; times are UTC, missing readings NaN."""
    head = HEAD + gutil.comment("utc_offset", "+01:00") + gutil.comment("memory_mib 1", "81559")
    rows = [row(f"12:00:0{s}", gpu, 100 * gpu + s, "-") for s in range(3) for gpu in (0, 1)]
    run = series.load([str(log(tmp_path / "slurm-7.n1.gutil", *rows, head=head))])
    first, second = run.gpus
    assert run.name == "7"
    assert (first.host, first.gpu, first.job, second.gpu) == ("n1", 0, "7", 1)
    noon = np.datetime64("2026-11-21T11:00:00").astype("datetime64[s]").astype(float)
    assert (first.time_s - noon).tolist() == [0, 1, 2]
    assert second.values["pwr"].tolist() == [100, 101, 102]
    assert np.isnan(second.values["sm"]).all()
    assert second.column("sm") is None
    assert second.column("energy") is None
    assert second.number("memory_mib") == 81559
    assert first.number("memory_mib") is None


def test_a_clock_that_was_set_back_changes_no_order(tmp_path: Path) -> None:
    """Rows stay in the order of the log, as far apart as usual; shown is what is written."""
    rows = [row(f"12:00:0{s}", 0, s, 50) for s in (4, 5, 2, 3)]
    run = series.load([str(log(tmp_path / "a.gutil", *rows))])
    assert run.gpus[0].values["pwr"].tolist() == [4, 5, 2, 3]
    assert (np.diff(run.gpus[0].time_s) == 1).all()
    assert np.diff(run.gpus[0].written_s).tolist() == [1, -3, 1]


def test_several_logs_of_a_gpu_are_one_series(tmp_path: Path) -> None:
    """What one of them lacks is NaN there, and their order does not matter."""
    other = HEAD.replace("    pwr", "  gtemp").replace("      W", "      C")
    place = gutil.comment("host", "n1") + gutil.comment("job", "7")
    late = log(tmp_path / "b.gutil", row("12:00:09", 0, 61, 5), head=other + place)
    early = log(tmp_path / "c.gutil", row("12:00:01", 0, 300, 6), head=HEAD + place)
    run = series.load([str(late), str(early)])
    (gpu,) = run.gpus
    assert gpu.values["sm"].tolist() == [6, 5]
    assert np.array_equal(gpu.values["pwr"], [300, np.nan], equal_nan=True)
    assert np.array_equal(gpu.values["gtemp"], [np.nan, 61], equal_nan=True)


def test_each_sample_of_a_node_counts_once_whichever_gpus_it_has(tmp_path: Path) -> None:
    """None at first, then two, then others by the same indices, then only the second."""
    text = HEAD + "".join(row(f"12:00:0{s}", "-", "-", "-") for s in range(4))
    for minute in (1, 2):
        text += HEAD + "".join(gutil.comment(f"gpu {i}", f"GPU-{minute}{i} H") for i in (0, 1))
        text += "".join(row(f"12:0{minute}:0{s}", i, s, 9) for s in range(3) for i in (0, 1))
    text += "".join(row(f"12:03:0{s}", 1, s, 9) for s in range(2))
    run = series.load([str(log(tmp_path / "slurm-7.n1.gutil", text, head=""))])
    assert [one.gpu for one in run.gpus] == [None, 0, 0, 1, 1]
    (host,) = series.of_hosts(run.gpus)
    pwr = np.array([np.nan] * 4 + [0, 1, 2, 0, 1, 2, 0, 1])
    assert np.array_equal(host.values["pwr"], pwr, equal_nan=True)
    assert host.num_samples == len(host.start) == 12  # type: ignore[arg-type]
    assert (np.diff(host.time_s) > 0).all()


def test_a_gpu_that_answers_late_is_the_one_it_turns_out_to_be(tmp_path: Path) -> None:
    """Until then its line says nothing; nor does it while the GPU is lost."""
    fact = [gutil.comment("gpu 1", text) for text in ("-", "GPU-b H", "-")]
    text = HEAD + "".join(fact[n] + row(f"12:00:0{n}", 1, n, 9) for n in range(3))
    (gpu,) = series.load([str(log(tmp_path / "slurm-7.n1.gutil", text, head=""))]).gpus
    assert (gpu.uuid, gpu.num_samples) == ("GPU-b", 3)


def test_an_event_is_of_the_job_and_node_whose_lines_stand_above_it(tmp_path: Path) -> None:
    """A file that two logs were written into has both."""
    event = gutil.comment("event", f"{MOMENT} xid gpu=0 xid=79")
    first = HEAD + gutil.comment("job", "7") + gutil.comment("host", "n1") + event
    other = HEAD + gutil.comment("job", "8") + gutil.comment("host", "n2")
    rows = [row(f"12:00:0{n}", 0, n, 9) for n in range(2)]
    path = log(tmp_path / "both.gutil", first, rows[0], other, rows[1], head="")
    (found,) = series.load([str(path)]).log_events
    assert found.place == ("7", "n1")
    now = newest.Newest(str(path)).poll()
    assert now is not None
    assert (now.job, now.events) == ("8", ())


def test_only_wanted_columns_are_kept(tmp_path: Path) -> None:
    """A day of 512 nodes needs memory for what is read, not for all there is."""
    path = log(tmp_path / "a.gutil", row("12:00:01", 0, 300, 6))
    run = series.load([str(path)], frozenset({"sm"}))
    assert list(run.gpus[0].values) == ["sm"]


def test_rows_without_a_time_have_none(tmp_path: Path) -> None:
    """Such as those of dmon without -o."""
    head = "# gpu    pwr     sm \n# Idx      W      % \n"
    path = log(tmp_path / "a.gutil", "    0    300      6 \n", "    0    301      7 \n", head=head)
    run = series.load([str(path)])
    assert run.gpus[0].values["sm"].tolist() == [6, 7]
    assert np.isnan(run.gpus[0].time_s).all()


@pytest.mark.parametrize("name", ["mine", "77"])
def test_a_run_directory_has_metrics_events_and_the_logs_beside_it(
    tmp_path: Path, name: str
) -> None:
    """A named run has the logs of all its jobs, and not those of others: no name is a job's id."""
    run_dir = tmp_path / name
    run_dir.mkdir()
    (run_dir / "events.jsonl").write_text('{"event": "start", "job_id": "7"}\n{"job_id": 5}\n{to')
    (run_dir / "metrics.jsonl").write_text('{"step": 10}\n')
    for job in (7, 77):
        log(tmp_path / f"slurm-{job}.n1.gutil", row("12:00:01", 0, 300, job))
    run = series.load([str(run_dir)])
    assert run.name == name
    assert [gpu.job for gpu in run.gpus] == ["7"]
    assert [event.get("event") for event in run.events] == ["start", None]
    assert [dict(line) for line in run.metrics] == [{"step": 10}]


def test_a_run_without_a_log_has_its_metrics(tmp_path: Path) -> None:
    """No monitor ran: there are no GPUs, and that is no error."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    run = series.load([str(tmp_path)])
    assert (run.gpus, len(run.metrics), run.events) == ((), 1, ())


def test_events_that_cannot_be_read_are_the_users_business(tmp_path: Path) -> None:
    """One line says which file, and what to name."""
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(UserError, match=r"events\.jsonl must be a file"):
        series.load([str(tmp_path)])


def test_a_directory_without_logs_is_named(tmp_path: Path) -> None:
    """As the report does."""
    with pytest.raises(UserError, match=r"must hold \.gutil files"):
        series.load([str(tmp_path)])


def test_what_happened_has_its_place_and_order(tmp_path: Path) -> None:
    """Marks of several logs stand in the order of time."""

    def event(clock: str, gpu: int) -> str:
        return f"## event: 2026-11-21T{clock}+00:00 xid gpu={gpu} xid=79\n"

    one = log(tmp_path / "slurm-7.n2.gutil", row("12:00:01", 0, 1, 1), event("12:00:02.500", 0))
    two = log(tmp_path / "slurm-7.n1.gutil", row("12:00:01", 0, 1, 1), event("12:00:01.500", 3))
    run = series.load([str(one), str(two)])
    reported = [(event.place, event.kind, event.gpu) for event in run.log_events]
    assert reported == [(("7", "n1"), "xid", 3), (("7", "n2"), "xid", 0)]
