"""`python -m monitor export` as users run it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor import cli
from monitor import whole_file as export_write
from monitor.errors import UserError
from tests import uncovered
from tests.monitor.unread import run_unread

pytestmark = pytest.mark.slow

Log = Callable[..., Path]


def export(form: str, out: Path | str, *words: object) -> int:
    """Run the command in this process; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signal, "signal", lambda *_: None)  # this process is the tests'
        return cli.main(["export", "--format", form, "--out", str(out), *map(str, words)])


def samples(path: Path) -> dict[str, float]:
    """Values of samples, by name; of several the last."""
    families = text_string_to_metric_families(path.read_text())
    return {s.name: s.value for family in families for s in family.samples}


def test_the_file_is_whole_and_readable_by_others(log: Log, tmp_path: Path) -> None:
    """Whatever the umask; a file that was there is replaced, and nothing lies beside it."""
    path = log("slurm-7.n1.gutil")
    out = tmp_path / "collector" / "ddp.prom"
    out.parent.mkdir()
    out.write_text("old")
    before = out.stat().st_ino
    umask = os.umask(0o077)
    try:
        assert export("prometheus", out, path) == 0
    finally:
        os.umask(umask)
    assert out.stat().st_mode & 0o777 == 0o644
    assert out.stat().st_ino != before
    assert samples(out)["ddp_gpu_power_watts"] == 102
    assert [p.name for p in out.parent.iterdir()] == ["ddp.prom"]
    assert export("openmetrics", out, path) == 0
    assert out.read_text().endswith("# EOF\n")


@pytest.mark.parametrize("form", ["prometheus", "csv"])
def test_a_closed_standard_output_is_one_line(
    log: Log, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], form: str
) -> None:
    """As with `>&-`: Python has none then."""
    monkeypatch.setattr(sys, "stdout", None)
    assert export(form, "-", log("slurm-7.n1.gutil")) == 64
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("form", "num_lines"), [("prometheus", 0), ("csv", 1)])
def test_only_rows_miss_what_was_compressed(
    log: Log, tmp_path: Path, capfd: pytest.CaptureFixture[str], form: str, num_lines: int
) -> None:
    """Metrics are of the current log: they do not repeat every few seconds what they leave out."""
    path = log("slurm-7.n1.gutil")
    path.with_name(f"{path.name}.1.gz").touch()
    for named in (path, tmp_path):
        assert export(form, tmp_path / "x", named) == 0
        assert capfd.readouterr().err.count("\n") == num_lines


def test_a_link_is_followed(log: Log, tmp_path: Path) -> None:
    """What it leads to is replaced, and the link stays."""
    real, link = tmp_path / "real.prom", tmp_path / "link.prom"
    link.symlink_to(real)
    assert export("prometheus", link, log("slurm-7.n1.gutil")) == 0
    assert link.is_symlink()
    assert "ddp_gpu_up" in samples(real)


@pytest.mark.parametrize("form", ["prometheus", "openmetrics", "csv", "jsonl"])
def test_text_can_go_to_the_standard_output(
    log: Log, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], form: str
) -> None:
    """The same as into a file."""
    path, out = log("slurm-7.n1.gutil"), tmp_path / "file"
    assert export(form, "-", path) == 0
    printed = capfdbinary.readouterr().out
    assert export(form, out, path) == 0
    lines = [line for line in printed.splitlines() if b"ddp_export_timestamp" not in line]
    written = out.read_bytes().splitlines()
    assert lines == [line for line in written if b"ddp_export_timestamp" not in line]
    assert len(lines) > 5


