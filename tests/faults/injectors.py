"""How the faults are brought about, for real: signals, cables, mounts, cgroups, damaged files.

An injector takes the job and gives the moment of the fault, in seconds since the epoch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rundir.paths import snapshots_prefix
from tests.faults.job import parent
from tests.jobs import standbys

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.job import FaultJob

    Injector = Callable[[FaultJob], float]


def strike(fault: str, rank: int) -> Injector:
    """Let the workload break in the middle of a step of this rank."""

    def inject(job: FaultJob) -> float:
        order, struck = job.directory / "strike", job.directory / "struck"
        struck.unlink(missing_ok=True)
        beside = job.directory / "strike.new"
        beside.write_text(f"{rank} {fault}\n")
        beside.replace(order)
        job.until(struck.exists, f"rank {rank} takes the order {fault}")
        return struck.stat().st_ctime  # a rename leaves the time of writing

    return inject


def signal_rank(rank: int, number: signal.Signals) -> Injector:
    """Send a signal to a rank's own process."""

    def inject(job: FaultJob) -> float:
        return _signal(job.rank_pid(rank), number)

    return inject


def kill_launcher(rank: int) -> Injector:
    """SIGKILL to the script that started the rank."""

    def inject(job: FaultJob) -> float:
        return _signal(parent(job.rank_pid(rank)), signal.SIGKILL)

    return inject


def kill_standby(rank: int) -> Injector:
    """SIGKILL to a rank that waits for the next start, and then to one that trains."""

    def inject(job: FaultJob) -> float:
        training = {event["pid"] for event in job.events("rank_up")}
        waiting = job.until(
            lambda: standbys.waiting(job.directory, training), "a rank waits for the next start"
        )
        _signal(min(waiting), signal.SIGKILL)
        return signal_rank(rank, signal.SIGKILL)(job)

    return inject


def kill_monitor(job: FaultJob) -> float:
    """SIGKILL to a node's monitor."""
    (*_, newest) = job.events("monitor_up", attempt=job.attempt)
    return _signal(newest["pid"], signal.SIGKILL)


def kill_script(job: FaultJob) -> float:
    """SIGKILL to the batch script."""
    return _signal(job.script_pid(), signal.SIGKILL)


def cancel(job: FaultJob) -> float:
    """Run scancel, as its user would."""
    moment = time.time()
    job.cluster.run(["scancel", str(job.id)])
    return moment


def stop_for(rank: int, seconds: float) -> Injector:
    """SIGSTOP, and SIGCONT after some seconds."""

    def inject(job: FaultJob) -> float:
        pid = job.rank_pid(rank)
        moment = _signal(pid, signal.SIGSTOP)
        time.sleep(seconds)  # the fault itself: it lasts that long
        _signal(pid, signal.SIGCONT)
        return moment

    return inject


def _signal(pid: int, number: signal.Signals) -> float:
    moment = time.time()
    os.kill(pid, number)
    return moment


# ---- nodes -------------------------------------------------------------------------------------


def cut(rank: int) -> Injector:
    """Pull the cable of a rank's node."""

    def inject(job: FaultJob) -> float:
        moment = time.time()
        job.cluster.script("cut", job.node_of(rank))
        return moment

    return inject


def cut_for(rank: int, seconds: float) -> Injector:
    """Pull the cable of a rank's node, and plug it in after some seconds."""

    def inject(job: FaultJob) -> float:
        node, moment = job.node_of(rank), time.time()
        job.cluster.script("cut", node)
        time.sleep(seconds)  # the fault itself: it lasts that long
        job.cluster.script("heal", node)
        return moment

    return inject


def kill_node(rank: int) -> Injector:
    """Pull the power of a rank's node: slurmd and everything on it die at once."""

    def inject(job: FaultJob) -> float:
        node, moment = job.node_of(rank), time.time()
        job.cluster.script("kill", node)
        return moment

    return inject


def slow_link(rank: int) -> Injector:
    """Give the cable of a rank's node a tenth of the speed that the ranks measured at the start."""

    def inject(job: FaultJob) -> float:
        (network,) = job.events("network", attempt=job.attempt)
        rate_mbit = max(1, round(100 * network["gbit_per_s"]))
        limit = f"tbf rate {rate_mbit}mbit burst 256kb latency 400ms".split()
        moment = time.time()
        command = ("tc", "qdisc", "replace", "dev", "eth0", "root", *limit)
        done = job.cluster.exec(job.node_of(rank), *command)
        assert done.returncode == 0, done.stderr
        return moment

    return inject


def mend_link(rank: int) -> Callable[[FaultJob], None]:
    """Let the cable be as fast as ever."""

    def mend(job: FaultJob) -> None:
        job.cluster.exec(job.node_of(rank), *["tc", "qdisc", "del", "dev", "eth0", "root"])

    return mend


def preempt(job: FaultJob) -> float:
    """Submit a job of the higher partition that needs the whole node."""
    node, moment = job.node_of(0), time.time()
    wait = f"until [ -e {job.directory}/go ]; do sleep 0.2; done"
    urgent = ["--partition=urgent", f"--nodelist={node}", "--exclusive", "--output=/dev/null"]
    job.cluster.submit([*urgent, "--no-requeue", "--wrap", wait], cwd=job.directory)
    return moment


