"""prelaunch.sh on the virtual cluster: real slurmctld, real slurmd, real kills."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.job import parent
from tests.jobs.conftest import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
PRELAUNCH = str(ROOT / "jobs" / "prelaunch.sh")
TWO_BY_TWO = ("--nodes=2", "--ntasks-per-node=2")
LEAVES_CHILDREN = ("bash", "-c", "setsid sleep 600 & sleep 601 & wait")

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module", autouse=True)
def near_its_limit(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job that waits for its time limit while the other tests run."""
    # Who ends first ends the step, and with it a rank that a busy machine has not reached yet.
    together = "touch saved-$RANK; until set -- saved-*; (($# == 4)); do sleep 0.1; done"
    program = f"trap 'echo saved; {together}; exit 75' USR1; while :; do sleep 0.2; done"
    limit = ("--time=1", "--signal=B:USR1@15")  # see NEAR_LIMIT in test_requeue.py
    command = (*limit, PRELAUNCH, "--", "bash", "-c", program)
    directory = tmp_path_factory.mktemp("limit")
    job = Job(cluster, directory, *TWO_BY_TWO, *command, DDP_REQUEUE="0")
    yield job
    job.cancel()


def test_ranks_on_two_nodes(job: Any) -> None:
    """Four ranks find their places, and rank 0's node is the master."""
    done = job(
        *TWO_BY_TWO,
        PRELAUNCH,
        "--",
        "bash",
        "-c",
        'echo "$RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE $MASTER_ADDR $(hostname)"',
    )
    assert done.end() == ("COMPLETED", 0, 0)
    lines = sorted(line for line in done.log.splitlines() if line.startswith("["))
    assert lines == [
        "[0] 0 0 0 4 node1 node1",
        "[1] 1 1 0 4 node1 node1",
        "[2] 2 0 1 4 node1 node2",
        "[3] 3 1 1 4 node1 node2",
    ]
    assert {path.name for path in (done.directory / "out").glob("*.gutil")} == {
        f"slurm-{done.id}.node1.gutil",
        f"slurm-{done.id}.node2.gutil",
    }
    assert done.all_gone()


@pytest.mark.parametrize("victim", ["rank", "launcher"])
def test_kill_of_a_rank_ends_the_job(
    job: Any, victim: str, patience: Callable[[float], float]
) -> None:
    """kill -9 of a rank or of its launcher: the others end, the last line names it."""
    done = job(*TWO_BY_TWO, PRELAUNCH, "--", *LEAVES_CHILDREN)
    done.wait_for("rank_up", 4)
    pid = done.pid(3)
    began = time.monotonic()
    os.kill(pid if victim == "rank" else parent(pid), signal.SIGKILL)
    assert done.end() == ("FAILED", 137, 0)
    assert time.monotonic() - began < patience(15)
    assert done.all_gone()
    last = done.log.splitlines()[-1]
    assert "rank 3 on node2" in last
    assert "SIGKILL" in last
    record = json.loads((done.run_dir / "run.json").read_text())
    assert record["attempts"][-1]["first_failure"]["rank"] == 3
    assert record["summary"]["outcome"] == "failed"


def test_kill_of_the_batch_script(job: Any) -> None:
    """kill -9 of the script: Slurm ends the step, nothing is left, the record can be made."""
    done = job(*TWO_BY_TWO, PRELAUNCH, "--", *LEAVES_CHILDREN)
    done.wait_for("rank_up", 4)
    (script,) = [
        pid
        for pid in done.left()
        if b"slurm_script" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and parent(pid)
        and b"slurm_script" not in Path(f"/proc/{parent(pid)}/cmdline").read_bytes()
    ]
    os.kill(script, signal.SIGKILL)
    assert done.end() == ("FAILED", 0, 9)
    assert done.all_gone()
    # Slurm 26.05 may kill the monitors at once, too, which would have written it.
    compose = [sys.executable, "-m", "monitor", "compose", done.run_dir]
    subprocess.run(compose, check=True, capture_output=True)
    record = json.loads((done.run_dir / "run.json").read_text())
    assert record["summary"]["outcome"] in {"killed", "failed", "stopped"}


