"""The fault matrix: every fault, in the order of its start and in that of the document."""

from __future__ import annotations

from tests.faults.of_files import DAMAGE, DATA, DISK_FULL, STALL
from tests.faults.of_nodes import (
    BAD_NODES,
    BATCH_NODE,
    CLOCK,
    LOST_NODE,
    NETWORK,
    PENDING,
    PREEMPTION,
    READ_ONLY,
    SCRIPT,
    SHRINKING,
    SPARES,
    TIME_LIMIT,
    WEAK,
)
from tests.faults.of_processes import COPIES, CRASHES, ENDURED, HANGS, NOT_A_NUMBER, PORT

SCENARIOS = (
    TIME_LIMIT,
    PREEMPTION,
    BATCH_NODE,
    LOST_NODE,
    SPARES,
    SHRINKING,
    BAD_NODES,
    CRASHES,
    NETWORK,
    HANGS,
    DAMAGE,
    ENDURED,
    STALL,
    PENDING,
    COPIES,
    WEAK,
    DATA,
    NOT_A_NUMBER,
    PORT,
    READ_ONLY,
    SCRIPT,
    DISK_FULL,
    CLOCK,
)
"""In the order in which they are started: the longest first."""

ON_A_QUIET_MACHINE = (COPIES, WEAK)
"""Played by `make faults` alone: beside other tests a slow link does not show, and a snapshot may
be replaced while it is being damaged."""

ROWS = (
    *CRASHES.faults,
    *ENDURED.faults[:1],
    *SCRIPT.faults,
    *NETWORK.faults,
    *WEAK.faults[:1],
    *SHRINKING.faults,
    *LOST_NODE.faults,
    *BATCH_NODE.faults,
    *READ_ONLY.faults,
    *PENDING.faults,
    *BAD_NODES.faults,
    *SPARES.faults,
    *HANGS.faults,
    *ENDURED.faults[1:],
    *TIME_LIMIT.faults,
    *PREEMPTION.faults,
    *DISK_FULL.faults[1:],
    *DISK_FULL.faults[:1],
    *WEAK.faults[1:],
    *DAMAGE.faults,
    *COPIES.faults,
    *PORT.faults,
    *STALL.faults,
    *CLOCK.faults,
    *NOT_A_NUMBER.faults,
    *DATA.faults,
)
SAVE_KILLS = "save killed at 20 random instants"
NAMES = (*(fault.name for fault in ROWS), SAVE_KILLS)
"""In the order of docs/faults.md."""
