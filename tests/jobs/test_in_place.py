"""prelaunch.sh without Slurm: the ranks start in place."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from monitor.runs import record
from tests.jobs.alive import LEAVES_CHILDREN, carriers, gone, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Scripts


pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds


def test_every_rank_gets_the_contract(scripts: Scripts) -> None:
    """Two ranks see torchrun's variables, consistent with each other."""
    result = scripts.run(
        "prelaunch.sh",
        "--",
        "bash",
        "-c",
        'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR"',
    )
    assert result.code == 0, result.err
    lines = sorted(line for line in result.out.splitlines() if line.startswith("["))
    assert lines == ["[0] 0 0 2 2 0 127.0.0.1", "[1] 1 1 2 2 0 127.0.0.1"]
    assert (result.run_dir / "logs" / "rank-1.log").read_text() == "1 1 2 2 0 127.0.0.1\n"


def test_the_last_words_of_a_killed_python_are_in_its_log(scripts: Scripts) -> None:
    """What it printed before SIGKILL is not lost in a buffer, unless the user wants one."""
    script = "import os; print('the last words'); os.kill(os.getpid(), 9)"
    result = scripts.run("prelaunch.sh", "--", "python3", "-c", script, DDP_NPROC_PER_NODE="1")
    assert result.code == 137
    assert (result.run_dir / "logs" / "rank-0.log").read_text() == "the last words\n"
    assert result.setting("PYTHONUNBUFFERED") == "1"


def test_the_first_failing_rank_decides(
    scripts: Scripts, patience: Callable[[float], float]
) -> None:
    """The job ends with the failing rank's code, ends the others, and names it last."""
    began = time.monotonic()
    result = scripts.run(
        "prelaunch.sh", "--", "bash", "-c", "if ((RANK)); then echo lost; exit 41; fi; sleep 100"
    )
    assert result.code == 41
    assert time.monotonic() - began < patience(15)
    (failure,) = result.of("first_failure")
    assert (failure["rank"], failure["code"], failure["signal"]) == (1, 41, None)
    assert result.err.splitlines()[-2].strip() == "lost"
    assert "rank 1 on" in result.err.splitlines()[-1]
    assert "ended with code 41" in result.err.splitlines()[-1]
    ends = {event["rank"]: event for event in result.of("rank_end")}
    assert ends[0]["requested"] is True
    assert ends[1]["requested"] is False


@pytest.mark.parametrize(
    ("victim", "number", "code"),
    [
        ("rank", 0, 137),
        ("rank", 1, 137),
        ("launcher", 0, 137),
        ("launcher", 1, 137),
        ("prelaunch", 1, -9),
    ],
)
def test_kill_leaves_nothing_behind(scripts: Scripts, victim: str, number: int, code: int) -> None:
    """kill -9 of a rank, of a launcher or of the script itself ends every process."""
    temporary = scripts.directory / "tmp"
    temporary.mkdir()
    scripts.env["TMPDIR"] = str(temporary)
    process = scripts.start("prelaunch.sh", "--", "bash", "-c", LEAVES_CHILDREN)
    up = wait_for(scripts.directory, "rank_up", 2)
    rank_pid = next(event["pid"] for event in up if event["rank"] == number)
    stat = Path(f"/proc/{rank_pid}/stat").read_text()
    parent = int(stat.rpartition(")")[2].split()[1])
    pids = {"rank": rank_pid, "launcher": parent, "prelaunch": process.pid}
    subprocess.run(["kill", "-9", str(pids[victim])], check=True)
    result = scripts.finish(process)
    assert result.code == code
    assert gone(str(scripts.directory))
    assert list(temporary.iterdir()) == []
    if victim != "prelaunch":
        assert result.of("first_failure")[0]["rank"] == number
        assert f"rank {number} on" in result.err.splitlines()[-1]
        assert "SIGKILL" in result.err.splitlines()[-1]
        assert ": line " not in result.err  # bash's own word of it


def test_bash_does_not_tell_of_a_rank_that_dies_at_once(scripts: Scripts) -> None:
    """It would, while the launcher is still telling that the rank is up."""
    scripts.fake("dd", '/usr/bin/dd "$@"; sleep 1')
    process = scripts.start("prelaunch.sh", "--", "sleep", "60", DDP_NPROC_PER_NODE="1")
    (up,) = wait_for(scripts.directory, "rank_up", 1)
    subprocess.run(["kill", "-9", str(up["pid"])], check=True)
    result = scripts.finish(process)
    assert result.code == 137
    assert ": line " not in result.err


