"""A hostile user: odd names, damaged files, full disks. One clear line, a right exit code."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from monitor.errors import UserError, emit
from monitor.live import target
from monitor.logs import files, gutil, log_events, reader, series
from monitor.logs.sample import GpuSample, HostSample
from monitor.plot import curves
from rundir import events
from rundir.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
EVIL = "\x1b[31mred\x1b]0;title\x07"


@pytest.fixture
def log(data: Path, tmp_path: Path) -> Path:
    """A log of two GPUs."""
    path = tmp_path / "log.gutil"
    path.write_bytes((data / "pumt_DT.550.163.01.2gpu.gutil").read_bytes())
    return path


# ---- what a terminal must not see ----------------------------------------------------------------


def test_a_message_is_one_line_and_moves_no_cursor(capfd: pytest.CaptureFixture[str]) -> None:
    """Names of files are anybody's."""
    emit(f"found a\nb{EVIL}\udcff")
    output = capfd.readouterr().err
    assert output == "monitor: found a\\nb\\x1b[31mred\\x1b]0;title\\x07\\udcff\n"
    assert printable("gpu-1 é 62 %") == "gpu-1 é 62 %"


@pytest.mark.parametrize("command", ["report", "report --full", "diagnose", "watch"])
def test_names_in_a_log_reach_no_terminal_as_they_are(command: str, log: Path, ask: Any) -> None:
    """Host, job, the text of an event, and the name of the file."""
    evil = log.with_name(f"slurm-7\x1b[2J.n\n1{EVIL}.gutil")
    row = log.read_text().splitlines()[-1]
    event = "## event: 2026-11-21T03:26:32.000+00:00 xid gpu=0 xid=79 text="
    event = f"{event}\x1b[31m\n{event}x\n"
    evil.write_text(f"{log.read_text()}## host: n2{EVIL}\n## job: 8{EVIL}\n{event}{row}\ntorn")
    _, out, err = ask(*command.split(), evil)
    assert err == ""
    assert not {"\x1b", "\x07"} & {*out}
    assert any("n2" in line for line in out.splitlines())


def test_names_stay_distinct(tmp_path: Path) -> None:
    """What cannot be shown is written so that two names stay two."""
    names = [files.named(os.fsdecode(b"slurm-7.n\xfe.gutil")), files.named("slurm-7.n\ufffd.gutil")]
    assert names == [("7", "n\\udcfe"), ("7", "n\ufffd")]
    assert gutil.parse_comment("## host: a\x07b") == ("host", "a\\x07b")
    assert log_events.parse("- xid gpu=0 text=\x1b[31m") is None
    path = tmp_path / "log.gutil"
    path.write_text("## event: - xid gpu=0 text=\x1b[31m\n")
    assert reader.read(str(path)).num_unreadable == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "diagnose", "export --format csv --out -"])