def test_scancel(job: Any) -> None:
    """scancel ends every process, and the record says so."""
    done = job(*TWO_BY_TWO, PRELAUNCH, "--", *LEAVES_CHILDREN)
    done.wait_for("rank_up", 4)
    done.cancel()
    state, code, _ = done.end()
    assert (state, code) == ("CANCELLED", 143)
    assert done.all_gone()
    assert done.events("signal")[0]["signal"] == "TERM"
    assert done.events("end")[0]["code"] == 143


SAVE = 'trap "echo step-1 >$DDP_RUN_DIR/checkpoints/latest; exit 75" TERM'
SAVES = ("bash", "-c", f"{SAVE}; echo ready; while :; do sleep 0.2; done")
STAYS = ("bash", "-c", "trap '' TERM; echo ready; sleep 600 & wait")


@pytest.mark.parametrize("reach", ["--batch", "--full"])
@pytest.mark.parametrize(("program", "code"), [(SAVES, 75), (STAYS, 137)])
def test_a_signal_to_the_script_or_to_the_whole_job(
    job: Any, program: tuple[str, ...], code: int, reach: str, patience: Callable[[float], float]
) -> None:
    """An srun that gets SIGTERM kills its tasks: they are told before, and have their grace."""
    done = job(*TWO_BY_TWO, PRELAUNCH, "--", *program, DDP_REQUEUE="0", DDP_GRACE="2")
    done.wait_for_word("ready", 4)
    began = time.monotonic()
    done.cluster.run(["scancel", reach, "--signal=TERM", str(done.id)])
    assert done.end() == ("FAILED", code, 0)
    assert (2 if program == STAYS else 0) < time.monotonic() - began < patience(20)
    assert done.all_gone()
    assert {event["code"] for event in done.events("rank_end")} == {code}
    assert "stopped on request (SIGTERM)" in done.log.splitlines()[-1]


@pytest.mark.slow
def test_one_task_per_node(job: Any) -> None:
    """torchrun starts the ranks of a node; the first failing one decides as ever."""
    done = job(
        "--nodes=2",
        "--ntasks-per-node=1",
        PRELAUNCH,
        "--",
        "bash",
        "-c",
        'echo "$RANK $LOCAL_RANK $WORLD_SIZE $(hostname)"; sleep 1; exit $((RANK == 2 ? 7 : 0))',
        DDP_NPROC_PER_NODE="2",
    )
    assert done.end() == ("FAILED", 7, 0)
    assert "[3] 3 1 4 node2" in done.log
    assert "[1] 1 1 4 node1" in done.log
    assert "rank 2 on node2 ended with code 7" in done.log.splitlines()[-1]
    assert done.all_gone()


def test_every_task_of_a_sweep_runs(cluster: Any, tmp_path: Path) -> None:
    """All points run, the last one too, whose job id is the array's own."""
    grid = tmp_path / "grid"
    grid.write_text("--lr 0.1 0.2 0.3\n")
    sweep = [ROOT / "jobs" / "sweep.sh", grid, "--ntasks=1", "--parsable", "--", "--", "echo"]
    done = cluster.run(sweep, cwd=tmp_path, env={"DDP_MONITOR": "0"})
    array = done.stdout.strip()
    listed = ["squeue", "--noheader", f"--jobs={array}"]
    cluster.until(lambda: not cluster.run(listed).stdout, 120, "the array has ended")
    for task in (1, 2, 3):
        log = (tmp_path / f"slurm-{array}_{task}.out").read_text()
        assert f"[0] --lr 0.{task}\n" in log, log
        assert ": 1 rank finished" in log, log


def test_salloc_runs_in_the_foreground(cluster: Any, tmp_path: Path) -> None:
    """Inside salloc the same script runs, with all nodes and without timestamps."""
    done = cluster.run(
        ["salloc", *TWO_BY_TWO, "--immediate=30", PRELAUNCH, "--", "hostname"],
        cwd=tmp_path,
        env={"DDP_MONITOR": "0", "DDP_TIMESTAMP_INTERVAL": "1"},
        timeout=60,
    )
    assert "[3] node2" in done.stdout
    assert "is running" not in done.stderr


