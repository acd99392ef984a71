"""`python -m monitor diagnose`: what it reads, prints, and ends with; its thresholds."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from monitor import cli
from monitor.analysis import engine, findings, thresholds
from monitor.analysis.engine import evaluate, skipped
from monitor.analysis.findings import Finding
from monitor.analysis.thresholds import MEANINGS, Thresholds
from monitor.errors import UserError
from monitor.logs import gutil, log_events, series
from monitor.logs.log_events import LogEvent
from monitor.logs.sample import GpuSample, HostSample, Row
from monitor.report import findings as findings_text
from rundir import xids
from tests.monitor.made_runs import NUM_SAMPLES, at, first, gpu, mark, run
from tests.monitor.unread import run_unread

REPOSITORY = Path(__file__).parents[3]
SHARED = REPOSITORY.parent / "shared" / "dmon"
NOON = datetime(2026, 11, 21, 12)  # noqa: DTZ001
Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write a log of ours of an hour: `busy(cycle)` is how busy its GPU is."""

    def write(
        busy: Callable[[int], int | None] = lambda _: 95,
        *events: LogEvent,
        name: str = "slurm-7.n1.gutil",
    ) -> Path:
        layout = gutil.Layout("pumth")
        lines = layout.header() + gutil.comment("utc_offset", "+01:00")
        lines += gutil.comment("job", "7") + gutil.comment("host", name.split(".")[1])
        for cycle in range(NUM_SAMPLES):
            alive = busy(cycle) is not None
            known = {"power_w": 600, "temp_c": 60, "fb_used_mib": 9000, "sm_pct": busy(cycle)}
            sample = GpuSample(index=0, **(known if alive else {}))
            row = Row(NOON + timedelta(seconds=15 * cycle), sample, HostSample(40, 2048))
            lines += layout.block([row], cycle)
        path = tmp_path / name
        path.write_text(lines + "".join(log_events.line(event, UTC) for event in events))
        return path

    return write


def idle_from_100(num: int) -> Callable[[int], int]:
    """Idle for so many samples."""
    return lambda cycle: 0 if 100 <= cycle < 100 + num else 95


def test_the_exit_status_tells_a_script(
    written: Written, capfd: pytest.CaptureFixture[str]
) -> None:
    """0 nothing or a hint, 3 a warning, 4 an error; as a crash ends with 1, 1 is none of them."""
    well = str(written())
    assert cli.main(["diagnose", well]) == 0
    assert capfd.readouterr().out.startswith("7: nothing found; 1 GPU on 1 node, 2026-11-21 12:00")
    assert cli.main(["diagnose", str(written(idle_from_100(40)))]) == 3
    lost = str(written(lambda cycle: None if cycle > 200 else 95))
    assert cli.main(["diagnose", lost]) == 4
    assert "ERROR    lost: n1 GPU 0, 2026-11-21 12:50:15 to 12:59:45" in capfd.readouterr().out
    hint = Finding(rule="memory", severity="hint", host="n1", gpu=0, begin_s=None, end_s=None,
                   evidence="", suggestion="")  # fmt: skip
    assert findings.status([]) == findings.status([hint]) == 0
    assert not {1, 2, 64} & set(findings.STATUS.values())


