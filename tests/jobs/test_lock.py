"""Two jobs on the same run name: the second waits or refuses, and they never write together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from jobs.messages import UsageError
from jobs.supervisor.lock import ORPHANS, Lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Scripts

pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds

RUN = {"DDP_RUN_NAME": "mine", "DDP_NPROC_PER_NODE": "1"}
FOREIGN = "elsewhere pid:[1] 77 88 local.1.77"  # an owner on another machine


def wait_for(path: Path, text: str, timeout_s: float = 30) -> None:
    """Waits until the file holds the text."""
    deadline = time.monotonic() + timeout_s
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, f"no {text} in {path}"
        time.sleep(0.02)


def begin(scripts: Scripts, *command: str) -> subprocess.Popen[str]:
    """A first job on the run, with its rank up."""
    process = scripts.start("prelaunch.sh", "--", *command, **RUN)
    wait_for(scripts.directory / "out" / "mine" / "events.jsonl", "rank_up")
    return process


def lock(scripts: Scripts, line: str) -> Path:
    """Leaves a lock as another owner would."""
    run_dir = scripts.directory / "out" / "mine"
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / "lock.7"
    path.write_text(f"{line}\n")
    return path


def test_a_second_job_is_refused(scripts: Scripts) -> None:
    """It ends with 64 and one line that names the owner and the remedies; it writes nothing."""
    first = begin(scripts, "sleep", "60")
    run_dir = scripts.directory / "out" / "mine"
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    second = scripts.run("prelaunch.sh", "--", "true", **RUN)
    assert second.code == 64
    last = second.err.splitlines()[-1]
    assert f"belongs to process {first.pid} on {socket.gethostname()}" in last
    assert "DDP_ON_BUSY=wait" in last
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before
    first.terminate()
    assert scripts.finish(first).code == 143


def _broken_link(path: Path) -> None:
    path.symlink_to("nowhere")


def _other_text(path: Path) -> None:
    path.write_bytes(b"\xff")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, _broken_link, _other_text])
def test_what_no_job_has_made_is_no_jobs_lock(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    """It is named; nobody waits for a job that there is not."""
    make(tmp_path / "lock.1")
    lock = Lock(str(tmp_path), "local.1.7", None, job="", restarts="0", grace_s=25)
    with pytest.raises(UsageError, match=f"must be a text file .*{tmp_path}/lock.1.*; remove it"):
        lock.attempt()
    assert [path.name for path in tmp_path.iterdir()] == ["lock.1"]


def test_a_lock_that_is_gone_by_now_has_just_been_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next owner removes it."""
    monkeypatch.setattr("rundir.lock.newest", lambda _run_dir: 1)
    lock = Lock(str(tmp_path), "local.1.7", None, job="", restarts="0", grace_s=25)
    assert lock.attempt() == "another job that has just taken it"


def test_a_lock_is_written_through_no_link(tmp_path: Path) -> None:
    """Where others may write, it may lead to a file of this user's."""
    (tmp_path / "mine").write_text("kept")
    (tmp_path / ".lock-local.1.7").symlink_to("mine")
    lock = Lock(str(tmp_path), "local.1.7", None, job="", restarts="0", grace_s=25)
    with pytest.raises(UsageError, match="no file can be written"):
        lock.attempt()
    assert lock.attempt() == ""
    (tmp_path / "lock.1.new").symlink_to("mine")
    lock.release()
    assert (tmp_path / "mine").read_text() == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="to give a file away needs root")
@pytest.mark.parametrize("job", ["99", "-"])
def test_another_users_lock_is_held_while_it_is_renewed(tmp_path: Path, job: str) -> None:
    """Of other users Slurm (PrivateData) and /proc (hidepid) may show nothing."""
    gone: Any = SimpleNamespace(is_listed=lambda _job: False)
    mine = Lock(str(tmp_path), "7.1.7", gone, job="7", restarts="0", grace_s=25)
    namespace = Path("/proc/self/ns/pid").readlink()
    theirs = tmp_path / "lock.1"
    theirs.write_text(f"{job} 0 {socket.gethostname()} {namespace} {2**22 + 1} 88 local.1.77\n")
    os.chown(theirs, 1234, 1234)
    assert mine.attempt() != ""
    os.utime(theirs, (1, 1))
    assert mine.attempt() == ""