def test_pty_session(cluster: Any, tmp_path: Path) -> None:
    """Inside srun --pty the nested step overlaps the shell's."""
    command = f"srun --immediate=30 --nodes=2 --ntasks-per-node=1 --pty {PRELAUNCH} -- hostname"
    done = cluster.run(
        ["script", "-qec", command, "/dev/null"], cwd=tmp_path, env={"DDP_MONITOR": "0"}
    )
    assert "[1] node2" in done.stdout
    assert "all 2 ranks finished" in done.stdout


def test_interrupt_in_an_allocation(cluster: Any, tmp_path: Path) -> None:
    """Ctrl-C under salloc: the terminal tells srun, too, and the ranks still save."""
    command = ["salloc", *TWO_BY_TWO, "--immediate=30", PRELAUNCH, "--", *SAVES]
    shell = subprocess.Popen(
        ["script", "-qec", shlex.join(command), "/dev/null"],
        cwd=tmp_path,
        env=cluster.env | {"DDP_MONITOR": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        said = ""
        while said.count("] ready") < 4:
            line = shell.stdout.readline()
            assert line, said
            said += line
        shell.stdin.write("\x03")
        shell.stdin.flush()
        said += shell.stdout.read()
    assert "prelaunch: stopped on request (SIGINT), code 75" in said
    assert shell.returncode == 75


def test_port_is_probed_where_rank_zero_runs(cluster: Any, tmp_path: Path) -> None:
    """From a login node the probe runs on the first node, whose name becomes the master."""
    done = cluster.run(
        ["salloc", *TWO_BY_TWO, "--immediate=30", PRELAUNCH, "--dry-run"], cwd=tmp_path
    )
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("MASTER_PORT")]
    assert "free on node1" in line


def test_timestamps_in_a_batch_job(job: Any) -> None:
    """A line now and then tells a slow job from a dead one."""
    done = job(PRELAUNCH, "--", "sleep", "3", DDP_TIMESTAMP_INTERVAL="1")
    assert done.end() == ("COMPLETED", 0, 0)
    assert done.log.count(f"job {done.id} is running") >= 2


def test_a_chain_ends_with_its_run(cluster: Any, tmp_path: Path) -> None:
    """Once a link has finished, none of those that are left starts."""
    chain = [ROOT / "jobs" / "chain.sh", "short", "4", "--nodes=1", "--", "--", "true"]
    submitted = cluster.run(chain, cwd=tmp_path, env={"DDP_MONITOR": "0"})
    assert submitted.returncode == 0, submitted.stderr
    states = [cluster.wait(int(job)).state for job in submitted.stdout.split()]
    assert states == ["COMPLETED", "CANCELLED", "CANCELLED", "CANCELLED"]


def test_the_copy_of_an_image_is_there_as_long_as_the_job(job: Any, tmp_path: Path) -> None:
    """Slurm's own sbcast brings it, and scancel, too, frees it; srun alone knows no containers."""
    programs, temporary = tmp_path / "bin", tmp_path / "tmp"
    programs.mkdir()
    temporary.mkdir()
    (programs / "srun").write_text(
        rf"""#!/bin/bash
        if [[ $1 == --help ]]; then echo --container-image; exit; fi
        for word; do
            shift
            case $word in --container-*) continue ;; esac
            set -- "$@" "${{word/#\/opt\/ddp/{ROOT}}}"
        done
        PATH=${{PATH#*:}} exec srun "$@" """
    )
    (programs / "srun").chmod(0o755)
    (tmp_path / "ddp.sqsh").write_bytes(b"hsqs" + bytes(5_000_000))
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(temporary)}
    env |= {"DDP_IMAGE": "./ddp.sqsh", "DDP_STAGE_IMAGE": "1", "DDP_MONITOR": "0"}
    held = job("--nodes=2", "--ntasks-per-node=1", PRELAUNCH, "--", "sleep", "600", **env)
    held.wait_for("rank_up", 2)
    (copy,) = temporary.glob("*.sqsh")
    assert copy.read_bytes() == (tmp_path / "ddp.sqsh").read_bytes()
    held.cancel()
    held.end()
    assert list(temporary.glob("*.sqsh")) == []


def test_time_limit(near_its_limit: Job) -> None:
    """Before the limit every rank is asked for a checkpoint; without a requeue it ends with 75."""
    done = near_its_limit
    assert done.end() == ("FAILED", 75, 0)
    assert done.log.count("] saved") == 4
    assert done.events("signal")[0]["signal"] == "USR1"
    assert done.all_gone()
