"""launcher.sh as a whole: what a supervisor reads of it, what it costs, who reads no more."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from rundir import channel, events, procfs
from tests.conftest import Cluster
from tests.jobs.alive import sleeps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Launch = Callable[..., subprocess.Popen[bytes]]

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
SUPERVISED = {"DDP_SUPERVISED": "1", "DDP_MONITOR": "0"}


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start launchers of single ranks, and leave none behind."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*command: str, root: Path = ROOT, **env: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [root / "jobs" / "launcher.sh", "--", *command],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "DDP_NODE": "n1"} | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_a_supervisor_reads_events_and_log_from_one_stream(launch: Launch, tmp_path: Path) -> None:
    """Also those of the rank's own processes; and no file of events is written."""
    program = (
        "import os; from rundir.channel import reporter;"
        "reporter(os.environ['DDP_RUN_DIR'], 'n1')(b'{\"event\": \"first_step\"}\\n'); print('hi')"
    )
    python = str(ROOT / ".venv" / "bin" / "python")
    out, _ = launch(python, "-c", program, PYTHONPATH=str(ROOT), **SUPERVISED).communicate()
    text, lines = channel.FrameReader().feed(out)
    names = [event["event"] for event in map(events.parse, lines) if event]
    assert names == ["rank_up", "first_step", "rank_end"]
    assert text == b"[0] hi\n"
    assert not list(tmp_path.glob("out/*/events*"))


def test_why_a_rank_does_not_start_is_reported(launch: Launch, tmp_path: Path) -> None:
    """In the job's log and, to its supervisor, as the rank's failure."""
    (tmp_path / "out").touch()
    agent = launch("true", **SUPERVISED)
    (line,) = channel.FrameReader().feed(agent.communicate()[0])[1]
    event = events.parse(line) or {}
    assert (agent.returncode, event["event"], event["rank"]) == (64, "failure", 0)
    assert (event["host"], event["error"][:34]) == ("n1", "the run directory must be writable")


def wait_for_rank(agent: subprocess.Popen[bytes]) -> None:
    """Read what the agent reports until its rank is up."""
    assert agent.stdout is not None
    while b"rank_up" not in os.read(agent.stdout.fileno(), 4096):
        assert agent.poll() is None


def test_an_agent_that_waits_costs_next_to_nothing(launch: Launch) -> None:
    """No wake-up, and less than 15 MB, of which most is shared with the node's others.

    From Python 3.14 on typing.NamedTuple imports ast, which takes 1.5 MB more.
    """
    agent = launch("sleep", "60", **SUPERVISED)
    wait_for_rank(agent)
    before = sleeps(agent.pid)
    status = Path(f"/proc/{agent.pid}/smaps_rollup").read_text()
    limit_kb = 15_000 if sys.version_info < (3, 14) else 17_000
    assert int(status.split("Rss:")[1].split()[0]) < limit_kb
    time.sleep(2)
    assert sleeps(agent.pid) == before


def test_a_stuck_log_of_the_job_stays_no_rank(launch: Launch, tmp_path: Path) -> None:
    """The rank trains on, is killed in time, and what was to be told is kept."""
    fills = "trap '' TERM; head -c 3000000 /dev/zero | tr '\\0' '\\n'; echo full >&2; "
    agent = launch("bash", "-c", fills + "while :; do sleep 0.1; done", DDP_GRACE="1", **SUPERVISED)
    Cluster.until(
        lambda: any(b"full" in p.read_bytes() for p in tmp_path.glob("out/*/logs/rank-0.log")),
        20,
        "the rank has written more than a pipe holds",
    )
    time.sleep(0.5)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(30) == 137
    (kept,) = tmp_path.glob("out/*/events.n1.jsonl")
    names = [event["event"] for event in map(events.parse, kept.read_bytes().splitlines()) if event]
    assert names == ["rank_end"]


def test_an_agent_whose_standard_files_are_closed(tmp_path: Path) -> None:
    """What a rank prints, 10 among it, went to the pipe by which the agent gets its signals."""
    rank = "trap 'echo GOT USR1' USR1; [ -e /dev/stdin ] && echo hi; sleep 1 & wait; wait"
    done = subprocess.run(
        [
            "bash",
            "-c",
            '"$0" "$@" <&- >&-',
            ROOT / "jobs" / "launcher.sh",
            "--",
            "bash",
            "-c",
            rank,
        ],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "DDP_MONITOR": "0"},
        check=False,
    )
    assert done.returncode == 0
    (log,) = tmp_path.glob("out/*/logs/rank-0.log")
    assert log.read_text() == "hi\n"


def test_a_job_that_nobody_supervises_any_more(launch: Launch, tmp_path: Path) -> None:
    """`kill -9` of the supervisor: its ranks are recorded all the same."""
    agent = launch("bash", "-c", "echo a; sleep 1; echo b; exit 3", **SUPERVISED)
    assert agent.stdout is not None
    os.read(agent.stdout.fileno(), 4096)
    agent.stdout.close()
    agent.stdout = None
    assert agent.wait(20) == 3
    (kept,) = tmp_path.glob("out/*/events.n1.jsonl")
    assert events.parse(kept.read_bytes().splitlines()[-1])["code"] == 3


