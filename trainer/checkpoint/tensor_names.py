"""The names of a checkpoint's tensors: the run's, and each rank's own under `rank/<r>/`."""

from __future__ import annotations

MODEL = "model/"
OPTIMIZER = "optimizer/"
GENERATORS = "generator/"
LOSS_SUM = "loss_sum"
"""The last two are each rank's own: its random generators, and its losses of the interval."""
_RANK = "rank/"


def of_rank(rank: int, own: str = "") -> str:
    """Return the name of what is that rank's alone, or how such names begin."""
    return f"{_RANK}{rank}/{own}"


def split_rank(name: str) -> tuple[str, str] | None:
    """Return whose a tensor is and what it is to that rank; None: it is the run's."""
    if not name.startswith(_RANK):
        return None
    rank, _, own = name.removeprefix(_RANK).partition("/")
    return rank, own


def is_loss_sum(name: str) -> bool:
    """Whether it is some rank's losses."""
    return name.startswith(_RANK) and name.endswith(f"/{LOSS_SUM}")
