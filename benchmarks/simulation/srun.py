"""An srun whose tasks are agents that only report: thousands of them, in one process.

Each rank comes up, logs a line and reports a first step. In the first start one rank fails once
the file `fail` is there; half of the others lose it and fail with it, and the rest end as asked to.
In the second all save and end with 75 at SIGUSR1, in the third all finish once `finish` is there.
The preflight's tasks, one a node, report good readings and the links that `links` measures.
It is started as the supervisor starts srun, and reads its notes' directory from the environment.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.simulation import links
from rundir import channel, codes, events
from rundir.paths import RunDir
from rundir.preflight import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILED_CODE = 41
TRACEBACK = "\n".join(f'  File "train.py", line {line}, in step' for line in range(60))
LOST_PEER = "RuntimeError: Connection closed by peer [10.0.0.1]:1"
LOG_LINE = "a line without end"
_POLL_S = 0.02
_GOOD: dict[str, float | str] = {
    limits.AT_MOST: 0,
    limits.AT_LEAST: 100_000,
    limits.SHARE: 100.0,
    limits.APART: 0.0,
    limits.SAME: "1.2.3",
}
"""A reading within its limit."""
_LIMIT_S = 300


def failing_rank(num_ranks: int) -> int:
    """Name the rank that fails by itself."""
    return num_ranks // 2 + 1


class _Rank:
    """An agent and its trainer."""

    num_messages = 0
    """Of all."""

    def __init__(self, files: RunDir, attempt: int, node: str, rank: int, local_rank: int) -> None:
        self.rank, self._local_rank, self._node = rank, local_rank, node
        self._file = files.node_events(node)
        self._num = 0
        self._has_failed = False
        self._agent = events.EventLog(self._deliver, "launcher", attempt, node)
        self._trainer = events.EventLog(self._deliver, "trainer", attempt, node)

    def _deliver(self, line: bytes) -> None:
        self._num += 1
        _Rank.num_messages += 1
        sys.stdout.buffer.write(channel.frames(line, f"{self.rank}.{self._num}"))
        if self._has_failed:  # srun may throw away what it had not yet handed on
            events.append(self._file, line)

    def check(self, measured: Sequence[object]) -> None:
        """Report as many readings as a node with 8 GPUs has: those of each, and its own."""
        for part, num_gpus in (("monitor", 1), ("trainer", 8)):
            readings = [
                (check.name, _GOOD[check.how], f"GPU {gpu}")
                for gpu in range(num_gpus)
                for check in limits.TABLE
                if (check.suspects == limits.HARDWARE) == (part == "trainer")
            ]
            more = {"measured": measured} if part == "trainer" else {"clock_s": time.time()}
            keys = {"node": self._node, "part": part, "readings": readings, **more}
            self._agent.write("preflight_report", **keys)
        self.end(codes.FINISHED)

    def begin(self) -> None:
        sys.stdout.buffer.write(b"[%d] %s" % (self.rank, LOG_LINE.encode()))
        place = {"local_rank": self._local_rank, "node": self._node}
        self._agent.write("rank_up", rank=self.rank, **place, pid=1, log_offset=0, step_id=0)
        self._trainer.write("first_step", step=1)

    def fail(self, code: int, error: str) -> None:
        self._has_failed = True
        self._trainer.write("failure", rank=self.rank, error=error)
        self.end(code)

    def end(self, code: int, *, is_requested: bool = False) -> None:
        more = {"signal": codes.signal_name(code), "requested": is_requested, "oom": False}
        self._agent.write("rank_end", rank=self.rank, node=self._node, code=code, **more)


def _run(ranks: list[_Rank], files: RunDir, attempt: int, notes: Path) -> int:
    for rank in ranks:
        rank.begin()
    _flush(notes)
    if attempt == 1:
        _wait_for(notes / "fail")
        return _fail(ranks)
    if attempt == 2:
        signal.sigtimedwait({signal.SIGUSR1}, _LIMIT_S)
        Path(files.latest).write_text("step-10\n")
    else:
        _wait_for(notes / "finish")
    code = codes.STOPPED if attempt == 2 else codes.FINISHED
    for rank in ranks:
        rank.end(code)
    return code


def _check(tasks: list[_Rank], nodes: list[str], notes: Path) -> int:
    """Be the preflight; its first task has what all nodes measured."""
    found = links.measure_all(nodes)
    with (notes / "links").open("a") as file:
        numbers = (found.num_rounds, len(found.measured), found.num_store_calls)
        file.write(" ".join(map(str, numbers)) + "\n")
    for task in tasks:
        task.check(found.measured if task.rank == 0 else [])
    return codes.FINISHED


def _flush(notes: Path) -> None:
    """Pass on what was written; it is counted before its last part can have arrived."""
    with (notes / "messages").open("a") as file:
        file.write(f"{_Rank.num_messages}\n")
    _Rank.num_messages = 0
    sys.stdout.flush()


def _fail(ranks: list[_Rank]) -> int:
    """Fail one rank; those that lost it report that before its own agent reports anything."""
    failing = failing_rank(len(ranks))
    others = [rank for rank in ranks if rank.rank != failing]
    for rank in others[:9]:
        rank.fail(codes.FAILED, LOST_PEER)
    next(rank for rank in ranks if rank.rank == failing).fail(FAILED_CODE, TRACEBACK)
    for rank in others[9:]:
        if rank.rank % 2:
            rank.fail(codes.FAILED, LOST_PEER)
        else:
            rank.end(143, is_requested=True)
    return FAILED_CODE


def _wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + _LIMIT_S
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def main() -> None:
    """Report as all tasks of the job."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    environ = os.environ
    files, notes = RunDir(environ["DDP_RUN_DIR"]), Path(environ["SIMULATION_NOTES"])
    nodes = (notes / "nodes").read_text().split()
    attempt, num_local = int(environ["DDP_ATTEMPT"]), int(environ["SLURM_NTASKS"]) // len(nodes)
    is_preflight = bool(environ.get("DDP_PREFLIGHT_STEP"))
    num_local = 1 if is_preflight else num_local
    ranks = [
        _Rank(files, attempt, node, index * num_local + local, local)
        for index, node in enumerate(nodes)
        for local in range(num_local)
    ]
    random.Random(attempt).shuffle(ranks)  # noqa: S311 -- an order
    code = _check(ranks, nodes, notes) if is_preflight else _run(ranks, files, attempt, notes)
    _flush(notes)
    sys.exit(code)


if __name__ == "__main__":
    main()