HIDES = """env -i setsid bash -c 'trap "" TERM; exec -a "$0" sleep 600' "$PWD/x" """
BELOW = f"""below() {{ {HIDES} >/dev/null 2>&1 & wait; }}; export -f below; setsid bash -c below"""


@pytest.mark.parametrize(
    "hides", [f"{HIDES} & sleep 0.5", f"{BELOW} & sleep 0.5", f"({HIDES} >/dev/null 2>&1 &)"]
)
def test_who_hides_does_not_outlive_the_job(scripts: Scripts, hides: str) -> None:
    """Without the environment by which a rank's children are known, as after setproctitle.

    It still writes to the rank's log, is a child of one that has that environment, or a daemon.
    """
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", hides)
    assert result.code == 0
    assert not carriers(str(scripts.directory))


def test_who_is_another_process_all_the_time_does_not_outlive_the_job(scripts: Scripts) -> None:
    """As in a fork bomb: until it is killed it has started the next one."""
    relay = "relay() { (($1)) && sleep 0.05 && relay $(($1 - 1)) & }; trap '' TERM; relay 400"
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", relay)
    assert result.code == 0
    assert not carriers(str(scripts.directory))


def test_a_daemon_that_ends_is_reaped(scripts: Scripts, patience: Callable[[float], float]) -> None:
    """By the rank's agent, which has become its parent: it would stay a zombie as long as that."""
    is_gone = f"for _ in {{1..{patience(10):.0f}}}; do [[ -e /proc/$pid ]] || exit 0; sleep 1; done"
    command = f"pid=$(sleep 0.1 >/dev/null & echo $!); {is_gone}; exit 3"
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", command)
    assert result.code == 0, result.out


def test_output_of_a_killed_rank_is_complete(scripts: Scripts) -> None:
    """The job's log holds the last line a rank wrote, also without its newline."""
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", "printf 'last words'; kill -9 $$")
    assert result.code == 137
    assert "last words" in result.out


def test_a_pipe_that_hides_a_code_is_noticed(scripts: Scripts) -> None:
    """By the log: the job has only the code of the pipe's last program."""
    script = "python3 -c 'raise KeyError(1)' 2>&1 | cat"
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", script, DDP_NPROC_PER_NODE="1")
    assert result.code == 0
    assert (
        "finished, but rank 0's log ends with an error: KeyError: 1 (a pipe needs set -o"
        in (result.err.splitlines()[-1])
    )


def test_the_last_line_is_one_of_its_own(scripts: Scripts) -> None:
    """Also after ranks that end in the middle of a line, as a progress bar does."""
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", "echo -n 50%; exit 3")
    assert result.code == 3
    assert {"[0] 50%", "[1] 50%"} >= set(result.out.splitlines()) > set()
    assert result.err.splitlines()[-2] == "    50%"
    assert result.err.splitlines()[-1].startswith("prelaunch: rank ")
    assert scripts.run("prelaunch.sh", "--", "echo", "-n", "50%").out.endswith("] 50%\n")


_MANY_STACKS = r"""
import os, sys, threading, time
def wait(depth):
    wait(depth - 1) if depth else time.sleep(60)
for _ in range(60):
    threading.Thread(target=wait, args=(40,), daemon=True).start()
time.sleep(1)
sys.stderr.write("terminate called after throwing an instance of 'E'\n  what():  bad link\n")
os.abort()
"""


def test_the_stacks_of_many_threads_hide_no_error(scripts: Scripts) -> None:
    """The line above them is quoted, however far it is from the log's end; afterwards, too."""
    command = ("--", "python3", "-c", _MANY_STACKS)
    result = scripts.run("prelaunch.sh", *command, DDP_NPROC_PER_NODE="1", DDP_RUN_NAME="m")
    quote = "terminate called after throwing an instance of 'E': bad link"
    assert f"code 134: {quote}; its log: " in result.err.splitlines()[-1]
    assert len(result.err) < 10_000
    scripts.run("prelaunch.sh", "--", "true", DDP_NPROC_PER_NODE="1", DDP_RUN_NAME="m")
    first, _ = record.read(str(result.run_dir))["attempts"]
    assert first["failure"]["error"] == quote


def test_a_line_without_end_is_told_once(scripts: Scripts) -> None:
    """The last lines of a failed rank's log are a help for a person, and no second copy."""
    bar = "head -c 3000000 /dev/zero | tr '\\0' =; exit 3"
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", bar, DDP_NPROC_PER_NODE="1")
    assert result.code == 3
    assert len(result.out) > 3_000_000
    assert len(result.err) < 50_000