def test_a_name_that_is_no_text_is_no_trouble(command: str, log: Path) -> None:
    """In a locale whose output is strict."""
    evil = os.fsencode(log.parent) + b"/x\xff.gutil"
    Path(os.fsdecode(evil)).write_bytes(log.read_bytes() + b"torn\n")
    argv = [os.fsencode(one) for one in (sys.executable, "-m", "monitor", *command.split())]
    env = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C.UTF-8"}
    done = subprocess.run([*argv, evil], env=env, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


def test_the_live_view_shows_no_outcome_as_it_is(story: Any, ask: Any) -> None:
    """It is whatever the trainer's summary says."""
    story.start()
    story.train(0, 25, 5)
    story.add_event("summary", summary={"outcome": EVIL, "steps": 25})
    code, out, _ = ask("watch", story.write())
    assert (code, "\\x1b[31mred" in out, "\x1b" in out) == (0, True, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["json", "signal", "polars"])
def test_nothing_in_the_working_directory_is_run(name: str, log: Path) -> None:
    """It may be a run's that somebody else has made."""
    log.with_name(f"{name}.py").write_text("raise SystemExit('run')")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "monitor", "report", log]
    done = subprocess.run(argv, env=env, cwd=log.parent, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


# ---- where output goes ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report --json", "watch", "export --format csv --out -"])
def test_a_full_disk_is_one_line(command: str, log: Path) -> None:
    """Whatever writes last, and also what the interpreter would write at its end."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "monitor", *command.split(), str(log)],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
            text=True,
        )
    assert done.returncode == 64
    assert done.stderr == (
        "monitor: the output must have room; found No space left on device;"
        " make room, or write elsewhere\n"
    )


@pytest.mark.parametrize(("command", "suffix"), [("plot", ".svg"), ("html", ".html")])
def test_a_picture_replaces_no_pipe_and_no_log(
    command: str, suffix: str, log: Path, ask: Any
) -> None:
    """Nor a device, by a link with the right ending: as root that would be the machine's own."""
    pipe, link = log.with_name("pipe"), log.with_name(f"link{suffix}")
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    code, out, err = ask(command, log, "--out", link)
    assert (code, out, err.count("\n")) == (64, "", 1)
    assert "--out must be a regular file" in err
    assert pipe.is_fifo()
    named = log.rename(log.with_suffix(suffix))
    code, out, err = ask(command, named, "--out", named)
    assert (code, out, err.count("\n")) == (64, "", 1)
    assert "among the inputs" in err


@pytest.mark.slow
def test_a_closed_pipe_is_no_failure_of_watch(log: Path) -> None:
    """`watch | true`: rich alone would end with code 1."""
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-m", "monitor", "watch", str(log)]
    done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_ends_quietly(log: Path, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell expects of it, and without a traceback."""

    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("monitor.report.report.aggregates.count", interrupted)
    assert ask("report", log) == (128 + signal.SIGINT, "", "")


def test_a_terminal_of_one_column(story: Any, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any size that a terminal may claim."""
    story.start()
    story.train(0, 25, 5, saves=(10,))
    story.fail(1, 1, text="ValueError: x\n")
    run_dir = story.write()
    for columns in ("0", "1", "7", "x"):
        monkeypatch.setenv("COLUMNS", columns)
        assert ask("why", run_dir)[0::2] == (0, "")


@pytest.mark.parametrize(
    ("words", "program"),
    [("", ""), ("reprot x", ""), ("report --jsn x", " report"), ("why", " why")],
)
def test_a_wrong_command_line_names_the_help_to_read(words: str, program: str, ask: Any) -> None:
    """That of the subcommand, if there is such a one."""
    code, out, err = ask(*words.split())
    assert (code, out, err.count("\n")) == (64, "", 1)
    assert err.endswith(f"; run `python -m monitor{program} --help` for what there is\n")


# ---- what is no log ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["report", "diagnose", "export --format prometheus --out -"])
def test_a_device_without_an_end_is_refused(command: str, ask: Any) -> None:
    """It would fill the memory."""
    code, out, err = ask(*command.split(), "/dev/zero")
    assert (code, out, err.count("\n")) == (64, "", 1)
    assert "it is a device" in err


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (gzip.compress, "it is compressed"),
        (lzma.compress, "it is compressed, unpack it with xz first"),
        (bz2.compress, "it is compressed, unpack it with bzip2 first"),
        (lambda text: b"\x28\xb5\x2f\xfd" + text, "it is compressed, unpack it with zstd first"),
        (lambda text: text.decode().encode("utf-16"), "it is UTF-16"),
    ],
    ids=["gzip", "xz", "bzip2", "zstd", "utf-16"],
)
def test_what_is_no_text_says_so(
    made: Callable[[bytes], bytes], found: str, log: Path, ask: Any
) -> None:
    """In one line, instead of so many rows that cannot be read; it hides no other log."""
    other = log.with_name("other.gutil")
    other.write_bytes(log.read_bytes())
    log.write_bytes(made(log.read_bytes()))
    code, out, err = ask("report", log)
    assert (code, out, err.count("\n")) == (64, "", 1)
    assert found in err
    code, out, err = ask("report", log.parent)
    assert (code, err.count("\n"), "other" in out) == (0, 1, True)
    assert err.startswith(f"monitor: left out {log}: {found}")
    other.unlink()
    assert ask("report", log.parent)[0] == 64


