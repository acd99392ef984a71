"""Real runs for the tests: in this process, or as ranks in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator  # noqa: TC003 -- fixtures' annotations are read
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.growing import json_lines
from tests.trainer import forked
from tests.trainer.forked import RankProcess  # noqa: TC001 -- fixtures' annotations are read
from tests.trainer.ports import free_port

REPOSITORY = Path(__file__).parents[2]
_RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
ONE_CORE = {
    "OMP_NUM_THREADS": "1",  # other tests may want the other cores
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # else each rank starts processes that import torch
}


@dataclass
class RunDir:
    """What a run left behind."""

    path: Path

    def metrics(self, key: str = "loss") -> list[dict[str, Any]]:
        """Lines of metrics.jsonl that have `key`."""
        return [line for line in json_lines(self.path / "metrics.jsonl") if key in line]

    def losses(self) -> list[float]:
        """The loss of each log interval."""
        return [line["loss"] for line in self.metrics()]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events of that name."""
        events = json_lines(self.path / "events.jsonl")
        return [event for event in events if event["event"] == name]

    def summary(self) -> dict[str, Any]:
        """The last summary."""
        (*_, last) = self.events("summary")
        summary: dict[str, Any] = last["summary"]
        return summary

    def checkpoints(self) -> set[str]:
        """The names in checkpoints/."""
        return {entry.name for entry in (self.path / "checkpoints").iterdir()}


@dataclass
class Ranks:
    """Processes of `python -m trainer`, one a rank."""

    processes: list[RankProcess]
    run: RunDir
    output: list[tuple[str, str]] = field(default_factory=list)

    def wait(self, timeout_s: float = 120) -> list[int]:
        """Wait for all ranks; return their exit codes."""
        deadline_s = time.monotonic() + timeout_s
        for process in self.processes:
            self.output.append(process.communicate(max(0.1, deadline_s - time.monotonic())))
        return [process.wait() for process in self.processes]

    def wait_for_step(self, step: int, timeout_s: float = 90) -> None:
        """Wait until metrics.jsonl has `step`."""
        deadline_s = time.monotonic() + timeout_s
        file = self.run.path / "metrics.jsonl"
        while not (file.exists() and self.run.metrics() and self.run.metrics()[-1]["step"] >= step):
            assert time.monotonic() < deadline_s, "the run did not get there"
            assert all(p.poll() is None for p in self.processes), "a rank ended early"
            time.sleep(0.05)

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def clean_env(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment without what a launcher or a user may have set."""
    for name in [*_RANK_VARIABLES, *(n for n in os.environ if n.startswith("DDP_"))]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    for name, value in ONE_CORE.items():
        monkeypatch.setenv(name, value)
    return dict(os.environ)


@pytest.fixture
def start_ranks(
    clean_env: dict[str, str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Ranks]]:
    """Start `count` ranks with options; what still runs at the end of the test is killed.

    In values of `env`, {rank} stands for the rank's number.
    """
    started: list[Ranks] = []
    reported = tmp_path_factory.mktemp("reported")

    def start(
        count: int, *options: str, out: str = "run", env: dict[str, str] | None = None
    ) -> Ranks:
        port = free_port()
        processes = []
        for rank in range(count):
            place = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": count,
                "LOCAL_WORLD_SIZE": count,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": 1,
            }
            own = {k: v.format(rank=rank) for k, v in (env or {}).items()}
            name = f"{len(started)}-{rank}"
            processes.append(
                forked.start(
                    ["--out", str(tmp_path / out), *options],
                    {**clean_env, **{k: str(v) for k, v in place.items()}, **own},
                    tmp_path,
                    (reported / f"{name}.out", reported / f"{name}.err"),
                )
            )
        ranks = Ranks(processes, RunDir(tmp_path / out))
        started.append(ranks)
        return ranks

    yield start
    for ranks in started:
        ranks.end()


@pytest.fixture
def train(clean_env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., tuple[int, RunDir]]]:
    """Run the trainer in this process, one rank; return its exit code and its run directory."""
    from trainer.__main__ import main  # noqa: PLC0415 -- for the fast tests, torch stays out

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    handlers = [signal.getsignal(number) for number in numbers]

    def run(*options: str, out: str = "run") -> tuple[int, RunDir]:
        code = main(["--out", str(tmp_path / out), *options], clean_env)
        return code, RunDir(tmp_path / out)

    yield run
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)
