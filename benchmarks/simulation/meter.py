"""What each phase of a simulated job costs: read from /proc and from what the fakes wrote down."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NOTES = ("files", "requests", "used", "messages", "links")
"""What is written down, a file each: calls with a path, starts of programs, programs that ended,
numbers of messages, and what the preflight measured."""
_EVENT = re.compile(rb'"event": "(\w+)", "source": "\w+", "attempt": (\d+), ')
_TICKS = os.sysconf("SC_CLK_TCK")


class Phase(NamedTuple):
    """What one phase of the job's life cost."""

    name: str
    wall_s: float
    cpu_s: float
    """Of the supervisor's own process."""
    peak_mib: float
    num_messages: int
    """Events that ranks and nodes reported to it."""
    num_files: int
    """Different paths under the output directory that it, or `compose`, named to the system."""
    num_file_calls: int
    requests: Mapping[str, int]
    """Starts of Slurm's programs that ask the controller."""
    compose_cpu_s: float
    compose_mib: float
    """0 if the record was not composed."""


class Meter:
    """Reads how far a job is.

    Args:
        notes: Where the fakes write.
        events: The run's log of events.

    """

    def __init__(self, notes: Path, events: Path) -> None:
        """Begin with nothing."""
        self._notes, self._events = notes, events
        self.pid = 0
        """Of the job's script, once it is started."""
        self.phases: dict[str, Phase] = {}
        self._counts: Counter[tuple[bytes, bytes]] = Counter()
        self._num_bytes = 0  # of the events that are counted
        self._cpu_s = 0.0  # at the end of the last phase, where the next one begins
        self._num_lines = dict.fromkeys(NOTES, 0)
        for name in NOTES:
            (notes / name).touch()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what happens meanwhile."""
        began_s, pid, cpu_s = time.monotonic(), self.pid, self._cpu_s
        if self._is_running():
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")  # begins a new peak
        yield
        self._cpu_s, peak_mib = self._used()
        new = {kind: self._new_lines(kind) for kind in NOTES}
        composed = [line.split() for line in new["used"] if " compose " in line]
        asked = [line for line in new["requests"] if "show hostnames" not in line]
        self.phases[name] = Phase(
            name=name,
            wall_s=time.monotonic() - began_s,
            cpu_s=self._cpu_s - (cpu_s if pid == self.pid else 0),
            peak_mib=peak_mib,
            num_messages=sum(map(int, new["messages"])),
            num_files=len({line.partition(" ")[2] for line in new["files"]}),
            num_file_calls=len(new["files"]),
            requests=Counter(line.split()[0] for line in asked),
            compose_cpu_s=sum(float(words[1]) for words in composed),
            compose_mib=max((int(words[2]) / 1024 for words in composed), default=0),
        )

    def lines(self, kind: str) -> list[str]:
        """Read what was written down of a kind so far."""
        return (self._notes / kind).read_text().splitlines()

    def _new_lines(self, kind: str) -> list[str]:
        lines = self.lines(kind)
        num, self._num_lines[kind] = self._num_lines[kind], len(lines)
        return lines[num:]

    def count(self, event: str, attempt: int) -> int:
        """Count the events of a name that are written."""
        if self._events.exists():
            with self._events.open("rb") as file:
                file.seek(self._num_bytes)
                lines = file.read().rpartition(b"\n")[0] + b"\n"
            self._num_bytes += len(lines) if lines.strip() else 0
            self._counts.update(_EVENT.findall(lines))
        return self._counts[event.encode(), str(attempt).encode()]

    # ---- the supervisor's process

    def _is_running(self) -> bool:
        try:
            return bool(self.pid) and b") Z" not in Path(f"/proc/{self.pid}/stat").read_bytes()
        except FileNotFoundError:
            return False

    def _used(self) -> tuple[float, float]:
        """CPU seconds so far and the peak of memory, in MiB; of an ended one as it wrote itself."""
        if not self._is_running():
            pids = [line.split() for line in self.lines("used")]
            words = next(words for words in pids if words[0] == str(self.pid))
            return float(words[1]), int(words[2]) / 1024
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        return (int(stat[11]) + int(stat[12])) / _TICKS, peak_kib / 1024
