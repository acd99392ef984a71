"""A job that suffers fault after fault gets on nearly as fast as one without any."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.faults import storm

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
    text = storm.render(found)
    print(text, *found.hits, sep="\n")
    Path(os.environ["DDP_FAULT_RESULTS"], storm.FILE).write_text(text, encoding="utf-8")
    assert len(found.hits) + 1 == found.num_starts
    assert found.wrong_losses == []
