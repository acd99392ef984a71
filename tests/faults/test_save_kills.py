"""A save that is killed at random instants: the checkpoint before it is as good as ever."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults import rows, table
from tests.faults.driver import verify
from tests.faults.job import ROOT

pytestmark = pytest.mark.slow

SAVE_LOOP = ROOT / "tests" / "trainer" / "save_loop.py"
NUM_KILLS = 20
NUM_NUMBERS = 1_000_000
SAVE_S = 0.3


def test_save_killed_at_random_instants(tmp_path: Path) -> None:
    """20 times SIGKILL: what was complete is still there and good, or a newer one is."""
    chance, acknowledged = random.Random(time.time_ns()), tmp_path / "acknowledged"  # noqa: S311
    checkpoints, lost, torn = tmp_path / "checkpoints", 0, 0
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, SAVE_LOOP], env=env, text=True, **pipes) as saver:
        for _ in range(NUM_KILLS):
            pid = int(_ask(saver, f"{tmp_path} {NUM_NUMBERS}\n"))
            _await_save(checkpoints)
            time.sleep(chance.uniform(0, SAVE_S))  # the random instant
            os.kill(pid, signal.SIGKILL)
            assert _ask(saver) == "ended"
            promised = acknowledged.read_text().split() if acknowledged.exists() else []
            torn += any(checkpoints.glob(".step-*"))
            saved = [int(path.name.removeprefix("step-")) for path in checkpoints.glob("step-*")]
            for step in saved:
                verify(checkpoints / f"step-{step}")
            lost = max(lost, int(promised[-1]) - max(saved) if promised else 0)
        saver.kill()
    assert lost == 0
    assert torn > NUM_KILLS // 4, f"only {torn} kills hit a save"
    row = rows.Row(
        name=table.SAVE_KILLS,
        how=f"`kill -9` of a process that saves one checkpoint after the other, {NUM_KILLS} times;"
        f" {torn} times it left a torn one",
        steps_lost=lost,
        code=137,
        outcome="every checkpoint that was complete verifies",
    )
    folder = os.environ.get("DDP_FAULT_RESULTS")
    if folder:
        rows.save(row, Path(folder), table.NAMES.index(row.name))


def _ask(saver: subprocess.Popen[str], line: str = "") -> str:
    """Write a line, if there is one, and read the answer."""
    assert saver.stdin is not None
    assert saver.stdout is not None
    saver.stdin.write(line)
    saver.stdin.flush()
    return saver.stdout.readline().strip()


def _await_save(checkpoints: Path) -> None:
    """Wait until a save of this process is under way."""
    began = {path.name for path in checkpoints.glob(".step-*")}  # torn by the kill before
    deadline = time.monotonic() + 30
    while not {path.name for path in checkpoints.glob(".step-*.partial")} - began:
        assert time.monotonic() < deadline, "no save begins"
        began &= {path.name for path in checkpoints.glob(".step-*")}
        time.sleep(0.001)
