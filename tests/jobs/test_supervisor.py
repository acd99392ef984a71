"""The supervisor's own surroundings: a Python to run it, and somebody who reads what it prints."""

from __future__ import annotations

import ast
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from jobs.backends.base import Layout, Step
from jobs.loop import Loop
from jobs.supervisor.journal import Journal
from jobs.supervisor.reports import Reports
from jobs.supervisor.step import RunningStep
from rundir import channel, events
from rundir.paths import RunDir
from tests.conftest import Cluster
from tests.jobs.alive import gone
from tests.jobs.backend import Fake
from tests.jobs.said import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Scripts

ROOT = Path(__file__).resolve().parents[2]


def run_without_python(
    scripts: Scripts, tmp_path: Path, first: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs the batch script, after what a shell does first, where nothing is a Python."""
    for part in ("jobs", "rundir"):
        shutil.copytree(scripts.root / part, tmp_path / "project" / part)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "dirname", "readlink", "uname"):
        (programs / name).symlink_to(shutil.which(name) or name)
    return subprocess.run(
        ["bash", "-c", f"{first}\nexec {tmp_path}/project/jobs/prelaunch.sh -- true"],
        env={"PATH": str(programs)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_host_without_a_python(scripts: Scripts, tmp_path: Path) -> None:
    """One line with both remedies, and nothing is written."""
    done = run_without_python(scripts, tmp_path)
    assert done.returncode == 64
    assert "found none on " in one_line(done.stderr)
    assert "set DDP_PYTHON" in done.stderr
    assert "--container-image" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_python_that_does_not_start_in_a_directory_that_is_gone(
    scripts: Scripts, tmp_path: Path
) -> None:
    """As pyenv's: it is the directory that is told."""
    (tmp_path / "gone").mkdir()
    remove = f"cd gone; {shutil.which('rmdir')} ../gone"
    done = run_without_python(scripts, tmp_path, remove)
    assert done.returncode == 64
    assert "the working directory must exist; found it gone" in one_line(done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "</dev/null >&- 2>&-", "| true"])
def test_closed_files_do_not_stop_the_job(scripts: Scripts, closed: str) -> None:
    """Lines are lost then, not the run."""
    script = f'"$0" -- bash -c "echo hi" {closed}'
    subprocess.run(
        ["bash", "-c", script, scripts.root / "jobs" / "prelaunch.sh"],
        cwd=scripts.directory,
        env=scripts.env,
        check=False,
        capture_output=True,
    )
    (path,) = scripts.directory.glob("out/*/events.jsonl")
    found, num_unreadable = events.read(path.read_bytes())
    assert num_unreadable == 0
    assert [event["code"] for event in found if event["event"] in {"rank_end", "end"}] == [0, 0, 0]


@pytest.mark.slow
def test_a_reader_that_stops_does_not_stop_the_job(
    scripts: Scripts, patience: Callable[[float], float]
) -> None:
    """As a pager does, or a terminal after Ctrl-S: the log files have it all."""
    text = "for i in {1..100000}; do echo a line of some thirty characters; done"
    began_s = time.monotonic()
    process = scripts.start("prelaunch.sh", "--", "bash", "-c", text)
    assert process.stderr is not None
    told = process.stderr.read()  # to its end, and standard output not at all
    assert "all 2 ranks finished" in told
    assert time.monotonic() - began_s < patience(30)
    scripts.finish(process)
    (log,) = scripts.directory.glob("out/*/logs/rank-1.log")
    assert log.read_text().count("\n") == 100_000


@pytest.mark.slow
def test_a_signal_ends_a_job_whose_lines_nobody_reads(
    scripts: Scripts, patience: Callable[[float], float]
) -> None:
    """Standard error may be the pipe that the ranks' lines have filled."""
    text = "head -c 300000 /dev/zero | tr '\\0' a; echo; sleep 60"
    reader, writer = os.pipe()
    job = subprocess.Popen(
        [scripts.root / "jobs" / "prelaunch.sh", "--", "bash", "-c", text],
        cwd=scripts.directory,
        env=scripts.env | {"DDP_GRACE": "2"},
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
    )
    try:
        logs = "out/*/logs/rank-?.log"
        written = [300_001, 300_001]
        Cluster.until(
            lambda: [log.stat().st_size for log in scripts.directory.glob(logs)] == written, 20, ""
        )
        Cluster.until(lambda: not select.select([], [writer], [], 0)[1], 20, "the pipe is full")
        job.send_signal(signal.SIGTERM)
        assert job.wait(patience(15)) == 143
    finally:
        job.kill()
        os.close(reader)
        os.close(writer)
    assert gone(str(scripts.directory))