def test_as_a_program(written: Written) -> None:
    """From the shell: the findings on stdout, nothing on stderr."""
    xid = LogEvent(NOON.replace(tzinfo=UTC).timestamp(), "xid", 0, {"xid": "79"})
    command = [sys.executable, "-m", "monitor", "diagnose", str(written(lambda _: 95, xid))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (4, "")
    assert "XID 79: the GPU has fallen off the bus (the hardware's fault)" in done.stdout


def test_json_has_the_same_numbers(written: Written, capfd: pytest.CaptureFixture[str]) -> None:
    """Every finding with all its parts, the rules that were skipped, and the thresholds."""
    path = str(written(idle_from_100(40)))
    assert cli.main(["diagnose", "--json", "--set", "idle_minutes=9.5", path]) == 3
    output = json.loads(capfd.readouterr().out)
    chosen = Thresholds(idle_minutes=9.5)
    found = evaluate(series.load([path]), chosen)
    assert output["findings"] == [asdict(one) for one in found]
    assert [one["rule"] for one in output["findings"]] == ["idle"]
    assert output["thresholds"] == chosen.as_dict()
    assert (output["status"], output["num_gpus"], output["num_nodes"]) == (3, 1, 1)
    assert {"rule": "disk", "lacks": "disk", "hosts": []} in output["not_looked"]
    cli.main(["diagnose", "--set", "idle_minutes=9.5", path])
    assert found[0].evidence in " ".join(capfd.readouterr().out.split())


def test_thresholds_by_option_and_by_file(
    written: Written, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file of them, and options that win over it."""
    path = str(written(idle_from_100(40)))  # ten minutes
    file = tmp_path / "mine.toml"
    file.write_text("idle_minutes = 11  # as we like it\ndisk_pct = 80.5\n")
    by_file = ["diagnose", "--thresholds", str(file), path]
    assert cli.main(by_file) == 0
    assert cli.main([*by_file, "--set", "idle_minutes=10"]) == 3
    capfd.readouterr()
    assert cli.main(["diagnose", "--list-rules", "--thresholds", str(file)]) == 0
    assert "disk_pct=80.5            this share of the log's disk in use (usually 95)" in (
        capfd.readouterr().out
    )


def test_a_fact_without_a_name_is_none(written: Written) -> None:
    """A damaged line of the log."""
    path = written(idle_from_100(40))
    path.write_text(path.read_text() + "## : x\n")
    assert cli.main(["diagnose", str(path)]) == 3


def test_former_names_of_thresholds_still_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Scripts and files of a site may have them; the list has the new ones only."""
    file = tmp_path / "mine.toml"
    file.write_text("stray_mib = 9\nstray_minutes = 5\n")
    at = thresholds.chosen(["stray_minutes=7"], str(file))
    assert (at.unattributed_mib, at.unattributed_minutes) == (9, 7)
    assert cli.main(["diagnose", "--list-rules", "--thresholds", str(file)]) == 0
    listed = capfd.readouterr().out
    assert "unattributed_mib=9 " in listed
    assert "stray" not in listed


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["idle=5"], "a threshold must be one of those there are; found idle; take one of busy_sm"),
        (["idle_minutes"], "--set must be name=number; found idle_minutes; write for example"),
        (["idle_minutes=x"], "threshold idle_minutes must be a number; found x; write for"),
        (["idle_minutes=-1"], "must be a number from 0 or more; found -1; it is 3 unless"),
        (["idle_minutes=inf"], "must be a number from 0 or more; found inf"),
        (["idle_minutes=nan"], "must be a number from 0 or more; found nan"),
        (["idle_pct=101"], "idle_pct must be a number from 0 to 100; found 101; it is 5 unless"),
    ],
)
def test_a_wrong_threshold_is_the_users_business(
    settings: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line, and code 64; nothing is read before."""
    options = [word for setting in settings for word in ("--set", setting)]
    assert cli.main(["diagnose", *options, "/nowhere"]) == 64
    captured = capfd.readouterr()
    assert message in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"idle_minutes: 5", "must be a TOML file of lines such as idle_minutes = 5"),
        (b"\xff", "must be a TOML file"),
        (b"idle_minutes = true", "idle_minutes must be a number; found True"),
        (b"[mine]\nidle_minutes = 5", "must be one of those there are; found mine"),
    ],
)
def test_a_wrong_file_of_thresholds_is_the_users_business(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    """As one line that names the file or the threshold."""
    file = tmp_path / "mine.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        thresholds.chosen([], str(file))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("words", [[], ["/nowhere/at-all"], ["--set"]])
def test_wrong_input_is_code_64(words: list[str]) -> None:
    """No path, one that is not there, an option without its value."""
    assert cli.main(["diagnose", *words]) == 64


def test_every_threshold_is_some_rules_and_is_reported() -> None:
    """The table, the rules and the list of them go together."""
    used = {name for rule in engine.rules() for name in rule.thresholds}
    assert used == set(MEANINGS) == set(Thresholds().as_dict())
    output = "\n".join(findings_text.rule_list(Thresholds()))
    assert all(f"  {rule.name} " in output for rule in engine.rules())
    assert all(f"  {name}=" in output for name in MEANINGS)
    assert "usually" not in output
    assert max(map(len, output.splitlines())) <= 100


def test_the_page_of_the_manual_has_the_list_of_rules() -> None:
    """As --list-rules writes it: no threshold is described in two ways."""
    page = (REPOSITORY / "docs" / "monitor.md").read_text()
    listed = "\n".join(findings_text.rule_list(Thresholds()))
    output = "".join(f"    {line}".rstrip() + "\n" for line in listed.split("\n"))
    assert output in page


def test_the_worst_comes_first() -> None:
    """Errors, warnings, hints; of a rule the heaviest, in the order of the rules."""
    looked_at = run(
        gpu(0, sm=at(first(20), 0, 95), fb=20_000, disk=99, dfree=0),
        gpu(1, sm=at(first(60), 0, 95), fb=20_000),
        log_events=(mark("xid", xid="79"),),
    )
    found = [(one.severity, one.rule, one.gpu) for one in evaluate(looked_at)]
    assert found == [
        ("error", "xid", 0),
        ("warning", "idle", 1),
        ("warning", "idle", 0),
        ("warning", "disk", None),
        ("hint", "memory", 0),
        ("hint", "memory", 1),
    ]


def test_without_times_rules_that_need_them_are_skipped(tmp_path: Path) -> None:
    """As of `nvidia-smi dmon` without `-o`: nothing found is not all well."""
    path = tmp_path / "dmon.gutil"
    rows = "    0     70      0      0 \n" * 600
    path.write_text(f"# gpu    pwr     sm    mem \n# Idx      W      %      % \n{rows}")
    whole = series.load([str(path)])
    assert evaluate(whole) == []
    assert [one.rule for one in skipped(whole) if one.lacks == "times"] == ["hung", "idle", "gap"]


@pytest.mark.parametrize("command", ["diagnose", "report"])
def test_a_reader_that_has_read_nothing_says_so(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An empty run directory, one whose log has no row, and a run whose logs were not copied."""
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "events.jsonl").touch()
    assert cli.main([command, str(empty)]) == 64
    assert "found none" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["diagnose", "report"])
