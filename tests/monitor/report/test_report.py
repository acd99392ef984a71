import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from monitor.errors import UserError
from monitor.logs import aggregates, gutil, stats
from monitor.logs import files as logfiles
from monitor.report import document
from tests.monitor.reported import Written, gpus


@pytest.mark.parametrize("series", ["418.226.00", "525.147.05", "550.163.01"])
def test_true_dmon_logs_of_every_series(data: Path, series: str) -> None:
    """Each gives the same numbers by its own layout."""
    first, second = gpus(data / f"pumt_DT.{series}.2gpu.gutil")
    for row, index in ((first, 0), (second, 1)):
        assert (row["gpu"], row["num_samples"], row["span_s"]) == (index, 2, 1)
        assert (
            row["power_w"]["mean"],
            row["fb_used_mib"]["peak"],
            row["pcie_tx_mb_s"]["mean"],
        ) == (294, 71680, 9)
        assert (row["busy_pct"], row["energy_j"], row["energy_from"]) == (100, 294, "power")


def test_readings_that_do_not_exist_are_no_zeros(data: Path) -> None:
    """All missing: no mean, no peak, no energy; a lost GPU's mean is that of what it told."""
    (row, _) = gpus(data / "pumt_DT.525.147.05.allmissing.gutil")
    for name in ("power_w", "sm_pct", "busy_pct", "energy_j"):
        assert row[name] is None
    assert row["num_silent"] == 1
    whole, lost = gpus(data / "pumt_DT.550.163.01.gpu1_lost.gutil")
    assert (lost["num_samples"], lost["num_silent"], whole["num_silent"]) == (5, 3, 0)
    assert (lost["power_w"]["mean"], lost["sm_pct"]["num"]) == (294, 2)
    assert (whole["energy_j"], lost["energy_j"]) == (4 * 294, 294)


def test_means_peaks_and_busy_share(written: Written) -> None:
    """Busy is sm above 5 %, of the samples that have an sm."""
    sm = [None, 0, 5, 6, 100]
    path = written(5, lambda c, _i: {"sm_pct": sm[c], "power_w": 100 * c, "temp_c": 50 - c})
    (row,) = gpus(path)
    assert (row["sm_pct"]["mean"], row["sm_pct"]["peak"]) == (111 / 4, 100)
    assert row["busy_pct"] == 50
    assert (row["power_w"]["mean"], row["power_w"]["peak"], row["temp_c"]["peak"]) == (200, 400, 50)


def test_what_the_ring_saw_between_two_polls_is_work(written: Written) -> None:
    """A look may fall between two kernels: the driver's own samples since the one before count."""
    sm, ring = [0, 0, 0, 9, None], [None, 0, 40, 3, 60]
    reported = written(5, lambda c, _i: {"sm_pct": sm[c], "sm_avg_pct": ring[c]}, letters="pumtx")
    (row,) = gpus(reported)
    assert row["busy_pct"] == 60
    assert row["idle_min"] * 60 == 10  # the first sample speaks for no time
    assert row["sm_pct"]["mean"] == 9 / 4


def test_sm_activity_tells_where_nothing_else_does(written: Written) -> None:
    """MIG refuses the driver's utilisation."""
    (row,) = gpus(written(4, lambda c, _i: {"sm_active_pct": 30 * c}, letters="pumtg"))
    assert (row["busy_pct"], row["sm_pct"]) == (75, None)


def test_energy_comes_from_the_counter_where_there_is_one(written: Written) -> None:
    """The counter's growth; power says something else and is not used."""
    counter = [20_000_000, 20_000_700, 20_000_801, 20_000_821]
    (row,) = gpus(written(4, lambda c, _i: {"energy_j": counter[c], "power_w": 1}))
    assert (row["energy_j"], row["energy_from"]) == (700 + 101 + 20, "counter")


def test_energy_is_by_power_where_the_counter_does_not_tell(written: Written) -> None:
    """Before it was asked for, where it was set back; where power does not tell either, nothing."""
    counter = [None, None, 20_000_700, 20_000_801, 5, 25, None]
    power = [30, 30, 30, 30, 30, 30, None]
    path = written(7, lambda c, _i: {"energy_j": counter[c], "power_w": power[c]})
    (row,) = gpus(path)
    assert (row["energy_j"], row["energy_from"]) == (300 + 300 + 101 + 300 + 20, "counter+power")
    (row,) = gpus(written(7, lambda c, _i: {"energy_j": counter[c]}))
    assert (row["energy_j"], row["energy_from"]) == (101 + 20, "counter")


def test_energy_is_else_power_over_time(written: Written) -> None:
    """Trapezoids between samples 10 s apart."""
    (row,) = gpus(written(3, lambda c, _i: {"power_w": (100, 200, 200)[c]}))
    assert (row["energy_j"], row["energy_from"]) == (150 * 10 + 200 * 10, "power")


def test_a_gap_between_attempts_is_no_running_time(written: Written, tmp_path: Path) -> None:
    """An hour in which nothing was recorded adds neither time nor energy."""
    text = written(4, lambda _c, _i: {"power_w": 100}).read_text()
    path = tmp_path / "two.gutil"
    path.write_text(text + text.replace(" 12:00:", " 13:00:").replace("    12:", "    13:"))
    (row,) = gpus(path)
    assert (row["num_samples"], row["span_s"], row["energy_j"]) == (8, 60, 6000)


def test_samples_closer_than_a_second_still_add_up(written: Written) -> None:
    """The log cuts times to seconds; the time between the first and last sample stays."""
    (row,) = gpus(written(31, lambda _c, _i: {"power_w": 10}, step_s=0.2))
    assert row["span_s"] == 6


