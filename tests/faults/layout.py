"""The cluster that the faults befall: its nodes, and how a job asks for some of them."""

from __future__ import annotations

PREFIX = "fx"
NUM_NODES = 14
SKEWED_NODE = "fx9"
SKEW_S = 3600


def on(*numbers: int, ranks_per_node: int = 1) -> tuple[str, ...]:
    """Give sbatch's options for these nodes."""
    names = ",".join(f"{PREFIX}{number}" for number in numbers)
    return (f"--nodelist={names}", f"--nodes={len(numbers)}", f"--ntasks-per-node={ranks_per_node}")
