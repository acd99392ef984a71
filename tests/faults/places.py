"""What surrounds a job when a fault strikes: ports, disks, data, clocks, other jobs."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rundir import procfs
from tests.faults import injectors
from tests.faults.fault_files import NUM_FILES, write_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.injectors import Injector
    from tests.faults.job import Event, FaultJob

    Tidy = Callable[[], None]

CLUSTER_SCRIPT = Path(__file__).parents[1] / "cluster" / "cluster.sh"

# ---- a port --------------------------------------------------------------------------------------

_BINDER = """
import socket, sys
with socket.socket() as taken:
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("", int(sys.stdin.readline())))
    taken.listen()
    print("taken", flush=True)
    sys.stdin.readline()
"""

HELD = {
    "DDP_PYTHON": str(Path(__file__).with_name("held_python.sh")),
    "HELD_PYTHON": sys.executable,
}
"""Of a job whose rank 0 is to wait."""


def take_port(job: FaultJob) -> Tidy:
    """Let a process wait on the first node, ready to bind a port, and rank 0 until it is bound."""
    hold(job)
    command = [CLUSTER_SCRIPT, "exec", "fx1", sys.executable, "-c", _BINDER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    binder = subprocess.Popen(command, env=job.cluster.env, text=True, **pipes)
    job.helpers["binder"] = binder

    def tidy() -> None:
        binder.communicate()  # the end of its input is its end

    return tidy


def port_was_taken(job: FaultJob) -> float:
    """Take the port when the script has reported it, and then let rank 0 start."""
    binder = job.helpers["binder"]
    settings = job.until_event("settings", attempt=1)["settings"]
    binder.stdin.write(settings["MASTER_PORT"]["value"] + "\n")
    binder.stdin.flush()
    assert binder.stdout.readline() == "taken\n"
    (job.directory / "hold").unlink()
    return time.time()


# ---- nodes and other jobs ------------------------------------------------------------------------


def heal_after(*numbers: int) -> Callable[[FaultJob], Tidy]:
    """At the end the nodes are as they were."""

    def prepare(job: FaultJob) -> Tidy:
        def tidy() -> None:
            for number in numbers:
                job.cluster.script("heal", f"fx{number}")

        return tidy

    return prepare


def _starts(job: FaultJob, resume: Event) -> tuple[Event, Event]:
    """Give the start before this one, and this one."""
    before, now = (job.events("start", attempt=resume["attempt"] - number)[-1] for number in (1, 0))
    return before, now


def runs_elsewhere(job: FaultJob, resume: Event) -> None:
    """See that the next attempt runs without the node that was lost."""
    before, start = _starts(job, resume)
    (reported,) = job.events("lost_node", attempt=before["attempt"])
    lost = reported["node"]
    assert len(start["nodes"]) == 2, start
    assert lost not in start["nodes"], start


def let_urgent_job_end(job: FaultJob) -> None:
    """The job of the higher partition has had its turn."""
    (job.directory / "go").touch()


def slow_rank_is_named(job: FaultJob, struck: float) -> float:
    """Wait until metrics.jsonl names the slow rank and its node; the moment."""

    def named() -> float | None:
        for line in job.metrics():
            for slow in line.get("slow_ranks", ()):
                # On a busy machine another one may be slow for a moment, too.
                if job.moment(line) > struck and slow["rank"] == 1 and slow["ratio"] > 2:
                    assert slow["node"] == "fx2", line
                    return job.moment(line)
        return None

    moment: float = job.until(named, "the slow rank is named")
    injectors.strike("speed-up", 1)(job)
    return moment


def no_bad_node_has_ranks(job: FaultJob, _event: Event) -> None:
    """See that the newest start has none of the nodes that were found bad."""
    bad = {event["node"] for event in job.events("bad_node")}
    assert bad
    assert not bad & set(job.events("start")[-1]["nodes"])


def runs_without_the_bad(job: FaultJob, resume: Event) -> None:
    """See that a spare node has the place of the one that was found bad."""
    before, start = _starts(job, resume)
    (bad,) = job.events("bad_node", attempt=before["attempt"])
    assert bad["node"] in before["nodes"], (bad, before)
    assert len(start["nodes"]) == len(before["nodes"]), start
    assert bad["node"] not in start["nodes"], start


def runs_on_the_same(job: FaultJob, resume: Event) -> None:
    """See that no node has left."""
    before, start = _starts(job, resume)
    assert start["nodes"] == before["nodes"]
    assert job.events("bad_node", attempt=before["attempt"]) == []


# ---- mounts of a node's own ----------------------------------------------------------------------


def _own_mounts(node: str, words: str) -> dict[str, str]:
    """Give a job's variables with which these words of a shell mount something on this node."""
    return {
        "DDP_PYTHON": str(Path(__file__).with_name("own_mounts_python.sh")),
        "OWN_MOUNTS_PYTHON": sys.executable,
        "OWN_MOUNTS_NODE": node,
        "OWN_MOUNTS": words,
    }


def own_memory(node: str) -> dict[str, str]:
    """Give a job's variables with which this node has a /dev/shm of its own."""
    return _own_mounts(node, "mount -t tmpfs -o size=256m tmpfs /dev/shm")


def read_only_at_first(node: str) -> dict[str, str]:
    """Give a job's variables with which this node cannot write to the first start's files."""
    words = """\
if [ "$DDP_ATTEMPT" = 1 ]; then
    while [ -e "$FAULT_DIR/hold" ]; do sleep 0.1; done
    mount --bind "$DDP_RUN_DIR" "$DDP_RUN_DIR"
    mount -o remount,bind,ro "$DDP_RUN_DIR"
fi"""
    return _own_mounts(node, words)


def hold(job: FaultJob) -> Tidy:
    """Let what waits for it wait."""
    (job.directory / "hold").touch()
    return lambda: None


