"""`why`: one screen that a newcomer understands, whatever became of the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from monitor.logs.sample import GpuSample, HostSample
from monitor.runs import screen

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
TRACEBACK = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n'
SEEN = (
    "04:17:04",
    GpuSample(0, 62, 41, sm_pct=0, sm_clock_mhz=1980, throttle_bits=0),
    HostSample(cpu_pct=3, mem_used_mib=12000),
)


def ask(
    directory: Path, *options: str, programs: Path | None = None, limit_s: float = 20
) -> subprocess.CompletedProcess[str]:
    """Run `why`, with no Slurm at hand unless a test brings one."""
    path = f"{programs}:/usr/bin:/bin" if programs else "/nowhere"
    return subprocess.run(
        [sys.executable, "-m", "monitor", "why", str(directory), *options],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env={"PATH": path, "HOME": "/", "COLUMNS": "80", "LINES": "24", "TZ": "UTC"},
        cwd=ROOT,
    )


def shown(directory: Path, **how: Any) -> list[str]:
    """The screen, which fits a terminal of 80 x 24 and ends with what to do next."""
    done = ask(directory, **how)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 23, done.stdout
    assert all(len(line) <= 80 or len(line.split()) == 1 for line in lines), done.stdout
    assert any(line.startswith("next    ") for line in lines[-3:]), done.stdout
    return lines


def client(directory: Path, **programs: str) -> Path:
    """A Slurm client of a few words: the bodies of its programs by name."""
    folder = directory / "bin"
    folder.mkdir(exist_ok=True)
    for name, body in programs.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    return folder


def user(story: Any) -> None:
    """The input is wrong."""
    story.fail(0, 64, text="trainer: --lr: must be positive; found -1: give another\n")


def program(story: Any) -> None:
    """An exception far down, and long."""
    deep = "".join(f'  File "/w/m{n}.py", line {n}, in f{n}\n    f{n}()\n' for n in range(40))
    story.fail(1, 1, text=TRACEBACK + deep + f"ValueError: {'bad ' * 60}\n")


def crash(story: Any) -> None:
    """A segmentation fault, as faulthandler tells it."""
    text = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"
    )
    text += '  File "/w/kernel.py", line 7 in launch\n' + '  File "/w/x.py", line 1 in y\n' * 30
    story.fail(1, 139, "SEGV", text=text + "\nExtension modules: numpy, torch (total: 2)\n")


def hardware(story: Any) -> None:
    """An XID in the log, and a GPU that the monitor watched."""
    story.gutil("n2", SEEN, more="## xid: 79 GPU 0 has fallen off the bus\n")
    story.fail(1, 134, "ABRT", text="NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")


def lost(story: Any) -> None:
    """A node that does not answer."""
    story.say(0, "RuntimeError: Connection closed by peer\n")
    story.rank_end(0, 1)
    story.tell("lost_node", node="n2", how="slurmd does not answer")
    reason = "job 42 is requeued and will go on from step 10"
    story.tell("decision", decision="requeue", reason=reason, restarts=1, idle=0, exclude="n2")
    story.tell("end", code=137)


def network(story: Any) -> None:
    """Everybody lost everybody."""
    story.say(0, "RuntimeError: Connection reset by peer\n")
    story.rank_end(0, 1)
    story.fail(1, 1, text="RuntimeError: Connection closed by peer\n")


def storage(story: Any) -> None:
    """A full disk."""
    story.fail(0, 70, text=TRACEBACK + "OSError: [Errno 28] No space left on device\n")


def stop(story: Any, signal_name: str, reason: str) -> None:
    """A job that was asked to end."""
    story.tell("signal", signal=signal_name)
    story.rank_end(0, 75, requested=True)
    story.rank_end(1, 75, requested=True)
    story.tell("decision", decision="requeue", reason=reason, restarts=0, idle=0, exclude=None)
    story.tell("end", code=75)


def preempted(story: Any) -> None:
    """By Slurm."""
    stop(story, "TERM", "Slurm has requeued job 42, which will go on from step 20")


def time_limit(story: Any) -> None:
    """SIGUSR1 before it."""
    stop(story, "USR1", "job 42 is requeued and will go on from step 20")


def cancelled(story: Any) -> None:
    """By a person."""
    stop(story, "TERM", "no requeue: the job was cancelled; to go on: start again")
    story.events[-2]["decision"] = "fail"


def hung(story: Any) -> None:
    """A verdict with the stack."""
    told = {"rank": 1, "pid": 11, "step": 20, "top": "train.py:9 in load", "stack": "debug/s.txt"}
    story.tell("hang_report", node="n2", ranks=[told | {"state": "S", "age_s": 61.0}])
    text = "rank 1 on n2 (no GPU) has been in `data` for 61 s: train.py:9 in load"
    story.tell("verdict", kind="hung", rank=1, node="n2", gpu="no GPU", top=told["top"], text=text)
    story.rank_end(0, 137, "KILL")
    story.rank_end(1, 137, "KILL")
    story.tell("end", code=76)


def killed(story: Any) -> None:
    """A signal from nowhere."""
    story.fail(1, 137, "KILL")


TALES: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "user": (user, "rank 0 on n1 found its input or environment wrong", "[user; code 64]"),
    "program": (program, "rank 1 on n2 failed: ValueError: bad bad", "[program; code 1]"),
    "crash": (crash, "rank 1 on n2 crashed", "[program; SIGSEGV, code 139]"),
    "hardware": (hardware, "rank 1 on n2 was hit by a fault of its GPU", "[hardware;"),
    "lost": (lost, "rank 1 on n2 lost its node", "[hardware;"),
    "network": (network, "rank 0 on n1 lost its connection", "[network; code 1]"),
    "storage": (storage, "rank 0 on n1 found no room on the disk", "[storage; code 70]"),
    "preempted": (preempted, "STOPPED: the run made way for another job", "[preempted; code 75]"),
    "time limit": (time_limit, "the run was ended by the time limit", "[time limit; code 75]"),
    "cancelled": (cancelled, "STOPPED: the run was cancelled", "[cancelled; code 75]"),
    "hung": (hung, "rank 1 on n2 did no more steps", "[hung; code 76]"),
    "killed": (killed, "rank 1 on n2 was killed from outside", "[killed; SIGKILL, code 137]"),
}


@pytest.mark.parametrize("name", TALES)
def test_every_class_has_its_screen(story: Any, name: str) -> None:
    """What, where and class in the first line; what to do in the last; all of it in 80 x 24."""
    tale, happened, blamed = TALES[name]
    story.start()
    story.train(0, 25, 5, saves=(10, 20))
    tale(story)
    head = shown(story.write())[0]
    assert happened in head
    assert blamed in head


def test_the_advice_is_one_line_for_each_class() -> None:
    """The same classes as the contract's, and a sound end."""
    classes = {blamed.strip("[]").split(";")[0] for _, _, blamed in TALES.values()}
    assert set(screen.ADVICE) == classes | {None}
    assert all(len(text) < 100 for text in screen.ADVICE.values())