@pytest.mark.parametrize("block_bytes", [1, 100, 2**22])
def test_a_byte_order_mark_costs_nothing(
    block_bytes: int, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As editors and PowerShell on Windows set it, with their ends of lines."""
    whole = reader.read(str(log))
    log.write_bytes(b"\xef\xbb\xbf" + log.read_bytes().replace(b"\n", b"\r\n"))
    monkeypatch.setattr(reader, "_BLOCK_BYTES", block_bytes)
    reported = reader.read(str(log))
    assert (reported.num_rows, reported.num_unreadable) == (whole.num_rows, 0)
    assert reported.values["pwr"].tolist() == whole.values["pwr"].tolist()


@pytest.mark.parametrize("command", ["report", "watch", "export --format csv --out -"])
def test_what_lies_beside_logs_is_no_trouble(command: str, log: Path, ask: Any) -> None:
    """A pipe without a writer, a directory named like a log, a link to itself."""
    out = log.parent / "out"
    (out / "run").mkdir(parents=True)
    (out / "run" / "events.jsonl").touch()
    log.rename(out / "slurm-7.n1.gutil")
    (out / "dir.gutil").mkdir()
    (out / "loop").symlink_to("loop")
    os.mkfifo(out / "pipe.gutil")
    code, reported, err = ask(*command.split(), out)
    assert (code, err) == (0, "")
    assert "n1" in reported


def test_the_newest_run_is_found_beside_a_link_to_itself(tmp_path: Path) -> None:
    """What cannot be looked at is no run."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").touch()
    (tmp_path / "loop").symlink_to("loop")
    found = target.resolve([], {"DDP_OUT": str(tmp_path)})
    assert found.run_dir == str(tmp_path / "run")


def test_copies_of_a_log_add_no_gaps(story: Any, ask: Any) -> None:
    """Three times the same rows: time under watch and energy are those of one."""
    host = HostSample(cpu_pct=3, mem_used_mib=12000)
    clocks = [f"04:{minute:02d}:{second:02d}" for minute in range(5) for second in (0, 15, 30, 45)]
    story.gutil("n1", *((clock, GpuSample(0, 300, sm_pct=90), host) for clock in clocks))
    one = story.run_dir.parent / "slurm-42.n1.gutil"
    whole = json.loads(ask("report", "--json", one)[1])["gpus"][0]
    for name in ("b", "c"):
        one.with_name(f"slurm-42.n1.{name}.gutil").write_text(f"## host: n1\n{one.read_text()}")
    one.write_text(f"## host: n1\n{one.read_text()}")
    (report,) = json.loads(ask("report", "--json", one.parent)[1])["gpus"]
    assert report["energy_kwh"] == whole["energy_kwh"] > 0
    assert report["hours"] == whole["hours"] > 0
    (series_of,) = series.load([str(one.parent)]).gpus
    assert np.nansum(series_of.steps_s) == 285


@pytest.mark.parametrize("path", ["", "/nowhere/x", f"/tmp/{'x' * 300}"])
@pytest.mark.parametrize(
    "command", ["report", "watch", "diagnose", "why", "export --format csv --out -"]
)
def test_a_path_to_nothing_is_one_line(command: str, path: str, ask: Any) -> None:
    """Also an empty one, and one that is too long."""
    code, out, err = ask(*command.split(), path)
    assert (code, out, err.count("\n")) == (64, "", 1)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "watch", "diagnose", "why", "export"])
def test_what_may_not_be_looked_into_is_one_line(command: str, story: Any, log: Path) -> None:
    """A run directory, and the directory it lies in; also for root, whose powers are taken away."""
    story.start()
    run_dir = story.write()
    log.rename(run_dir.parent / "slurm-42.n1.gutil")
    powers = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    argv = [*(powers if os.geteuid() == 0 else []), sys.executable, "-m", "monitor", command]
    argv += ["--format", "csv", "--out", "-"] if command == "export" else []
    closed = run_dir if command != "diagnose" else run_dir.parent
    closed.chmod(0o100 if closed != run_dir else 0)
    done = subprocess.run(
        [*argv, str(run_dir)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    closed.chmod(0o700)
    assert (done.returncode, done.stderr.count("\n")) == (64, 1), done.stderr
    assert "Permission denied" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "diagnose", "export --format csv --out -"])
def test_a_log_of_another_user_hides_no_other(command: str, log: Path) -> None:
    """In a directory it is left out with a line; by name, or alone, it is refused."""
    hidden = log.with_name("hidden.gutil")
    hidden.write_bytes(log.read_bytes())
    hidden.chmod(0)
    powers = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    argv = [*(powers if os.geteuid() == 0 else []), sys.executable, "-m", "monitor"]

    def ask_as_user(path: Path) -> subprocess.CompletedProcess[str]:
        words = [*argv, *command.split(), str(path)]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    done = ask_as_user(log.parent)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert done.stderr.startswith(f"monitor: left out {hidden}: ")
    assert "hidden" not in done.stdout
    assert ask_as_user(hidden).returncode == 64
    log.unlink()
    done = ask_as_user(log.parent)
    assert (done.returncode, "Permission denied" in done.stderr) == (64, True)


