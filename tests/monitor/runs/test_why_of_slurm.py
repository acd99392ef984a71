"""`why` asks Slurm, too: what it knows of a run's end, and whether it still runs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.monitor.asked_why import killed, shown, time_limit

if TYPE_CHECKING:
    from pathlib import Path


def client(directory: Path, **programs: str) -> Path:
    """A Slurm client of a few words: the bodies of its programs by name."""
    folder = directory / "bin"
    folder.mkdir(exist_ok=True)
    for name, body in programs.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    return folder


def test_slurms_own_word(story: Any, tmp_path: Path) -> None:
    """State, exit code and reason, from the controller, else from the accounting."""
    story.start()
    killed(story)
    reported = "JobId=42 JobName=x JobState=NODE_FAIL Reason=NodeDown ExitCode=0:9 NodeList=n[1-2]"
    reported += (
        " Command=/x/prelaunch.sh -- env ExitCode=1:0 SubmitLine=sbatch x Reason=None WorkDir=/"
    )
    programs = client(tmp_path, scontrol=f"echo '{reported}'", sacct="exit 1")
    assert "Slurm   job 42 NODE_FAIL, exit code 0:9, reason NodeDown" in shown(
        story.write(), programs=programs
    )
    programs = client(
        tmp_path, scontrol="exit 1", sacct="echo 'OUT_OF_MEMORY|0:125|None|n[1-2]|Unknown'"
    )
    lines = shown(story.run_dir, programs=programs)
    assert "Slurm   job 42 OUT_OF_MEMORY, exit code 0:125" in lines
    assert lines[0].endswith("used more memory than it may [program; SIGKILL, code 137]")


@pytest.mark.parametrize(
    ("decision", "state", "head"),
    [
        ("requeue", "PENDING", "WAITING in Slurm's queue; before, the run was ended by the time"),
        ("requeue", "RUNNING", "STARTING AGAIN; before, the run was ended by the time limit"),
        ("restart", "RUNNING", "STARTING AGAIN; before, "),
        ("fail", "COMPLETING", "STOPPED: the run was ended by the time limit"),
    ],
)
def test_between_two_starts(
    story: Any, tmp_path: Path, decision: str, state: str, head: str
) -> None:
    """The attempt has ended and the run has not: Slurm and the decision tell."""
    story.start()
    story.train(0, 25, 5, saves=(25,))
    time_limit(story)
    story.events[-2]["decision"] = decision
    programs = client(tmp_path, scontrol=f"echo 'JobId=42 JobState={state} ExitCode=0:0'")
    assert shown(story.write(), programs=programs)[0].startswith(head)


def test_a_run_that_goes_on_has_its_time_until_now(story: Any, tmp_path: Path) -> None:
    """Also of a command that tells nothing; a job that runs has no exit code yet."""
    story.now_s = time.time() - 7200
    story.start(command=("--", "sleep", "9"))
    programs = client(tmp_path, scontrol="echo 'JobId=42 JobState=RUNNING ExitCode=0:0'")
    text = "\n".join(shown(story.write(), programs=programs))
    assert "time    2 h 00 min: the command itself 100 %" in text
    assert "Slurm   job 42 RUNNING\n" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "head"),
    [
        ("OUT_OF_MEMORY", "used more memory than it may [program; no exit code]"),
        ("NODE_FAIL", "lost its node [hardware; no exit code]"),
        ("TIMEOUT", "was ended by the time limit [time limit; no exit code]"),
        ("PREEMPTED", "made way for another job [preempted; no exit code]"),
        ("CANCELLED", "was cancelled [cancelled; no exit code]"),
        ("FAILED", "was killed and could not say why [killed; no exit code]"),
    ],
)
def test_slurm_knows_what_a_killed_run_could_not_say(
    story: Any, tmp_path: Path, state: str, head: str
) -> None:
    """Its state names the class where nothing else could."""
    story.start()
    story.train(0, 25, 5)
    programs = client(tmp_path, scontrol=f"echo 'JobId=42 JobState={state} ExitCode=0:9'")
    assert shown(story.write(), programs=programs)[0].endswith(head)


@pytest.mark.slow
def test_a_slurm_that_does_not_answer_is_not_waited_for(story: Any, tmp_path: Path) -> None:
    """Five seconds, and the screen is there without it."""
    story.start()
    killed(story)
    began = time.monotonic()
    programs = client(tmp_path, scontrol="exec sleep 60", sacct="exec sleep 60")
    text = "\n".join(shown(story.write(), programs=programs))
    assert time.monotonic() - began < 12
    assert "Slurm" not in text


def test_a_job_of_another_cluster_is_not_ours(story: Any, tmp_path: Path) -> None:
    """Job ids begin anew elsewhere: one submitted long after the run's last word is not asked."""
    story.start()
    story.write()
    for path in story.run_dir.rglob("*"):
        os.utime(path, (story.now_s, story.now_s))
    reported = "JobId=42 JobState=RUNNING SubmitTime=2026-11-22T00:00:00 ExitCode=0:0"
    programs = client(tmp_path, scontrol=f"echo '{reported}'", sacct="exit 1")
    assert shown(story.run_dir, programs=programs)[0].startswith("NO END REPORTED: last word ")


def test_a_copy_of_a_run_is_not_taken_for_the_run(story: Any, tmp_path: Path) -> None:
    """Its files are new, what they hold is old: it is unknown here whether it still runs."""
    story.start()
    story.train(0, 25, 5)
    story.write()
    for path in story.run_dir.rglob("*"):
        path.touch()
    shown_here = shown(story.run_dir, programs=client(tmp_path, scontrol="exit 1", sacct="exit 1"))
    assert shown_here[0].startswith("NO END REPORTED: last word ")


@pytest.mark.parametrize(
    ("state", "head"),
    [
        ("RUNNING", "STILL RUNNING: step 25, last line "),
        ("PENDING", "WAITING in Slurm's queue; before, "),
        ("FAILED", "KILLED: the run was killed and could not say why"),
    ],
)
def test_slurm_knows_whether_it_still_runs(
    story: Any, tmp_path: Path, state: str, head: str
) -> None:
    """A run without an end runs, waits, or was killed."""
    story.start()
    story.train(0, 25, 5)
    story.logs[0] = "step 25\n"
    programs = client(tmp_path, scontrol=f"echo 'JobId=42 JobState={state} ExitCode=0:0'")
    lines = shown(story.write(), programs=programs)
    assert lines[0].startswith(head)
    assert any(line.startswith("lost    25 steps") for line in lines) == (state != "RUNNING")
    log = story.run_dir / "logs/rank-0.log"  # whole, to be copied
    assert (lines[-1].strip() == str(log)) == (state == "RUNNING")