@pytest.mark.slow
def test_a_standard_output_that_does_not_block_loses_nothing(scripts: Scripts) -> None:
    """A parent that reads its end without blocking may have made both ends so."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    text = "for i in {1..20000}; do echo a line of some thirty characters; done"
    job = subprocess.Popen(
        [scripts.root / "jobs" / "prelaunch.sh", "--", "bash", "-c", text],
        cwd=scripts.directory,
        env=scripts.env,
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    data = b""
    while piece := os.read(reader, 1 << 15):
        data += piece
        time.sleep(0.01)
    assert job.wait() == 0
    assert data.count(b"] a line of some thirty characters\n") == 40_000


class Shell(Fake):
    """Starts a shell for the step."""

    is_in_place = True

    def start(self, step: Step, stdout: int) -> list[subprocess.Popen[bytes]]:
        """Start it."""
        return [subprocess.Popen(step.arguments, stdout=stdout, env=step.environ)]

    def note_step(self, step_id: int | None) -> None:
        """It has no number."""


@pytest.mark.slow
def test_what_a_step_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    """A process that detached itself may hold the pipe for ever; what was written is taken."""
    taken: list[bytes] = []
    events.EventLog(taken.append, "launcher", 1, "n").write("rank_up", rank=0, node="n")
    (tmp_path / "frames").write_bytes(b"text" + channel.frames(taken[0], "1") + b"more\n")
    words = ["bash", "-c", f"setsid sleep 30 & cat {tmp_path}/frames; exit 3"]
    loop = Loop()
    journal = Journal(loop, RunDir(str(tmp_path)), "n")
    journal.open(1)
    layout = Layout(1, 1, 1, 1)
    step = Step(words, dict(os.environ), layout, ["n"], str(tmp_path), is_restart=False)
    passed: list[bytes] = []
    output = SimpleNamespace(put=passed.append)
    began_s = time.monotonic()
    now: Any = SimpleNamespace(loop=loop, output=output, plan=SimpleNamespace(backend=Shell()))
    running = RunningStep(now, step, journal, grace_s=5)
    loop.run(running.is_over)
    running.close()
    journal.close()
    assert time.monotonic() - began_s < 15
    assert running.code == 3
    assert b"".join(passed) == b"textmore\n"
    assert (tmp_path / "events.jsonl").read_bytes() == taken[0]
    assert journal.reports.up == {0: "n"}


def test_another_attempts_reports_are_no_matter() -> None:
    """Only those of this attempt are looked at."""
    reports = Reports(1)
    line = b'{"event": "rank_up", "attempt": 11, "rank": 0, "node": "n"}\n'
    reports.add(line)
    reports.add(b"\0\0\0 noise\n")
    assert reports.events == []
    assert reports.knows(line.strip())


def test_what_a_node_could_not_deliver_is_taken(tmp_path: Path) -> None:
    """Once: the same line may have arrived before."""
    loop = Loop()
    journal = Journal(loop, RunDir(str(tmp_path)), "n")
    journal.open(1)
    lines: list[bytes] = []
    log = events.EventLog(lines.append, "launcher", 1, "n2")
    log.write("rank_end", rank=0, node="n2", code=0, requested=False)
    log.write("rank_end", rank=1, node="n2", code=3, requested=False)
    journal.add(lines[0])
    (tmp_path / "events.n2.jsonl").write_bytes(lines[0] + lines[1])
    journal.close()
    assert (tmp_path / "events.jsonl").read_bytes() == lines[0] + lines[1]
    assert not (tmp_path / "events.n2.jsonl").exists()
    assert journal.reports.failed_s is not None


@pytest.mark.parametrize("folder", ["jobs", "rundir"])
def test_it_is_written_in_python_3_9(folder: str) -> None:
    """A host's Python may be as old; what is newer in the library the linter knows."""
    for path in (ROOT / folder).rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 9))


def test_it_imports_nothing_that_is_installed() -> None:
    """It runs where nothing is, on Python 3.9 and later."""
    code = "import sys; sys.path.insert(0, '.'); import jobs.supervisor.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"trainer", "monitor", "torch", "numpy", "asyncio"} & set(done.stdout.split())
