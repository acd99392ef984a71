"""A job that suffers fault after fault gets on nearly as fast as one without any."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.faults import storm, storm_page

SEED = int(os.environ.get("DDP_STORM_SEED", "1"))
DURATION_S = float(os.environ.get("DDP_STORM_S", "900"))
INTERVAL_S = float(os.environ.get("DDP_STORM_INTERVAL_S", "45"))
REFERENCE_S = os.environ.get("DDP_STORM_REFERENCE_S")
"""Unset: until it has done the storm's steps, so that all losses are compared."""


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.timeout(4 * DURATION_S + 600)
@pytest.mark.skipif(
    "DDP_FAULT_RESULTS" not in os.environ, reason="the storm takes half an hour: make faults"
)
@pytest.mark.skipif(not storm.MNIST.is_dir(), reason="no MNIST beside the checkout")
def test_storm(fault_cluster: Any, tmp_path: Path) -> None:
    """It starts again after each; every loss is that of the run without faults; nothing is left.

    How fast it gets on depends on the machine: the document says it, and whether it is enough.
    """
    found = storm.play(
        fault_cluster,
        tmp_path,
        seed=SEED,
        duration_s=DURATION_S,
        interval_s=INTERVAL_S,
        reference_s=None if REFERENCE_S is None else float(REFERENCE_S),
    )
    text = storm_page.render(found)
    print(text, *found.hits, sep="\n")
    Path(os.environ["DDP_FAULT_RESULTS"], storm_page.FILE).write_text(text, encoding="utf-8")
    assert len(found.hits) + 1 == found.num_starts
    assert found.wrong_losses == []


def run(num_steps: int, **losses: float) -> storm.Run:
    """A run of ten seconds; a loss by its step, whose number follows a letter."""
    several: dict[int, set[float]] = {}
    for name, loss in losses.items():
        several.setdefault(int(name[1:]), set()).add(loss)
    return storm.Run(num_steps=num_steps, window_s=10.0, losses=several)


def test_what_is_measured() -> None:
    """Steps by time, of the calm run's; a loss that differs is found, also one done again."""
    found = storm.Storm(
        seed=1,
        interval_s=45.0,
        hits=[],
        stormy=run(80, s10=0.5, s20=0.4, t20=0.3, s40=0.1),
        calm=run(100, s10=0.5, s20=0.4, s30=0.2),
        num_starts=1,
        steps_again={},
    )
    assert found.goodput_pct == 80
    assert found.wrong_losses == [20]
    text = storm_page.render(found)
    assert "80 % of the 10.0" in text
    assert "missed" in text
    assert {line.count("|") for line in text.splitlines()[-7:]} == {10}


def test_a_seed_draws_the_same_faults_again() -> None:
    """All kinds come in a storm of a quarter of an hour."""
    assert storm.draw(1, 20) == storm.draw(1, 20) != storm.draw(2, 20)
    assert set(storm.draw(1, 20)) == set(storm.KINDS)