def test_the_nodes_first_rank_waits_for_those_that_only_start(
    launch: Launch, tmp_path: Path
) -> None:
    """Its command may end before they begin: without its monitor nobody would watch them."""
    node = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_ADDR": "n1"}
    node |= {"MASTER_PORT": "12345", "DDP_SUPERVISED": "1", "DDP_LAUNCH_ID": tmp_path.name}
    node |= {"DDP_OUT": str(tmp_path / "out"), "DDP_JOB_ID": "7"}
    first = launch("true", RANK="0", LOCAL_RANK="0", **node)
    log = tmp_path / "out" / "slurm-7.n1.gutil"
    Cluster.until(lambda: log.exists() and log.stat().st_size, 30, "the monitor has begun")
    time.sleep(1)
    assert first.poll() is None
    second = launch("sleep", "2", RANK="1", LOCAL_RANK="1", **node)
    assert second.wait(30) == 0
    assert first.wait(30) == 0
    assert b'"monitor_end"' in first.communicate()[0]


@pytest.mark.parametrize(("signum", "is_told"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_a_monitor_that_dies(
    launch: Launch, tmp_path: Path, signum: signal.Signals, *, is_told: bool
) -> None:
    """Nobody watches any more: the job's log says so while it runs. If asked to, it may end."""
    node = {"DDP_SUPERVISED": "1", "DDP_OUT": str(tmp_path / "out"), "DDP_JOB_ID": "7"}
    agent = launch("sleep", "4", **node)
    log = tmp_path / "out" / "slurm-7.n1.gutil"
    Cluster.until(lambda: log.exists() and log.stat().st_size, 30, "the monitor has begun")
    (monitor,) = (
        child for child in psutil.Process(agent.pid).children() if "monitor" in child.cmdline()
    )
    monitor.send_signal(signum)
    out, err = agent.communicate(timeout=30)
    told = b"the monitor of n1 was killed by signal 9 (SIGKILL), code 137: no more GPU" in err
    assert (agent.returncode, told, out.count(b'"monitor_end"')) == (0, is_told, 1), err


def test_a_log_that_cannot_be_written(launch: Launch, tmp_path: Path) -> None:
    """One line, and 64; nothing runs."""
    log = tmp_path / "out" / "slurm-7" / "logs" / "rank-0.log"
    log.mkdir(parents=True)
    agent = launch("touch", "ran", DDP_OUT=str(tmp_path / "out"), DDP_JOB_ID="7")
    out, err = agent.communicate(timeout=30)
    assert (agent.returncode, out) == (64, b"")
    (line,) = err.decode().splitlines()
    assert line == (
        f"launcher: a rank's log must be writable; found Is a directory at {log}; make room there,"
        " or remove what is in its place"
    )
    assert not (tmp_path / "ran").exists()


def test_a_monitor_whose_log_cannot_be_written(launch: Launch, tmp_path: Path) -> None:
    """The rank runs without one."""
    log = tmp_path / "out" / "slurm-7" / "logs" / "monitor-n1.log"
    log.mkdir(parents=True)
    agent = launch("echo", "hi", DDP_OUT=str(tmp_path / "out"), DDP_JOB_ID="7")
    out, err = agent.communicate(timeout=30)
    assert (agent.returncode, out) == (0, b"[0] hi\n")
    assert err.decode() == f"launcher: no monitor on n1: Is a directory at {log}\n"


def test_a_monitor_whose_log_is_a_pipe(launch: Launch, tmp_path: Path) -> None:
    """It would not even be opened, because nobody reads it."""
    log = tmp_path / "out" / "slurm-7" / "logs" / "monitor-n1.log"
    log.parent.mkdir(parents=True)
    os.mkfifo(log)
    agent = launch("echo", "hi", DDP_OUT=str(tmp_path / "out"), DDP_JOB_ID="7")
    out, err = agent.communicate(timeout=30)
    assert (agent.returncode, out) == (0, b"[0] hi\n")
    assert err.decode() == f"launcher: no monitor on n1: No such device or address at {log}\n"


STARTER = """
import subprocess, sys, time
words = [sys.argv[1], "--", "sleep", "60"]
agent = subprocess.Popen(words, stdout=subprocess.PIPE)
while b"rank_up" not in agent.stdout.readline(): pass
print(agent.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("is_hung_up", [False, True])
def test_a_rank_whose_starter_is_dead_is_killed(tmp_path: Path, *, is_hung_up: bool) -> None:
    """As slurmstepd: srun would wait for it for ever, and nobody would learn of its end.

    A stopped process of Pyxis' beside it has the kernel send SIGHUP, which nobody asked for.
    """
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, ROOT / "jobs" / "launcher.sh"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "DDP_NODE": "n1"} | SUPERVISED,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.communicate()
    if is_hung_up:
        os.kill(pid, signal.SIGHUP)
    try:
        Cluster.until(lambda: not procfs.is_alive(pid), 20, "the agent has ended")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    (kept,) = tmp_path.glob("out/*/events.n1.jsonl")
    (end,) = [e for e in events.read(kept.read_bytes())[0] if e["event"] == "rank_end"]
    assert (end["code"], end["requested"]) == (137, False)


def test_a_monitor_writes_through_no_link(launch: Launch, tmp_path: Path) -> None:
    """Where others may write, it may lead to a file of this user's."""
    log = tmp_path / "out" / "slurm-7.n1.gutil"
    log.parent.mkdir()
    log.symlink_to(tmp_path / "mine")
    agent = launch("echo", "hi", DDP_OUT=str(log.parent), DDP_JOB_ID="7")
    out, err = agent.communicate(timeout=30)
    assert (agent.returncode, out) == (0, b"[0] hi\n")
    assert err.decode() == f"launcher: no monitor on n1: a link at {log}\n"
    assert not (tmp_path / "mine").exists()


def test_wrong_input_by_hand_writes_nothing(launch: Launch, tmp_path: Path) -> None:
    """What prelaunch.sh refuses, a launcher does that starts without it."""
    project = tmp_path / "my:project"
    for name in ("jobs", "rundir"):
        shutil.copytree(ROOT / name, project / name)
    for agent, told in (
        (launch(), "a command must follow --; found nothing"),
        (launch("true", DDP_OUT="~/out"), "DDP_OUT must be a path, in which no shell has to"),
        (launch("true", root=project), f"must have no ':' in its name, .*; found {project}"),
    ):
        out, err = agent.communicate(timeout=30)
        assert (agent.returncode, out) == (64, b"")
        (line,) = err.decode().splitlines()
        assert re.match(f"launcher: .*{told}", line), line
        assert list(tmp_path.iterdir()) == [project]


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    """One line, without a traceback; with an output directory of its own a rank runs."""
    line = f"mkdir gone && cd gone && rmdir ../gone && exec '{ROOT}/jobs/launcher.sh' -- true"
    for out, code in (("", 64), (str(tmp_path / "out"), 0)):
        env = {"PATH": os.environ["PATH"], "DDP_MONITOR": "0", "DDP_OUT": out}
        words = ["bash", "-c", line]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, check=False)
        assert done.returncode == code, done.stderr
        assert (b"launcher: the working directory must exist; found" in done.stderr) == bool(code)
        assert b"Traceback" not in done.stderr


def test_a_relative_output_directory(launch: Launch, tmp_path: Path) -> None:
    """A command that changes its directory finds the run's all the same."""
    rank = 'cd / && echo "$DDP_RUN_DIR $TORCHELASTIC_ERROR_FILE"'
    agent = launch("bash", "-c", rank, DDP_OUT="mine", DDP_JOB_ID="7", DDP_MONITOR="0")
    run_dir = tmp_path / "mine" / "slurm-7"
    assert agent.communicate()[0].decode() == f"[0] {run_dir} {run_dir}/debug/error-1-rank-0.json\n"


MINIMAL = f"""#!/bin/sh
exec {sys.executable} -c "import sys; sys.modules['resource'] = None; exec(sys.argv[1])" "$4"
"""
"""As Debian's python3-minimal, which lacks modules of the standard library."""


@pytest.mark.parametrize("python", ["#!/bin/sh\necho False\n", MINIMAL])
def test_a_host_without_python(launch: Launch, tmp_path: Path, python: str) -> None:
    """One line with both remedies, and 64."""
    for name in ("jobs", "rundir"):
        shutil.copytree(ROOT / name, tmp_path / "project" / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "uname", "env"):
        (programs / name).symlink_to(shutil.which(name) or name)
    old = programs / "python3"
    old.write_text(python)
    old.chmod(0o755)
    agent = launch("true", root=tmp_path / "project", PATH=str(programs))
    out, err = agent.communicate()
    assert (agent.returncode, out) == (64, b"")
    (line,) = err.decode().splitlines()
    assert line.startswith("launcher: a rank's agent needs Python 3.9 or later; found none on")
    assert "set DDP_PYTHON" in line
    assert "in an image that has it" in line


def test_the_environment_of_a_rank_is_the_users(launch: Launch) -> None:
    """Neither Python's locale nor names of an outer job's agent are added to it."""
    outer = {"DDP_AGENT_SOCKET": "/x", "DDP_BEAT_DIR": "/x"}
    out, _ = launch("env", DDP_MONITOR="0", **outer).communicate()
    names = {line.partition(b"=")[0] for line in out.replace(b"[0] ", b"").splitlines()}
    assert not names & {b"LC_CTYPE", b"LC_ALL", b"LANG", b"PYTHONPATH", b"DDP_AGENT_SOCKET"}
    assert b"[0] DDP_BEAT_DIR=/dev/shm/ddp." in out