def await_time_limit(job: FaultJob) -> float:
    """Wait for the signal that Slurm sends before the limit."""
    event = job.until_event("signal", attempt=job.attempt)
    return float(job.moment(event))


# ---- memory --------------------------------------------------------------------------------------

CGROUPS = Path("/sys/fs/cgroup")
HEADROOM_BYTES = 64 << 20


def exhaust_memory(rank: int) -> Injector:
    """Put the rank and its launcher under a memory limit of the kernel's, and let it allocate."""

    def inject(job: FaultJob) -> float:
        pid = job.rank_pid(rank)
        limited = _memory_folder() / f"ddp-faults-{os.getpid()}-{job.id}"
        limited.mkdir(exist_ok=True)
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max"):
            if (limited / name).exists():
                (limited / name).write_text(str(HEADROOM_BYTES))
        if (limited / "memory.swap.max").exists():
            (limited / "memory.swap.max").write_text("0")
        for each in (parent(pid), pid):
            (limited / "cgroup.procs").write_text(str(each))
        return strike("eat-memory", rank)(job)

    return inject


def remove_memory_limits() -> None:
    """Remove the limits that are left; a group that still has a process stays."""
    for limited in _memory_folder().glob(f"ddp-faults-{os.getpid()}-*"):
        with contextlib.suppress(OSError):
            limited.rmdir()


def _memory_folder() -> Path:
    """Give the memory controller's top: of its own in cgroup v1, everybody's in v2."""
    return CGROUPS / "memory" if (CGROUPS / "memory").is_dir() else CGROUPS


# ---- snapshots and checkpoints -------------------------------------------------------------------


MEMORY = Path("/dev/shm")
NUM_NEWER = 10
"""Steps: both snapshots that are kept are newer, then."""


def newest_checkpoint(job: FaultJob) -> Path:
    """The complete checkpoint that was written last, though its writer may not have reported it."""
    folders = (job.run_dir / "checkpoints").glob("step-*")
    return max(folders, key=lambda path: int(path.name.removeprefix("step-")))


def damage(how: Callable[[Path], None]) -> Injector:
    """Kill a rank, and damage the newest checkpoint before the next attempt reads it.

    `job.helpers["newest"]` is that checkpoint.
    """

    def inject(job: FaultJob) -> float:
        attempt = job.attempt
        moment = _signal(job.rank_pid(1), signal.SIGKILL)
        job.until(lambda: not job.rank_processes(attempt), "the ranks are gone")
        job.helpers["newest"] = newest_checkpoint(job)
        how(job.helpers["newest"])
        return moment

    return inject


def damage_snapshots(every: int) -> Injector:
    """Kill a rank, and flip a bit of each snapshot; both kept ones are newer than any checkpoint.

    Checkpoints come `every` so many steps: none may be under way that would be newer in the end.
    """

    def inject(job: FaultJob) -> float:
        attempt = job.attempt
        pattern = f"{snapshots_prefix(job.launch_id(attempt))}*"
        folder = job.until(lambda: next(MEMORY.glob(pattern), None), "there are snapshots")

        def are_newer() -> bool:
            saved = int(newest_checkpoint(job).name.removeprefix("step-"))
            return saved + NUM_NEWER <= _newest_snapshot(folder) < saved + every // 2

        job.until(are_newer, "snapshots newer than the newest checkpoint", poll_s=0.01)
        moment = _signal(job.rank_pid(1), signal.SIGKILL)
        job.until(lambda: not job.rank_processes(attempt), "the ranks are gone")
        for path in folder.glob("*.[01]"):
            _flip_bit(path)
        return moment

    return inject


def _newest_snapshot(folder: Path) -> int:
    steps = [0]
    for path in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):  # the next one is being written
            steps.append(json.loads(path.read_text())["step"])
    return max(steps)


def _largest(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.distcp"), key=lambda path: (-path.stat().st_size, path.name))


def truncate(folder: Path) -> None:
    """Cut a file of tensors to half its length."""
    path = _largest(folder)[0]
    os.truncate(path, path.stat().st_size // 2)


def flip_bit(folder: Path) -> None:
    """Turn one bit around in the middle of a file of tensors."""
    _flip_bit(_largest(folder)[0])


def _flip_bit(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def delete(folder: Path) -> None:
    """Delete a file of tensors."""
    _largest(folder)[0].unlink()


def swap(folder: Path) -> None:
    """Swap the tensors of two ranks."""
    first, second = _largest(folder)[:2]
    beside = folder / "swapping"
    first.rename(beside)
    second.rename(first)
    beside.rename(second)


def damage_pointer(folder: Path) -> None:
    """Fill the pointer file with noise."""
    (folder.parent / "latest").write_bytes(b"\xff\x00step-\n7")


def kill_during_save(rank: int) -> Injector:
    """SIGKILL to a rank while the ranks write a checkpoint."""

    def inject(job: FaultJob) -> float:
        folder, pid = job.run_dir / "checkpoints", job.rank_pid(rank)
        job.until(lambda: not any(folder.glob(".step-*")), "no save is under way")
        job.until(lambda: any(folder.glob(".step-*/*")), "a save is under way", poll_s=0.002)
        return _signal(pid, signal.SIGKILL)

    return inject