def test_a_run_is_known_by_a_link_to_it(
    written: Written, command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its logs lie beside the directory, or beside the link."""
    log = written()
    run_dir = tmp_path / "slurm-7"
    run_dir.mkdir()
    (run_dir / "events.jsonl").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = elsewhere / "newest"
    link.symlink_to(run_dir)
    assert cli.main([command, str(link)]) == 0
    assert "1 GPU" in capfd.readouterr().out
    run_dir.rename(tmp_path / "kept")  # under another name only the link has the job
    link.unlink()
    link = tmp_path / "slurm-7"
    link.symlink_to(tmp_path / "kept")
    assert log.exists()
    assert cli.main([command, str(link)]) == 0
    assert "1 GPU" in capfd.readouterr().out


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_its_status_counts_also_where_its_output_is_not_read(
    unbuffered: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind `| head`, however Python buffers what it prints."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    assert run_unread("diagnose", data / "pumt_DT.550.163.01.gpu1_lost.gutil") == ["4"]


def test_a_python_without_our_packages_is_one_line() -> None:
    """`make demo` installs them into .venv; Debian's own python3 has none."""
    bare = [sys._base_executable, "-S", "-m", "monitor", "diagnose", "."]  # type: ignore[attr-defined]  # noqa: SLF001
    ended = subprocess.run(bare, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 64
    assert ended.stderr.startswith("monitor: Python must have our packages; found no numpy in ")
    assert ended.stderr.count("\n") == 1


def test_a_python_that_is_too_old_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`why` and `compose` need no package, and ended in a traceback on 3.9."""
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    assert cli.main(["why", "."]) == 64
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("monitor: Python must be 3.11 or later; found ")


@pytest.mark.parametrize(
    "folder", [Path(__file__).parents[1] / "data", SHARED], ids=["data", "shared"]
)
def test_true_dmon_logs_of_every_series(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each alone and all together: no error but a lost GPU, where there is one."""
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    paths = sorted(folder.glob("*.gutil"))
    for path in paths:
        is_lost = "lost" in path.name or "missing" in path.name
        assert cli.main(["diagnose", str(path)]) == (4 if is_lost else 0)
    assert cli.main(["diagnose", str(folder)]) == 4
    assert "gpu1_lost GPU 1" in capfd.readouterr().out


def test_alerts_name_the_same_faults() -> None:
    """The example's alerts and the table of XIDs agree whose fault a number is."""
    alerts = (REPOSITORY / "examples" / "prometheus" / "ddp-alerts.yml").read_text()
    listed = [
        {int(number) for number in numbers.split("|")}
        for numbers in re.findall(r'xid=~"([\d|]+)"', alerts)
    ]
    errors = [
        {
            number
            for number, xid in xids.XIDS.items()
            if (xid.owner, xid.severity) == (owner, "error")
        }
        for owner in ("hardware", "program")
    ]
    assert listed == errors


def test_every_name_of_an_xid_belongs_to_a_meaning() -> None:
    """A name whose number has no meaning would be dropped without a word."""
    assert set(xids._NAMES) <= set(xids.XIDS)  # noqa: SLF001
    assert xids.look_up("79").name == "GPU has fallen off the bus"
    assert xids.look_up("9999").name == xids.look_up("8").name == "-"
