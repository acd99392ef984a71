"""Every fault of the matrix: seen, torn down, gone on from the last checkpoint, and named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import rows, table

if TYPE_CHECKING:
    from tests.faults.driver import Fault

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(900)]

SCENARIO_OF = {fault.name: scenario for scenario in table.SCENARIOS for fault in scenario.faults}
IN_ORDER_OF_START = [
    fault
    for scenario in table.SCENARIOS
    for fault in scenario.faults
    if "DDP_FAULT_RESULTS" in os.environ or scenario not in table.ON_A_QUIET_MACHINE
]


@pytest.mark.parametrize("fault", IN_ORDER_OF_START, ids=lambda fault: fault.name)
def test_fault(fault: Fault, played: Any) -> None:
    """What the table expects of it happens; nothing that was saved is lost, no process is left."""
    result = played[SCENARIO_OF[fault.name].name].result()[fault.name]
    if isinstance(result, BaseException):
        raise result
    folder = os.environ.get("DDP_FAULT_RESULTS")
    if folder:
        rows.save(result, Path(folder), table.NAMES.index(fault.name))


def test_every_fault_has_its_row() -> None:
    """The document shows every fault once."""
    assert sorted(fault.name for fault in table.ROWS) == sorted(SCENARIO_OF)
