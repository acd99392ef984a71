"""A supervisor of thousands of ranks, measured as `python -m benchmarks.reports` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import reports

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow


def test_512_nodes_of_8_agents(patience: Callable[[float], float]) -> None:
    """4,096 starts and ends and one failure in the middle: none lost, none twice, the right one.

    Each rank reports its start, its first step and its end, the one that fails also why. What the
    others report while they end comes twice: through the pipe, and in their nodes' own files.
    """
    cost = reports.measure(512, 8)
    assert cost.num_events == 3 * 4096 + 1
    assert (cost.failed_rank, cost.code) == (2049, 41)
    assert cost.wall_s < patience(10)
    assert cost.cpu_s < cost.wall_s  # of one core
    assert cost.memory_mb < 500