def test_the_evidence_is_on_the_screen(story: Any) -> None:
    """The rank's own words, the monitor's last sample of its GPU, the XID lines."""
    story.start()
    story.train(0, 25, 5, saves=(10, 20))
    hardware(story)
    text = "\n".join(shown(story.write()))
    assert "said    NVRM: Xid (PCI:0000:3b:00): 79" in text
    assert "fault   xid: 79 GPU 0 has fallen off the bus" in text
    assert "node    n2, GPU 0 at 04:17:04: busy 0 %, 62 W, 41 C, 1980 MHz, CPUs 3 %" in text
    assert "lost    5 steps" in text
    assert "sbatch --exclude=n2" in text
    assert "DDP_RUN_NAME=slurm-42" in text


def test_a_hang_shows_where_it_stands(story: Any) -> None:
    """The verdict's own line, the top of the stack, and the file with all of it."""
    story.start()
    hung(story)
    text = "\n".join(shown(story.write()))
    assert "verdict rank 1 on n2 (no GPU) has been in `data` for 61 s" in text
    assert "stack   train.py:9 in load (all of it: debug/s.txt)" in text


def test_a_crash_shows_the_top_of_its_stack(story: Any) -> None:
    """faulthandler writes the innermost call first, and thirty more."""
    story.start()
    crash(story)
    lines = shown(story.write())
    assert "said    Fatal Python error: Segmentation fault" in lines
    assert any('File "/w/kernel.py", line 7 in launch' in line for line in lines)


def test_an_exception_shows_its_end(story: Any) -> None:
    """The innermost frames, and the exception itself."""
    story.start()
    program(story)
    text = "\n".join(shown(story.write()))
    assert 'File "/w/m39.py", line 39, in f39' in text
    assert "ValueError: bad bad" in text.split("said", 1)[1]


