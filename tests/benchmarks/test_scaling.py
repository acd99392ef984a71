"""`python -m benchmarks.scaling`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.scaling import LAYOUTS, render

if TYPE_CHECKING:
    from conftest import Cluster

ROOT = Path(__file__).resolve().parents[2]


def rows(text: str) -> list[str]:
    """Give the table's rows."""
    return [line for line in text.splitlines() if line.startswith("| ") and " x " in line][1:]


def test_efficiency_is_taken_within_a_round() -> None:
    """By ranks, and by cores where they are fewer: 2.0, 1.0 and 1.5 times 1 rank, on 2 cores."""
    rates = dict(
        zip(LAYOUTS, ([160.0, 320.0, 80.0], [320.0, 320.0, 120.0], [160.0] * 3), strict=True)
    )
    assert rows(render(rates, 0.5, "A CPU, 2 cores", 2)) == [
        "| 1 | 1 x 1 | 10.0 | 160 | 100 % |",
        "| 2 | 1 x 2 | 10.0 | 320 | 75 % |",
        "| 4 | 2 x 2 | 2.5 | 160 | 25 % (50 %) |",
    ]


def test_without_a_cluster_its_row_is_left_out() -> None:
    """What was not measured has no row."""
    text = render({LAYOUTS[0]: [160.0]}, 0.5, "A CPU, 2 cores", 2)
    assert rows(text) == ["| 1 | 1 x 1 | 10.0 | 160 | 100 % |"]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.slurm
def test_a_quick_run_writes_every_row(cluster: Cluster, tmp_path: Path) -> None:
    """One rank, two in place, and two on each of two nodes, by one command."""
    out = tmp_path / "scaling.md"
    command = [sys.executable, "-m", "benchmarks.scaling", "--quick", "--out", out]
    done = cluster.run(command, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [row.split(" | ")[:2] for row in rows(out.read_text(encoding="utf-8"))]
    assert found == [["| 1", "1 x 1"], ["| 2", "1 x 2"], ["| 4", "2 x 2"]]