def start_read_only(job: FaultJob) -> float:
    """Let the node start that cannot write, once rank 0 is so far that it answers signals."""
    job.until_event("rank_up", attempt=1)
    job.until(lambda: procfs.catches(job.rank_pid(0), signal.SIGTERM), "rank 0 answers signals")
    moment = time.time()
    (job.directory / "hold").unlink()
    return moment


# ---- disks ---------------------------------------------------------------------------------------

DISK_MIB = 256
_FULL = "filler"


def small_disk(job: FaultJob) -> Tidy:
    """Mount a small tmpfs where the checkpoints go."""
    folder = job.run_dir / "checkpoints"
    folder.mkdir(parents=True)
    return _mount(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", folder], folder)


def fill_disk(job: FaultJob) -> float:
    """Fill the disk as soon as a save has begun to write."""
    folder = job.run_dir / "checkpoints"
    job.until(lambda: any(folder.glob(".step-*.partial/*")), "a save is under way")
    descriptor = os.open(folder / _FULL, os.O_WRONLY | os.O_CREAT)
    try:
        _fill(descriptor, 0)
    finally:
        os.close(descriptor)
    return time.time()


def _fill(descriptor: int, size_bytes: int) -> int:
    """Let a file of this size grow until the disk is full; its size."""
    for piece_bytes in (8 << 20, 1 << 20, 1 << 16, 4096):
        with contextlib.suppress(OSError):  # no space: smaller pieces
            while True:
                os.posix_fallocate(descriptor, size_bytes, piece_bytes)
                size_bytes += piece_bytes
    return size_bytes


def free_disk(job: FaultJob) -> None:
    """Make room again."""
    (job.run_dir / "checkpoints" / _FULL).unlink()


def reason_is(reason: str) -> Callable[[FaultJob, Event], None]:
    """The checkpoint failed for this reason."""

    def check(_: FaultJob, event: Event) -> None:
        assert event["reason"] == reason, event

    return check


def fill_memory(rank: int) -> Injector:
    """Fill the /dev/shm of a rank's node, also what is given back, until a snapshot fails."""

    def inject(job: FaultJob) -> float:
        moment, filler = time.time(), Path(f"/proc/{job.rank_pid(rank)}/root/dev/shm/{_FULL}")
        descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
        try:
            size_bytes = 0

            def fill() -> bool:
                nonlocal size_bytes
                size_bytes = _fill(descriptor, size_bytes)
                return "without snapshots" in job.log

            job.until(fill, "a snapshot fails", poll_s=0.0005)
        finally:
            os.close(descriptor)
        return moment

    return inject


def snapshot_is_not_used(job: FaultJob, resume: Event) -> None:
    """The damage is named, and a checkpoint taken."""
    assert "/checkpoints/" in resume["path"], resume
    assert re.search(r"the snapshot of step \d+ is not used: rank \d", job.log), job.log


def steps_are_slower(job: FaultJob, struck: float) -> None:
    """A step takes half as long again at least, in the median of ten."""

    def slowed() -> bool:
        moments = [job.moment(line) for line in job.metrics()]
        before = [at for at in moments if at < struck][-11:]
        after = [at for at in moments if at > struck][1:]
        return len(after) > 10 and _pace(after[-11:]) > 1.5 * _pace(before)

    job.until(slowed, "the steps are slower")


def _pace(moments: list[float]) -> float:
    return median(b - a for a, b in itertools.pairwise(moments))


def own_disk(job: FaultJob) -> Tidy:
    """Mount a file system of its own where the run directory goes."""
    image = job.directory / "disk.img"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    job.run_dir.mkdir(parents=True)
    unmount = _mount(["mount", "-o", "loop,noatime", image, job.run_dir], job.run_dir)
    shutil.rmtree(job.run_dir / "lost+found")

    def tidy() -> None:
        subprocess.run(["fsfreeze", "-u", job.run_dir], check=False, capture_output=True)
        unmount()

    return tidy


def freeze_for(seconds: float) -> Injector:
    """Let every write to the run directory wait."""

    def inject(job: FaultJob) -> float:
        moment = time.time()
        subprocess.run(["fsfreeze", "-f", job.run_dir], check=True)
        time.sleep(seconds)  # the fault itself: it lasts that long
        subprocess.run(["fsfreeze", "-u", job.run_dir], check=True)
        return moment

    return inject


def _mount(command: list[str | Path], where: Path) -> Tidy:
    subprocess.run(command, check=True)

    def tidy() -> None:
        # What a test reads after its end stays: the files, but not the mount.
        kept = where.with_name(where.name + ".kept")
        shutil.copytree(where, kept, ignore=shutil.ignore_patterns(_FULL, "*.distcp"))
        subprocess.run(["umount", "--lazy", where], check=True)

    return tidy


# ---- data and clocks -----------------------------------------------------------------------------


def data_files(job: FaultJob) -> Tidy:
    """Write a data set of small files."""
    write_files(job.directory / "data")
    return lambda: None


def lose_data(job: FaultJob) -> float:
    """Delete every other file."""
    moment = time.time()
    for number in range(0, NUM_FILES, 2):
        (job.directory / "data" / f"{number}.sample").unlink()
    return moment


def clock_is_off(job: FaultJob) -> float:
    """See that the second node's clock is an hour ahead of the first one's."""
    first, second = (
        job.moment(event)
        for node in ("fx7", "fx9")
        for event in job.events("rank_up", attempt=job.attempt)
        if event["node"] == node
    )
    assert 3500 < second - first < 3700, (first, second)
    return time.time()


def wall_time_is_sane(job: FaultJob, _: float) -> None:
    """The record does not count the hour."""
    assert job.record()["goodput"]["wall_s"] < 1800
