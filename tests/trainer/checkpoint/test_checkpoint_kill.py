"""Saves that are killed at any instant, on real files by a real signal."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer.checkpoint import loading
from trainer.checkpoint.layout import CheckpointFolder

pytestmark = pytest.mark.slow

NUM_KILLS = 25
_SCRIPT = Path(__file__).parents[1] / "save_loop.py"


@pytest.fixture
def saver(clean_env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The process that forks saving processes."""
    with subprocess.Popen(
        [sys.executable, str(_SCRIPT)],
        env=clean_env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def ask(saver: Any, line: str = "") -> str:
    """Write a line, if there is one, and read the answer."""
    if line:
        saver.stdin.write(line + "\n")
        saver.stdin.flush()
    answer: str = saver.stdout.readline().strip()
    return answer


def newest(folder: Path) -> int:
    """The step of the newest checkpoint, after reading all of its files and values."""
    opened = CheckpointFolder(folder)
    opened.open()  # what a start does first
    for name in opened.names():  # none may be damaged, not only the newest
        loading.verify(folder / name)
    stored = loading.read_index(folder / opened.names()[0])
    step = stored.state.position.step
    tensors = loading.read_named(stored, "model/")
    assert len(tensors) == 3
    for tensor in tensors.values():
        assert tensor.unique().tolist() == [step]
    return step


def test_a_save_killed_at_any_instant_leaves_the_newest_complete_one(
    saver: subprocess.Popen[str], tmp_path: Path
) -> None:
    """25 times SIGKILL: every step that was complete is there, whole, or a later one."""
    chance = random.Random(time.time_ns())  # noqa: S311 -- no secret
    acknowledged, last, states = tmp_path / "acknowledged", 0, set()
    acknowledged.touch()
    for _ in range(NUM_KILLS):
        size = chance.choice([1, 1000, 100_000, 1_000_001])
        pid = int(ask(saver, f"{tmp_path} {size}"))
        before = len(acknowledged.read_text().splitlines())
        deadline_s = time.monotonic() + 20
        while len(acknowledged.read_text().splitlines()) == before:  # it has begun
            assert time.monotonic() < deadline_s
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.05))
        os.kill(pid, signal.SIGKILL)
        assert ask(saver) == "ended"
        states |= {entry.name.lstrip(".").rpartition(".")[2] for entry in _hidden(tmp_path)}
        promised = int(acknowledged.read_text().splitlines()[-1])
        found = newest(tmp_path / "checkpoints")
        assert found in (promised, promised + 1)
        assert found > last
        last = found
    assert "partial" in states  # some kills came in the middle of writing


def _hidden(folder: Path) -> list[Path]:
    return list((folder / "checkpoints").glob(".step-*"))