def test_what_was_done_about_it(story: Any) -> None:
    """Earlier starts in a few words each, the last decision in its own."""
    for begin in (0, 20):
        story.start()
        story.train(begin, begin + 25, 5, saves=(begin + 10, begin + 20))
        story.fail(1, 137, "KILL")
        story.again()
    story.start()
    story.train(40, 50, saves=(50,))
    reason = "no restart: all 2 of DDP_MAX_RESTARTS are used"
    story.tell("decision", decision="fail", reason=reason, restarts=2, idle=0, exclude=None)
    story.fail(0, 1, text="ValueError: x\n")
    text = " ".join(" ".join(shown(story.write())).split())
    assert "start 3 of 3" in text
    assert (
        "start 1: rank 1 on n2 killed at step 25; start 2: rank 1 on n2 killed at step 45" in text
    )
    assert "not started again: all 2 of DDP_MAX_RESTARTS are used" in text
    assert "lost 10 steps" in text
    assert "between starts" in text


def test_a_slow_rank_is_named_with_what_was_seen(story: Any) -> None:
    """Also of a run that ended well."""
    story.gutil("n2", SEEN)
    story.start()
    story.train(0, 20)
    slow = {"rank": 1, "node": "n2", "ratio": 1.9}
    story.tell("summary", summary={"outcome": "finished", "steps": 20, "slow_ranks": [slow]})
    story.rank_end(0, 0)
    story.rank_end(1, 0)
    story.tell("end", code=0)
    lines = shown(story.write())
    assert lines[0] == "FINISHED: all ranks ended well"
    assert "slow    rank 1 on n2 took 1.9 x its peers' time a step: 1980 MHz, 41 C, CPUs 3 %" in (
        " ".join(line.strip() for line in lines)
    )


def test_slurms_own_word(story: Any, tmp_path: Path) -> None:
    """State, exit code and reason, from the controller, else from the accounting."""
    story.start()
    killed(story)
    told = "JobId=42 JobName=x JobState=NODE_FAIL Reason=NodeDown ExitCode=0:9 NodeList=n[1-2]"
    programs = client(tmp_path, scontrol=f"echo '{told}'", sacct="exit 1")
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


def test_a_cancelled_command_was_stopped(story: Any) -> None:
    """Whatever code its program makes of SIGTERM."""
    story.start(command=("--", "sleep", "9"))
    story.tell("signal", signal="TERM")
    story.rank_end(0, 143, "TERM", requested=True)
    reason = "no requeue: the job was cancelled; to go on: start again"
    story.tell("decision", decision="fail", reason=reason, restarts=0, idle=0, exclude=None)
    story.tell("end", code=143)
    assert shown(story.write())[0] == "STOPPED: the run was cancelled [cancelled; code 143]"


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
    """Its state names the class where nobody else could."""
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
    told = "JobId=42 JobState=RUNNING SubmitTime=2026-11-22T00:00:00 ExitCode=0:0"
    programs = client(tmp_path, scontrol=f"echo '{told}'", sacct="exit 1")
    assert shown(story.run_dir, programs=programs)[0].startswith("KILLED: ")


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


def test_torn_files(story: Any) -> None:
    """Garbage in each file costs its line, and is counted."""
    story.start()
    story.train(0, 25, 5)
    killed(story)
    run_dir = story.write()
    for name in ("events.jsonl", "metrics.jsonl", "logs/rank-1.log"):
        with (run_dir / name).open("ab") as file:
            file.write(b'\xff\xfe\x00{"time": "torn\x1b[2J')
    (run_dir.parent / "slurm-42.n2.gutil").write_bytes(b"#Date\xff\x00 Time\n 2026\x1b")
    text = "\n".join(shown(run_dir))
    assert "2 torn lines left out" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("kind", ["none", "file", "empty", "no events"])
def test_a_directory_that_is_none(tmp_path: Path, kind: str) -> None:
    """One line with a remedy, code 64."""
    path = tmp_path / kind
    if kind == "file":
        path.write_text("x")
    elif kind != "none":
        path.mkdir()
    if kind == "no events":
        (path / "events.jsonl").write_text("torn{\n")
    done = ask(path)
    assert done.returncode == 64
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "name the directory of a run" in done.stderr


