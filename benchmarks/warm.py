"""From a rank's death to its successor's first step, with ranks that wait for it and without.

    python -m benchmarks.warm [--quick]

A job in place of two ranks that train the CNN of the MNIST tutorials; a rank is killed five times.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.startup import environment, epoch_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ROOT = Path(__file__).parent.parent
_NUM_RANKS = 2
_NUM_DEATHS, _QUICK_DEATHS = 5, 1
_TIMEOUT_S = 120.0
_POLL_S = 0.02
_TRAINING_S = 3.0
"""How long each start trains before a rank of it is killed, at least."""
_OPTIONS = (
    *("--global-batch-size=32", "--epochs=1000000", "--val-every=1000000"),
    *("--checkpoint-every=20", "--log-every=20"),
)


def main(*, quick: bool) -> None:
    """Measure both, and print the times."""
    for is_warm in (True, False):
        took_s = sorted(_measure(_QUICK_DEATHS if quick else _NUM_DEATHS, is_warm=is_warm))
        print(
            f"DDP_WARM={int(is_warm)}: {median(took_s):.2f} s from a rank's death to the next first"
            f" step ({took_s[0]:.2f} to {took_s[-1]:.2f}, {len(took_s)} deaths)",
            flush=True,
        )


def _measure(num_deaths: int, *, is_warm: bool) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), is_warm=is_warm)
        try:
            return [job.kill_rank(attempt) for attempt in range(1, num_deaths + 1)]
        finally:
            job.end()


class Job:
    """A job that trains until it is ended."""

    def __init__(
        self,
        folder: Path,
        *,
        is_warm: bool,
        num_ranks: int = _NUM_RANKS,
        options: Sequence[str] = _OPTIONS,
    ) -> None:
        """Start it; its files are in `folder`."""
        self._folder, self._is_warm, self._num_ranks = folder, is_warm, num_ranks
        self._process = subprocess.Popen(
            [str(_ROOT / "jobs" / "prelaunch.sh"), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment(num_ranks, folder)
            | {"DDP_WARM": str(int(is_warm)), "DDP_MAX_RESTARTS": "99", "OMP_NUM_THREADS": "1"},
        )

    def kill_rank(self, attempt: int) -> float:
        """Kill a rank of this start once others wait; seconds until the next one's first step."""
        self._until(lambda: self._events("first_step", attempt))
        time.sleep(_TRAINING_S)
        self._until(lambda: self._events("checkpoint", attempt))
        ranks = {event["rank"]: event["pid"] for event in self._events("rank_up", attempt)}
        if self._is_warm:
            self._until(lambda: self._num_ready(set(ranks.values())) == self._num_ranks)
        killed_s = time.time()
        os.kill(ranks[attempt % self._num_ranks], signal.SIGKILL)
        (first,) = self._until(lambda: self._events("first_step", attempt + 1))
        return epoch_s(first) - killed_s

    def end(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(_TIMEOUT_S)

    def _events(self, name: str, attempt: int) -> list[dict[str, Any]]:
        try:
            text = (self._folder / "run" / "events.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        lines = text[: text.rfind("\n") + 1].splitlines()
        events = [json.loads(line) for line in lines if f'"{name}"' in line]
        return [e for e in events if (e["event"], e["attempt"]) == (name, attempt)]

    def _num_ready(self, ranks: set[int]) -> int:
        """Count the processes that wait to become ranks, and have imported all that they need."""
        variable = f"DDP_OUT={self._folder}".encode()
        pids = {int(path.name) for path in Path("/proc").glob("[0-9]*")}
        return sum(_waits(pid, variable) for pid in pids - ranks)

    def _until(self, found: Callable[[], Any]) -> Any:  # noqa: ANN401 -- what was found
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not (value := found()):
            if time.monotonic() > deadline_s or self._process.poll() is not None:
                raise RuntimeError(f"the job must train on; found code {self._process.poll()}")
            time.sleep(_POLL_S)
        return value


def _waits(pid: int, variable: bytes) -> bool:
    """Whether a process of this environment is a standby whose importing thread has ended."""
    try:
        process = Path("/proc", str(pid))
        if b"trainer.standby" not in (process / "cmdline").read_bytes():
            return False
        is_ours = variable in (process / "environ").read_bytes().split(b"\0")
        return is_ours and b"libtorch_cpu" in (process / "maps").read_bytes() and _is_idle(process)
    except OSError:
        return False  # it has ended


def _is_idle(process: Path) -> bool:
    """Whether none of its threads has the lowest priority, at which it imports."""
    stats = [(task / "stat").read_text() for task in (process / "task").iterdir()]
    return all(stat.rpartition(")")[2].split()[16] == "0" for stat in stats)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
