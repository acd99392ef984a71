"""Who failed first in an attempt, and why: one table, one answer, live and afterwards."""

from rundir.failure.classify import OUT_OF_MEMORY, Failure, classify, suspected_nodes

__all__ = ["OUT_OF_MEMORY", "Failure", "classify", "suspected_nodes"]