# ---- damaged runs --------------------------------------------------------------------------------


def test_numbers_and_characters_that_are_none() -> None:
    """A number that no float holds costs its line; half a character becomes a mark."""
    lines = [b'{"a": %d}' % 2**63, b'{"a": %d}' % (2**63 - 1), rb'{"a": "\ud800b\u0000"}']
    lines += [b'{"a": 1' + b"0" * 400 + b"}", rb'{"\udfff": ["\udfff", {"b": 1}]}']
    reported, num_unreadable = events.read(b"\n".join(lines))
    assert num_unreadable == 2
    assert reported == [{"a": 2**63 - 1}, {"a": "?b?"}, {"?": ["?", {"b": 1}]}]


HOSTILE = {
    "huge": 1e308,
    "negative": -(2**62),
    "list": [[]],
    "true": True,
    "text": EVIL,
    "half": "\ud800",
    "none": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_run_is_still_reported(name: str, story: Any, ask: Any) -> None:
    """Each key of each event and line of metrics with a value that it cannot have."""
    story.start()
    story.train(0, 25, 5, saves=(10, 20))
    story.fail(1, 1, text="ValueError: x\n")
    whole = story.write()
    lines = {kind: (whole / f"{kind}.jsonl").read_text() for kind in ("events", "metrics")}
    keys = {
        key for text in lines.values() for line in text.splitlines() for key in json.loads(line)
    }
    for key in sorted(keys - {"event"}):
        for kind, text in lines.items():
            reported = [json.loads(line) for line in text.splitlines()]
            spoiled = [one | ({key: HOSTILE[name]} if key in one else {}) for one in reported]
            (whole / f"{kind}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in spoiled))
        for command in (["why"], ["compose"]):
            code, out, err = ask(*command, whole)
            assert (code, err) == (0, ""), (key, command)
            assert "\x1b" not in out, (key, command)


@pytest.mark.parametrize("command", ["compose", "why"])
def test_a_run_of_which_no_event_is_left(command: str, tmp_path: Path, ask: Any) -> None:
    """A full disk leaves the file empty: a record that was composed before stays."""
    (tmp_path / "events.jsonl").touch()
    (tmp_path / "run.json").write_text("before")
    code, out, err = ask(command, tmp_path)
    assert (code, out, err.count("\n")) == (64, "", 1)
    assert "none in events.jsonl" in err
    assert (tmp_path / "run.json").read_text() == "before"


def test_a_loss_that_no_picture_can_show() -> None:
    """It counts as infinite: matplotlib's scales overflow."""
    time = "2026-11-21T12:00:00Z"
    lines = [{"time": time, "step": i, "loss": x} for i, x in enumerate((1.0, 1e308, -1e308))]
    found = curves.curves(lines)["loss"]
    assert found.values.tolist() == [1.0, float("inf"), float("-inf")]


@pytest.mark.parametrize("command", ["report", "diagnose", "export --format prometheus --out -"])
def test_an_offset_that_is_none(command: str, log: Path, ask: Any) -> None:
    """Python knows no zone of a day and more."""
    log.write_text(f"{log.read_text()}## utc_offset: +99:00\n{log.read_text()}")
    assert ask(*command.split(), log)[0::2] == (0, "")
    assert [gutil.parse_offset(x) for x in ("-01:30", "+23:59", "+24:00", "+01:60", "")] == [
        timedelta(hours=-1.5),
        timedelta(hours=23, minutes=59),
        None,
        None,
        None,
    ]


def test_without_permission_it_says_so(tmp_path: Path) -> None:
    """The folder and the reason, in one line."""
    with (
        pytest.raises(UserError, match="looked into; found /a: No such"),
        files.reading_folder("/a"),
    ):
        os.listdir(tmp_path / "none")  # noqa: PTH208


@pytest.mark.timeout(20)
def test_thresholds_without_end_are_one_line(log: Path, ask: Any) -> None:
    """Such as a device, by which the memory would get full."""
    code, _, err = ask("diagnose", "--thresholds", "/dev/zero", log)
    assert (code, err.count("\n"), "more than 1 MiB" in err) == (64, 1, True)