def test_a_second_start_is_a_second_attempt(scripts: Scripts) -> None:
    """Under a run name the directory is shared, attempts are counted and the seed stays."""
    first = scripts.run("prelaunch.sh", "--", "true", DDP_RUN_NAME="mine")
    second = scripts.run("prelaunch.sh", "--", "true", DDP_RUN_NAME="mine")
    assert second.run_dir == scripts.directory / "out" / "mine"
    assert [event["attempt"] for event in second.of("start")] == [1, 2]
    assert first.setting("DDP_SEED") == second.setting("DDP_SEED")


def test_a_negative_code_is_what_the_kernel_makes_of_it(scripts: Scripts) -> None:
    """An exit code has eight bits: -1 is 255, and no signal."""
    result = scripts.run("prelaunch.sh", "--", "python3", "-c", "raise SystemExit(-1)")
    assert result.code == 255
    first, *_ = result.of("rank_end")
    assert (first["code"], first["signal"]) == (255, None)


def test_hundred_quick_ranks(scripts: Scripts) -> None:
    """Events of many ranks that end at once stay whole lines, and none is lost."""
    result = scripts.run("prelaunch.sh", "--", "true", DDP_NPROC_PER_NODE="24")
    assert result.code == 0
    assert sorted(event["rank"] for event in result.of("rank_end")) == list(range(24))


def test_debug_traces_with_time_host_and_line(scripts: Scripts) -> None:
    """DEBUG=on traces both scripts, and sets the flags that find a hang."""
    result = scripts.run("prelaunch.sh", "--", "bash", "-c", "env", DEBUG="Yes")
    assert result.code == 0
    assert "[0] NCCL_DEBUG=INFO" in result.out
    assert "[0] TORCH_DISTRIBUTED_DEBUG=DETAIL" in result.out
    assert "[0] CUDA_LAUNCH_BLOCKING=1" in result.out
    for kept in ("PYTHONFAULTHANDLER=1", "TORCH_FR_BUFFER_SIZE=2000", "OMP_NUM_THREADS="):
        assert f"[0] {kept}" in result.out  # DEBUG adds, and takes nothing away
    assert f"[0] TORCH_FR_DUMP_TEMP_FILE={result.run_dir}/debug/nccl-trace-rank-" in result.out
    assert any("prelaunch.sh:" in line and line.startswith("+") for line in result.err.splitlines())
    assert any("launcher.sh:" in line and line.startswith("+") for line in result.err.splitlines())


def test_without_debug_hangs_still_leave_traces(scripts: Scripts) -> None:
    """DEBUG=off turns on what costs nothing; what the user set wins."""
    result = scripts.run("prelaunch.sh", "--", "env", NCCL_DEBUG="TRACE")
    assert "[0] PYTHONFAULTHANDLER=1" in result.out
    assert "[0] NCCL_DEBUG=TRACE" in result.out
    assert f"[0] TORCH_FR_DUMP_TEMP_FILE={result.run_dir}/debug/nccl-trace-rank-" in result.out
    assert "[0] OMP_NUM_THREADS=" in result.out


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_segmentation_fault_shows_its_python_stack(scripts: Scripts, debug: str) -> None:
    """With DEBUG as without: it is looked for just then.

    One rank: of two, the first to crash ends the other in the middle of its own stack.
    """
    scripts.env["DDP_NPROC_PER_NODE"] = "1"
    crash = "import ctypes\ndef crash(): ctypes.string_at(0)\ncrash()"
    result = scripts.run("prelaunch.sh", "--", sys.executable, "-c", crash, DEBUG=debug)
    assert result.code == 139
    log = (result.run_dir / "logs" / "rank-0.log").read_text()
    assert "Fatal Python error: Segmentation fault" in log
    assert 'File "<string>", line 2 in crash' in log


@pytest.mark.parametrize("value", ["1", "ON", "yes", "True", "y", "t"])
def test_debug_on(scripts: Scripts, value: str) -> None:
    """DEBUG is read in any case."""
    assert scripts.run("prelaunch.sh", "--dry-run", DEBUG=value).setting("DEBUG") == "1"


@pytest.mark.parametrize("value", ["0", "Off", "NO", "false", "n", "F", ""])
def test_debug_off(scripts: Scripts, value: str) -> None:
    """DEBUG is read in any case."""
    assert scripts.run("prelaunch.sh", "--dry-run", DEBUG=value).setting("DEBUG") == "0"
