"""What it costs the supervisor that thousands of ranks report: their starts, a failure, their ends.

    python -m benchmarks.reports [NODES [RANKS]]

512 nodes of 8 agents speak the real protocol into one pipe, as srun hands it on; the supervisor's
own loop, reader and journal take it, and the one classifier says who failed. No Slurm, no torch.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from jobs.backends.base import Layout, Step
from jobs.loop import Loop
from jobs.supervisor.journal import Journal
from jobs.supervisor.step import Output, RunningStep
from rundir import channel, events
from rundir.failure import classify
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jobs.backends.base import Backend

_ROOT = Path(__file__).parent.parent
_NUM_NODES, _NUM_LOCAL_RANKS = 512, 8
_NUM_WRITERS = 8
_LIMIT_S = 120.0
_FAILED_CODE, _ENDED_CODE = 41, 143
_TRACEBACK = "\n".join(f'  File "train.py", line {line}, in step' for line in range(60))


class Cost(NamedTuple):
    """What the supervisor took, and what it found out."""

    num_events: int
    wall_s: float
    """From the start of the ranks until it is known who failed."""
    cpu_s: float
    memory_mb: float
    code: int
    failed_rank: int


def measure(num_nodes: int = _NUM_NODES, num_local_ranks: int = _NUM_LOCAL_RANKS) -> Cost:
    """Let a supervisor of its own process take the reports of so many ranks."""
    with tempfile.TemporaryDirectory() as directory:
        words = ("supervise", directory, str(num_nodes), str(num_local_ranks))
        done = subprocess.run(_command(*words), check=True, cwd=_ROOT, stdout=subprocess.PIPE)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.reports", *words]


# ---- the supervisor ------------------------------------------------------------------------------


class _Simulated:
    """A backend whose ranks only report."""

    place = "simulated"
    is_in_place = False

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def start(self, step: Step, stdout: int) -> list[subprocess.Popen[bytes]]:
        """Start the writers, each of which speaks for a share of the nodes."""
        layout = step.layout
        shape = (self._directory, str(layout.num_nodes), str(layout.num_local_ranks))
        return [
            subprocess.Popen(_command("write", *shape, str(writer)), cwd=_ROOT, stdout=stdout)
            for writer in range(_NUM_WRITERS)
        ]

    def note_step(self, step_id: int | None) -> None:
        """There is no step."""


def _peak_memory_mb() -> float:
    """Of this program alone: what getrusage counts began with the process that forked it."""
    status = Path("/proc/self/status").read_text("ascii", "replace")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return float(line.split()[1]) * 1024 / 1e6


def _supervise(directory: str, num_nodes: int, num_local_ranks: int) -> Cost:
    files = RunDir(directory)
    began_s, loop = time.monotonic(), Loop()
    journal = Journal(loop, files, "node0")
    journal.open(1)
    num_ranks = num_nodes * num_local_ranks
    layout = Layout(num_nodes, num_ranks, num_local_ranks, num_local_ranks)
    step = Step([], {}, layout, [], directory, is_restart=False)
    backend = cast("Backend", _Simulated(directory))
    running = RunningStep(loop, backend, step, journal, Output(loop), grace_s=0)
    if not loop.run(running.is_over, _LIMIT_S):
        raise TimeoutError
    running.close()
    journal.close()
    found = classify(journal.reports.events, step_code=1)
    used = resource.getrusage(resource.RUSAGE_SELF)
    assert found.code is not None
    assert found.first is not None
    return Cost(
        num_events=len(journal.reports.events),
        wall_s=time.monotonic() - began_s,
        cpu_s=used.ru_utime + used.ru_stime,
        memory_mb=_peak_memory_mb(),
        code=found.code,
        failed_rank=int(found.first.rank or 0),
    )


# ---- the ranks -----------------------------------------------------------------------------------


def _write(directory: str, num_nodes: int, num_local_ranks: int, writer: int) -> None:
    """Report as the agents of every so manieth node: up; then, once all are up, how they ended."""
    share = range(writer, num_nodes, _NUM_WRITERS)
    ranks = [
        _Rank(directory, node, node * num_local_ranks + local, local)
        for node in share
        for local in range(num_local_ranks)
    ]
    for rank in ranks:
        rank.begin()
    _wait_for_all(directory, f"up-{writer}")
    failed = num_nodes * num_local_ranks // 2 + 1
    for rank in ranks:
        if rank.rank == failed:
            rank.fail()
            Path(directory, "failed").touch()
    _wait_until(Path(directory, "failed").exists)
    for rank in ranks:
        if rank.rank != failed:
            rank.end()


class _Rank:
    """An agent, its trainer and its log."""

    def __init__(self, directory: str, node: int, rank: int, local_rank: int) -> None:
        self.rank, self._local_rank, self._node = rank, local_rank, f"node{node}"
        self._file = RunDir(directory).node_events(self._node)
        self._num = 0
        self._is_ending = False
        self._agent = events.EventLog(self._deliver, "launcher", 1, self._node)
        self._trainer = events.EventLog(self._deliver, "trainer", 1, self._node)

    def _deliver(self, line: bytes) -> None:
        self._num += 1
        sys.stdout.buffer.write(channel.frames(line, f"{self.rank}.{self._num}"))
        sys.stdout.buffer.flush()
        if self._is_ending:  # the supervisor may be gone: an agent keeps it as well
            events.append(self._file, line)

    def begin(self) -> None:
        """Come up, log a few lines, take a first step."""
        numbers = {"local_rank": self._local_rank, "node": self._node, "pid": 1, "log_offset": 0}
        self._agent.write("rank_up", rank=self.rank, **numbers, step_id=0)
        sys.stdout.buffer.write(b"[%d] step 1 loss 2.3\n" % self.rank * 3)
        self._trainer.write("first_step", step=1)

    def fail(self) -> None:
        """Fail of its own doing, with a long last word."""
        self._trainer.write("failure", rank=self.rank, error=_TRACEBACK)
        self._end(_FAILED_CODE, requested=False)

    def end(self) -> None:
        """End because another one has failed."""
        self._is_ending = True
        self._end(_ENDED_CODE, requested=True)

    def _end(self, code: int, *, requested: bool) -> None:
        signal = "TERM" if requested else None
        more = {"signal": signal, "requested": requested, "oom": False}
        self._agent.write("rank_end", rank=self.rank, node=self._node, code=code, **more)


def _wait_for_all(directory: str, mark: str) -> None:
    Path(directory, mark).touch()
    _wait_until(lambda: len(list(_marks(directory))) == _NUM_WRITERS)


def _marks(directory: str) -> Iterator[Path]:
    return Path(directory).glob("up-*")


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.01)


def main(words: list[str]) -> None:
    """Measure and print, or play the part that the first word names."""
    if words[:1] == ["write"]:
        _write(words[1], *map(int, words[2:]))
    elif words[:1] == ["supervise"]:
        print(json.dumps(_supervise(words[1], *map(int, words[2:]))._asdict()), flush=True)
    else:
        print(measure(*map(int, words)))


if __name__ == "__main__":
    main(sys.argv[1:])