def test_json(story: Any) -> None:
    """The same, for programs: one document."""
    story.start()
    story.train(0, 25, 5, saves=(20,))
    storage(story)
    done = ask(story.write(), "--json")
    found = json.loads(done.stdout)
    assert found["state"] == "ended"
    assert found["attempt"]["failure"]["class"] == "storage"
    assert (found["steps_lost"], found["slurm"]) == (5, None)
    assert found["next"].startswith("see that the disk has room")


def test_it_starts_fast(story: Any) -> None:
    """Neither polars nor rich nor NVML is imported, for `why` as for `compose`."""
    story.start()
    killed(story)
    run_dir = story.write()
    code = (
        "import sys; from monitor import cli; sys.argv[1:];"
        f"assert cli.main(['why', {str(run_dir)!r}]) == 0;"
        f"assert cli.main(['compose', {str(run_dir)!r}]) == 0;"
        "found = {'polars', 'rich', 'pynvml', 'psutil', 'torch'} & set(sys.modules);"
        "sys.exit(repr(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- real runs -----------------------------------------------------------------------------------


def start(directory: Path, *args: str, **env: str) -> subprocess.Popen[bytes]:
    """Start the batch script with two ranks in place, in a session of its own."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    settings = {"DDP_PYTHON": sys.executable, "DDP_NPROC_PER_NODE": "2"}
    return subprocess.Popen(
        [ROOT / "jobs/prelaunch.sh", *args],
        cwd=directory,
        env=kept | settings | {"DDP_MONITOR_INTERVAL": "1"} | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    """The events of a name in the one run below a directory."""
    found = [path.read_text().splitlines() for path in directory.glob("out/*/events.jsonl")]
    lines = [json.loads(line) for line in (found[0] if found else []) if line.endswith("}")]
    return [line for line in lines if line["event"] == name]


def test_a_run_that_goes_on_and_is_then_killed(tmp_path: Path, until: Any) -> None:
    """Still running while its ranks live; killed when everything of it got SIGKILL at once."""
    process = start(tmp_path, "--", "bash", "-c", "echo hello; exec sleep 60")
    try:
        until(lambda: len(events(tmp_path, "rank_up")) == 2)
        (run_dir,) = tmp_path.glob("out/*/")
        assert shown(run_dir)[0].startswith("STILL RUNNING: no step yet, last line ")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    pids = [event["pid"] for event in events(tmp_path, "rank_up")]
    until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))
    head = shown(run_dir)[0]
    assert head == "KILLED: the run was killed and could not say why [killed; no exit code]"


@pytest.mark.slow
def test_a_real_failure(tmp_path: Path) -> None:
    """Rank 1 raises; rank 0, which waits for it, is ended; the screen shows the traceback."""
    program_text = (
        "import os, time; time.sleep(0.3); 1 // (1 - int(os.environ['RANK'])); time.sleep(60)"
    )
    process = start(tmp_path, "--", sys.executable, "-c", program_text)
    assert process.wait(60) == 1
    (run_dir,) = tmp_path.glob("out/*/")
    lines = shown(run_dir)
    assert "failed: ZeroDivisionError: integer" in lines[0]
    assert lines[0].endswith("[program; code 1]")
    assert any("ZeroDivisionError: integer division" in line for line in lines[2:])
    assert any(line.startswith("node    ") for line in lines)


@pytest.mark.slow
def test_real_restarts(tmp_path: Path) -> None:
    """Two starts with causes of their own: each is told by its own words."""
    program_text = (
        "import os, sys; first = os.environ['DDP_ATTEMPT'] == '1';"
        "sys.exit('OSError: [Errno 28] No space left on device' if first else 'KeyError: 7')"
    )
    process = start(
        tmp_path, "--", sys.executable, "-c", program_text, DDP_MAX_RESTARTS="1",
        DDP_MAX_IDLE_RESTARTS="9",
    )  # fmt: skip
    assert process.wait(60) == 1
    (run_dir,) = tmp_path.glob("out/*/")
    attempts = json.loads((run_dir / "run.json").read_text())["attempts"]
    assert [one["failure_class"] for one in attempts] == ["storage", "program"]
    assert [one["decision"]["decision"] for one in attempts] == ["restart", "fail"]
    text = " ".join(" ".join(shown(run_dir)).split())
    assert "start 2 of 2" in text
    assert "not started again: all 1 of DDP_MAX_RESTARTS are used" in text