def test_percentiles_are_values_that_occurred(written: Written) -> None:
    """The first value that reaches its share of the samples, whether counted or sorted."""
    (row,) = gpus(
        written(100, lambda c, _i: {"sm_pct": c + 1, "fb_used_mib": 1000 * (c + 1), "temp_c": 7})
    )
    spread = {"num": 100, "mean": 50.5, "p5": 5, "p50": 50, "p95": 95, "peak": 100}
    assert row["sm_pct"] == spread
    assert row["fb_used_mib"] == {k: v if k == "num" else 1000 * v for k, v in spread.items()}
    assert {*row["temp_c"].values()} == {100, 7}


def test_idle_time_and_its_longest_stretch(written: Written) -> None:
    """A sample speaks for the time since the one before; a busy or silent one ends a stretch."""
    sm = [0, 0, 0, 90, 0, 0, 0, 0, None, 0, 90]
    (row,) = gpus(written(11, lambda c, _i: {"sm_pct": sm[c]}, step_s=60))
    assert row["idle_min"] == 7
    assert row["longest_idle"] == {"minutes": 4, "begin": "2026-11-21 12:03:00"}
    assert row["hours"] * 60 == 10
    (row,) = gpus(written(3, lambda _c, _i: {"sm_pct": 90}))
    assert (row["idle_min"], row["longest_idle"]) == (0, None)


def test_a_job_has_its_nodes_and_two_jobs_on_a_node_stay_apart(written: Written) -> None:
    """By the `## job:` line, else by the log's name; energies add, percentiles pool."""
    one = written(3, lambda _c, _i: {"power_w": 100}, num_gpus=2)
    two = written(2, lambda _c, _i: {"power_w": 400, "energy_j": 5}, name="slurm-8.n1.gutil")
    other = written(2, name="x.gutil", head=(("host", "n2"), ("job", "8")))
    nodes, files = aggregates.count([[str(path)] for path in (one, two, other)])
    made = document.document(stats.join(nodes), files, 500)
    assert [(j["job"], j["num_nodes"], j["num_gpus"]) for j in made["jobs"]] == [
        ("7", 1, 2),
        ("8", 2, 2),
    ]
    assert made["jobs"][0]["energy_kwh"] == pytest.approx(2 * 2000 / 3.6e6)
    assert made["jobs"][0]["co2_g"] == pytest.approx(500 * 2 * 2000 / 3.6e6)
    assert made["jobs"][0]["power_w"]["num"] == 6
    assert [j["energy_from"] for j in made["jobs"]] == ["power", "counter"]


def test_the_logs_of_one_node_and_job_are_one(written: Written, tmp_path: Path) -> None:
    """Rotated, or a copy under another name: time runs through both; a file twice counts once."""
    first = written(8, lambda c, _i: {"sm_pct": c, "power_w": 100})
    text = first.read_text().splitlines(keepends=True)
    (tmp_path / "slurm-7.n1.1.gutil").write_text("".join(text[:6]))
    name = gutil.comment("host", "n1")
    (tmp_path / "slurm-7.n2.gutil").write_text("".join(text[:2]) + name + "".join(text[6:]))
    (tmp_path / "slurm-7.n1.1.gutil").write_text("".join(text[:2]) + name + "".join(text[2:6]))
    (whole,) = gpus(first)
    (parts,) = gpus(tmp_path / "slurm-7.n2.gutil", tmp_path / "slurm-7.n1.1.gutil")
    assert parts == whole
    assert logfiles.find([str(first), str(first)]) == [(str(first),)]


@pytest.mark.slow
def test_processes_count_as_one_does(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared between processes, the numbers are the same, and a missing file is one line."""
    paths = [
        written(9, lambda c, i: {"sm_pct": c * i}, num_gpus=4, name=f"slurm-7.n{n}.gutil")
        for n in range(3)
    ]
    alone = gpus(*paths)
    monkeypatch.setattr(aggregates, "_WORTH_BYTES", 0)
    assert gpus(*paths) == alone
    with pytest.raises(UserError, match=r"none\.gutil"):
        gpus(*paths, paths[0].with_name("none.gutil"))


def test_ctrl_c_reaches_no_process_that_is_started(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they start it would leave this one waiting for ever, and each write a traceback."""

    @contextmanager
    def pool(_num: int, begin: object) -> Iterator[SimpleNamespace]:
        assert begin is os.setpgrp
        signal.raise_signal(signal.SIGINT)
        yield SimpleNamespace(imap=map)

    paths = [written(3, name=f"slurm-7.n{n}.gutil") for n in range(2)]
    monkeypatch.setattr(aggregates, "_WORTH_BYTES", 0)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _how: SimpleNamespace(Pool=pool))
    before = signal.getsignal(signal.SIGINT)
    assert len(gpus(*paths)) == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_ends_what_was_started_first(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left without this process, each would end with a traceback."""
    ended = []

    @contextmanager
    def pool(*_given: object) -> Iterator[SimpleNamespace]:
        try:
            yield SimpleNamespace(imap=lambda *_: signal.raise_signal(signal.SIGTERM))
        finally:
            ended.append("pool")

    paths = [written(3, name=f"slurm-7.n{n}.gutil") for n in range(2)]
    monkeypatch.setattr(aggregates, "_WORTH_BYTES", 0)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _how: SimpleNamespace(Pool=pool))
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit, match="143"):
            gpus(*paths)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == ["pool"]