def test_a_second_job_waits_its_turn(scripts: Scripts) -> None:
    """DDP_ON_BUSY=wait: it says so once, and begins when the first has ended."""
    first = begin(scripts, "sleep", "6")
    second = scripts.run("prelaunch.sh", "--", "true", DDP_ON_BUSY="wait", **RUN)
    assert second.code == 0, second.err
    assert second.err.count("waiting for the run mine") == 1
    assert scripts.finish(first).code == 0
    names = [event["event"] for event in second.events if event["event"] in {"start", "end"}]
    assert names == ["start", "end", "start", "end"]
    assert [event["attempt"] for event in second.of("start")] == [1, 2]


@pytest.mark.parametrize(
    ("owner", "delays"),
    [("job 7 on n1", [2, 4, 8, 16, 32, 60, 60, 60]), (f"{ORPHANS}, job 7", [2] * 8)],
)
def test_who_waits_for_hours_asks_ever_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, delays: list[int]
) -> None:
    """Up to a minute apart; what a killed script left is gone in seconds."""
    answers, paused = [owner] * 8 + [""], list[float]()
    monkeypatch.setattr(Lock, "attempt", lambda _self: answers.pop(0))
    lock = Lock(str(tmp_path), "local.1.7", None, job="", restarts="0", grace_s=25)
    lock.take(paused.append, lambda: False, may_wait=True, report_every_s=9999)
    assert paused == delays


def test_a_signal_ends_the_wait(scripts: Scripts, patience: Callable[[float], float]) -> None:
    """SIGTERM while it waits: nothing was started, and the owner is not disturbed."""
    first = begin(scripts, "sleep", "60")
    settings = RUN | {"DDP_ON_BUSY": "wait", "TMPDIR": str(scripts.directory)}
    second = scripts.start("prelaunch.sh", "--", "true", **settings)
    assert second.stderr is not None
    assert any("waiting for the run mine" in line for line in second.stderr)  # which it traps
    began = time.monotonic()
    second.send_signal(signal.SIGTERM)
    result = scripts.finish(second)
    assert time.monotonic() - began < patience(4)
    assert result.code == 75
    assert "nothing was started" in result.err.splitlines()[-1]
    assert first.poll() is None
    first.terminate()
    scripts.finish(first)
    assert not list(scripts.directory.glob("ddp-*"))


def test_a_dead_owners_lock_is_taken_over(scripts: Scripts) -> None:
    """kill -9 of the script leaves its lock behind, and nobody has to remove it."""
    first = begin(scripts, "sleep", "60")
    first.kill()
    scripts.finish(first)
    assert list((scripts.directory / "out" / "mine").glob("lock.*"))
    second = scripts.run("prelaunch.sh", "--", "true", **RUN)
    assert second.code == 0, second.err


def test_a_daemon_that_a_dead_owner_left_is_not_waited_for_for_ever(scripts: Scripts) -> None:
    """After the ranks' grace it is none of them."""
    line = f"- 0 {socket.gethostname()} {Path('/proc/self/ns/pid').readlink()} 77 1 local-1.2.77"
    lock(scripts, line)
    env = {"PATH": "/usr/bin:/bin", "DDP_LAUNCH_ID": "local-1.1.77"}
    with subprocess.Popen(["sleep", "60"], env=env) as daemon:
        second = scripts.run("prelaunch.sh", "--", "true", DDP_GRACE="1", **RUN)
        daemon.kill()
    assert second.code == 0, second.err
    assert "the ranks of a script that was killed, process 77" in second.err


SAVES = "trap '' TERM; echo ready; sleep 4; echo saved >>$DDP_RUN_DIR/told; kill -9 $$"