@pytest.mark.parametrize("form", ["prometheus", "csv"])
def test_a_run_whose_events_cannot_be_read_hides_no_logs(
    log: Log, tmp_path: Path, form: str
) -> None:
    """It may be another user's, in the same directory."""
    log("slurm-100.n1.gutil")
    (tmp_path / "mine" / "events.jsonl").mkdir(parents=True)
    (tmp_path / "mine" / "metrics.jsonl").write_text("")
    assert export(form, tmp_path / "x", tmp_path) == 0
    assert "100" in (tmp_path / "x").read_text()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["csv", "x.csv", "none.gutil"], "none.gutil"),
        (["prometheus", "x.prom", "none.gutil"], "none.gutil"),
        (["prometheus", "x.prom", "empty"], "found none in empty"),
        (["csv", "x.csv", "empty"], "found none in empty"),
        (["csv", "x.csv", "run"], "found none for run"),
        (["csv", "no/x.csv", "a.gutil"], "no/x.csv: No such file"),
        (["prometheus", "no/x.prom", "a.gutil"], "no/x.prom: No such file"),
        (["prometheus", "empty", "a.gutil"], "regular file"),
        (["prometheus", "/dev/null", "a.gutil"], "regular file"),
        (["csv", "a.gutil", "a.gutil"], "among the inputs"),
        (["csv", "a.gutil", "."], "among the inputs"),
        (["prometheus", "a.gutil", "."], "among the inputs"),
        (["jsonl", "run/metrics.jsonl", "run", "a.gutil"], "among the inputs"),
        (["parquet", "-", "a.gutil"], "must be a file for parquet"),
        (["csv", "x.csv", "a.gutil", "--follow", "5"], "--follow must go with metrics"),
        (["jsonl", "x.csv", "a.gutil", "--max-age", "5"], "--max-age must go with metrics"),
        (["prometheus", "x.prom", "a.gutil", "--follow", "0"], "between 1 and 86400"),
        (["prometheus", "x.prom", "a.gutil", "--follow", "nan"], "between 1 and 86400"),
        (["prometheus", "-", "a.gutil", "--follow", "5"], "must have a file"),
        (["prometheus", "x.prom", "a.gutil", "--max-age", "-1"], "above 0"),
        (["yaml", "x.prom", "a.gutil"], "invalid choice"),
        (["prometheus", "x.prom"], "PATHS"),
    ],
)
def test_wrong_input_is_one_line_and_64_and_leaves_nothing(  # noqa: PLR0913, PLR0917 - fixtures
    log: Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: list[str],
    found: str,
) -> None:
    """No file, no temporary file, and what was there stays."""
    path = log("a.gutil")
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("run").mkdir()
    Path("run/metrics.jsonl").write_text("")
    kept = {p: p.is_file() and p.read_bytes() for p in tmp_path.rglob("*")}
    assert export(*words) == 64
    out, captured = capfd.readouterr()
    assert (out, captured.count("\n")) == ("", 1)
    assert found in captured
    assert {p: p.is_file() and p.read_bytes() for p in tmp_path.rglob("*")} == kept
    assert path.exists()


def test_what_fails_while_it_writes_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """Any failure, a full disk among them."""
    out = tmp_path / "x"
    out.write_text("old")
    for error, seen in ((OSError(28, "No space left"), UserError), (KeyError(), KeyError)):
        with pytest.raises(seen), export_write.beside(str(out)) as path:  # noqa: PT012 - so far
            Path(path).write_text("half")
            raise error
    assert (out.read_text(), list(tmp_path.iterdir())) == ("old", [out])


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_a_disk_that_gets_full_is_one_line(form: str, data: Path, tmp_path: Path) -> None:
    """polars has names of its own for it."""
    log, out = data / "pumt_DT.550.163.01.2gpu.gutil", tmp_path / "x"
    argv = [sys.executable, "-m", "monitor", "export", "--format", form, "--out", out, log]
    limits = ["prlimit", "--fsize=100"]  # which the measuring of coverage would meet, too
    env = uncovered.environment()
    done = subprocess.run([*limits, *argv], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (64, 1)
    assert "--out must be a file that can be written; found" in done.stderr
    assert "None" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: int, code: int) -> None:
    """In the middle of reading a log; its exit code says which signal it was."""
    log = tmp_path / "a.gutil"
    os.mkfifo(log)
    command = [sys.executable, "-m", "monitor", "export", "--format", "csv"]
    process = subprocess.Popen([*command, "--out", tmp_path / "x.csv", log])
    with log.open("wb"):  # it waits until somebody reads
        assert len(list(tmp_path.iterdir())) == 3  # the log, the file, the scratch directory
        process.send_signal(number)
    assert process.wait(timeout=20) == code
    assert list(tmp_path.iterdir()) == [log]


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start `export --follow`; ended with the test."""
    started = []

    def start(*words: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "monitor", "export", "--format", "prometheus"]
        command += ["--out", str(tmp_path / "ddp.prom"), *map(str, words)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_following_writes_anew_until_it_is_asked_to_end(
    log: Log,
    tmp_path: Path,
    until: Callable[..., None],
    follower: Callable[..., "subprocess.Popen[str]"],
) -> None:
    """New logs are found, a time without any is endured, and at the end the file is gone."""
    out = tmp_path / "ddp.prom"
    path = log("in/slurm-7.n1.gutil")
    process = follower("--follow", "1", path.parent)
    until(out.exists)
    log("in/slurm-7.n2.gutil")
    until(lambda: 'node="n2"' in out.read_text())
    for gone in path.parent.iterdir():
        gone.unlink()
    time.sleep(1.5)  # a turn without logs, which leaves the file as it is
    assert process.poll() is None
    log("in/slurm-7.n3.gutil")
    until(lambda: 'node="n3"' in out.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
    assert process.stderr is not None
    output = process.stderr.read()
    assert output.count("\n") == 1
    assert "found none in" in output
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_following_nothing_is_the_users_fault(
    tmp_path: Path, follower: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """At the first poll; later it may come back."""
    process = follower("--follow", "1", tmp_path)
    assert process.wait(timeout=20) == 64
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error(log: Log) -> None:
    """`export … --out - | head` ends quietly."""
    for form in ("csv", "prometheus"):
        assert run_unread("export", "--format", form, "--out", "-", log("a.gutil")) == ["0"]
