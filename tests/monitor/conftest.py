"""A recorder as users run it, and the driver library it finds."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from monitor import cli
from monitor.logs import gutil
from monitor.logs.sample import GpuSample, HostSample, RankSample, Row
from tests.monitor import stub_driver
from tests.monitor.reported import Written, writer

HERE = Path(__file__).parent
DATA = HERE / "data"
DEADLINE_S = 20.0


@pytest.fixture
def data() -> Path:
    """True dmon logs."""
    return DATA


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes logs of ours, for the report to read."""
    return writer(tmp_path)


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait for a condition, with a deadline."""

    def wait(condition: Callable[[], object], limit_s: float = DEADLINE_S) -> None:
        deadline_s = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline_s, f"not within {limit_s} s"
            time.sleep(0.01)

    return wait


@dataclass(frozen=True)
class Driver:
    """A stub libnvidia-ml.so.1 and the file it follows."""

    library: Path
    script: Path

    @property
    def env(self) -> dict[str, str]:
        """What a process needs in its environment to find this driver."""
        return {"LD_LIBRARY_PATH": str(self.library), "NVML_STANDIN": str(self.script)}

    def does(self, *lines: str) -> None:
        """Let the driver behave so from its next call on."""
        beside = self.script.with_suffix(".new")
        beside.write_text("".join(f"{line}\n" for line in lines))
        beside.replace(self.script)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver of today."""
    return stub_driver.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver of yesterday: newer functions are not there at all."""
    return stub_driver.build(tmp_path_factory.mktemp("nvml-old"), "-DOLD_DRIVER")


@pytest.fixture
def driver(library: Path, tmp_path: Path) -> Driver:
    """Two GPUs under a driver of today."""
    made = Driver(library, tmp_path / "driver.txt")
    made.does("gpus 2")
    return made


@pytest.fixture
def old_driver(old_library: Path, tmp_path: Path) -> Driver:
    """Two GPUs under a driver of yesterday."""
    made = Driver(old_library, tmp_path / "driver.txt")
    made.does("gpus 2")
    return made


@pytest.fixture
def coming_driver(tmp_path: Path) -> Driver:
    """Two GPUs under a driver without what goes away with CUDA 14."""
    made = Driver(stub_driver.build(tmp_path, "-DCUDA_14"), tmp_path / "driver.txt")
    made.does("gpus 2")
    return made


@dataclass
class Recording:
    """A running `python -m monitor record`."""

    process: subprocess.Popen[str]
    out: Path

    def text(self) -> str:
        """What the log holds now."""
        return self.out.read_text() if self.out.exists() else ""

    def rows(self) -> list[str]:
        """The rows of the log now."""
        return [line for line in self.text().splitlines() if line.startswith(" ")]

    def end(self) -> tuple[int, str]:
        """Ask it to end; its exit code and its messages."""
        self.process.send_signal(signal.SIGTERM)
        _, output = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, output


@dataclass
class Bench:
    """Starts recorders, and leaves none behind."""

    directory: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def command(self, *options: object) -> list[str]:
        """The words of a `record` command."""
        return [sys.executable, "-m", "monitor", "record", *map(str, options)]

    def start(self, *options: object, env: dict[str, str] | None = None) -> Recording:
        """Start a recorder that writes job.gutil."""
        out = self.directory / "job.gutil"
        process = subprocess.Popen(
            self.command("--out", out, *options),
            env={**os.environ, **(env or {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return Recording(process, out)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Start recorders; they are ended with the test."""
    made = Bench(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


class Story:
    """A run written by hand: its events, metrics and logs, a second after one another.

    Two ranks, rank 0 on n1 and rank 1 on n2, unless a test names others.
    """

    def __init__(self, directory: Path) -> None:
        self.run_dir = directory / "out" / "slurm-42"
        self.now_s = datetime(2026, 11, 21, 4, 17, 0, tzinfo=UTC).timestamp()
        self.attempt = 1
        self.events: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.logs: dict[int, str] = {}

    @property
    def time(self) -> str:
        """Now, as events have it."""
        moment = datetime.fromtimestamp(self.now_s, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def add_event(self, name: str, after_s: float = 1.0, **further: object) -> None:
        """Add an event, so many seconds after the last one."""
        self.now_s += after_s
        head = {"time": self.time, "event": name, "source": "trainer" if further.get("by") else "x"}
        self.events.append(head | {"attempt": self.attempt, "host": "n1"} | further)

    def start(
        self, *, job_id: str = "42", command: tuple[str, ...] = (), **further: object
    ) -> None:
        """Start an attempt: both ranks are up."""
        nodes = {"nodes": ["n1", "n2"], "world_size": 2, "place": "bare-srun"}
        reported = {
            "job_id": job_id,
            "run": "slurm-42",
            "command": list(command),
            **nodes,
            **further,
        }
        self.add_event("start", **reported)
        for rank in (0, 1):
            offset = len(self.logs.get(rank, "").encode())
            where = {"rank": rank, "local_rank": 0, "node": f"n{rank + 1}", "pid": 10 + rank}
            self.add_event("rank_up", log_offset=offset, **where)

    def train(self, begin: int, last: int, every: int = 10, saves: tuple[int, ...] = ()) -> None:
        """Train from one step to another, a second a step, with a checkpoint at some."""
        path = f"checkpoints/step-{begin}" if begin else None
        self.add_event("resume", 0, by="trainer", step=begin, path=path, skipped=[])
        self.add_event("first_step", by="trainer", step=begin + 1)
        for step in range(begin + 2, last + 1):
            self.now_s += 1
            if step % every == 0:
                sums = {"data_wait_s": 0.1 * (step - begin), "validation_s": 0.0}
                sums["checkpoint_s"] = 0.0
                line = {"time": self.time, "attempt": self.attempt, "step": step, "loss": 1 / step}
                self.metrics.append(line | sums)
            if step in saves:
                self.add_event(
                    "checkpoint", 0, step=step, path=f"checkpoints/step-{step}", seconds=0.1
                )

    def emit(self, rank: int, text: str) -> None:
        """Let a rank write to its log."""
        self.logs[rank] = self.logs.get(rank, "") + text

    def rank_end(
        self, rank: int, code: int, signal: str | None = None, *, requested: bool = False
    ) -> None:
        """End a rank."""
        node = f"n{rank + 1}"
        self.add_event(
            "rank_end", rank=rank, node=node, code=code, signal=signal, requested=requested
        )

    def fail(self, rank: int, code: int, signal: str | None = None, text: str = "") -> None:
        """Let a rank fail: the other is asked to end, and the attempt ends with the code."""
        self.emit(rank, text)
        self.rank_end(rank, code, signal)
        self.rank_end(1 - rank, 143, "TERM", requested=True)
        self.add_event("end", code=code)

    def again(self) -> None:
        """Go on to the next attempt."""
        self.attempt += 1

    def write(self) -> Path:
        """Write the run directory; its path."""
        (self.run_dir / "logs").mkdir(parents=True, exist_ok=True)
        for name, lines in (("events", self.events), ("metrics", self.metrics)):
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (self.run_dir / f"{name}.jsonl").write_text(text)
        for rank, text in self.logs.items():
            (self.run_dir / "logs" / f"rank-{rank}.log").write_text(text)
        return self.run_dir

    def gutil(
        self,
        node: str,
        *rows: tuple[str, GpuSample, HostSample],
        more: str = "",
        ranks: Sequence[RankSample] = (),
    ) -> None:
        """Leave a monitor's log of a node: samples at times such as 04:17:02, in UTC."""
        layout = gutil.Layout("pumtcjrgh" + "q" * bool(ranks))
        text = layout.header() + "## utc_offset: +00:00\n"
        for number, (clock, gpu, host) in enumerate(rows):
            moment = datetime.strptime(f"2026-11-21 {clock}", "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007
            rank = ranks[number] if ranks else RankSample()
            text += layout.line(Row(moment, gpu, host, rank))
        path = self.run_dir.parent / f"slurm-42.{node}.gutil"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + more)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """A run to be written by hand."""
    return Story(tmp_path)


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process: its code, its output, and its errors."""

    def run(*argv: object) -> tuple[int, str, str]:
        code = cli.main([str(one) for one in argv])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run