def test_what_a_dead_owner_left_ends_first(scripts: Scripts) -> None:
    """Ranks whose script was killed have a grace to save in: nobody writes beside them."""
    first = begin(scripts, "bash", "-c", SAVES)
    run_dir = scripts.directory / "out" / "mine"
    wait_for(run_dir / "logs" / "rank-0.log", "ready")
    first.kill()
    first.wait()
    second = scripts.run("prelaunch.sh", "--", "bash", "-c", "echo new >>$DDP_RUN_DIR/told", **RUN)
    assert second.code == 0, second.err
    assert second.err.count("it belongs to the ranks of a script that was killed, process") == 1
    assert (run_dir / "told").read_text() == "saved\nnew\n"
    scripts.finish(first)


def test_of_several_takers_one_wins(scripts: Scripts) -> None:
    """Eight jobs find the same dead owner: one runs, and the others are refused."""
    lock(scripts, f"- 0 {socket.gethostname()} pid:[0] 1 1 dead.1.1")
    old = scripts.directory / "out" / "mine" / "lock.7"
    os.utime(old, (1, 1))
    jobs = [scripts.start("prelaunch.sh", "--", "sleep", "8", **RUN) for _ in range(8)]
    codes = sorted(scripts.finish(each).code for each in jobs)
    assert codes == [0] + [64] * 7
    (events,) = scripts.directory.glob("out/*/events.jsonl")
    assert events.read_text().count('"event": "start"') == 1


@pytest.mark.parametrize(("age_s", "code"), [(5, 64), (120, 0)])
def test_an_owner_on_another_machine_must_renew(scripts: Scripts, age_s: int, code: int) -> None:
    """Without Slurm a lock renewed within a minute is alive, an older one is dead."""
    path = lock(scripts, f"- 0 {FOREIGN}")
    then = time.time() - age_s
    os.utime(path, (then, then))
    assert scripts.run("prelaunch.sh", "--", "true", **RUN).code == code


@pytest.mark.parametrize(
    ("owner", "listed", "code"),
    [
        ("99 0", "echo RUNNING", 64),
        ("99 0", "echo PENDING", 64),
        ("99 0", "echo COMPLETING", 64),
        ("99 0", "true", 0),
        ("99 0", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", 0),
        ("99 0", "echo 'Socket timed out on send/recv operation' >&2; exit 1", 64),
        ("4242 0", "echo RUNNING", 0),
        ("4242 -", "echo RUNNING", 0),
    ],
)
def test_slurm_knows_whether_the_owner_lives(
    scripts: Scripts, owner: str, listed: str, code: int
) -> None:
    """Another job that Slurm lists owns the run; this job itself, before its requeue, does not."""
    scripts.fake_slurm(socket.gethostname())
    scripts.fake("squeue", listed)
    lock(scripts, f"{owner} {FOREIGN}")
    result = scripts.run("prelaunch.sh", "--", "true", DDP_RUN_NAME="mine", SLURM_RESTART_COUNT="1")
    assert result.code == code, result.err
    if code:
        assert "belongs to job 99 on elsewhere" in result.err.splitlines()[-1]


def test_a_signal_while_slurm_is_asked_ends_the_wait_too(scripts: Scripts, tmp_path: Path) -> None:
    """Nobody writes any more when the last line is said."""
    scripts.fake_slurm(socket.gethostname())
    asked = tmp_path / "asked"
    scripts.fake("squeue", f"echo >>'{asked}'; sleep 0.5; echo RUNNING")
    lock(scripts, f"99 0 {FOREIGN}")
    second = scripts.start("prelaunch.sh", "--", "true", DDP_ON_BUSY="wait", DDP_RUN_NAME="mine")
    assert second.stderr is not None
    assert any("waiting for the run mine" in line for line in second.stderr)
    seen = asked.stat().st_size
    while asked.stat().st_size == seen:
        time.sleep(0.01)
    second.send_signal(signal.SIGTERM)
    result = scripts.finish(second)
    assert result.code == 75
    assert "nothing was started" in result.err.splitlines()[-1]
