"""How the tensors of a checkpoint are named.

model/<name>                    weights and buffers
optimizer/<parameter>/<key>     what the optimizer keeps for a parameter
rank/<r>/loss_sum               the losses of the current log interval
rank/<r>/generator/<name>       random generators

What is of one rank alone is named rank/<r>/…; all else belongs to the run as a whole.
"""

from __future__ import annotations

MODEL = "model/"
OPTIMIZER = "optimizer/"
_RANK = "rank/"
_LOSS_SUM = "loss_sum"


def of_rank(rank: int) -> str:
    """Return how the names of what is that rank's alone begin."""
    return f"{_RANK}{rank}/"


def generators_of(rank: int) -> str:
    """Return how the names of that rank's random generators begin."""
    return f"{of_rank(rank)}generator/"


def loss_sum_of(rank: int) -> str:
    """Return the name of that rank's losses of the interval."""
    return of_rank(rank) + _LOSS_SUM


def split_rank(name: str) -> tuple[str, str] | None:
    """Return whose a tensor is and what it is to that rank; None: it is the run's."""
    if not name.startswith(_RANK):
        return None
    rank, _, own = name.removeprefix(_RANK).partition("/")
    return rank, own


def is_loss_sum(name: str) -> bool:
    """Whether it is some rank's losses."""
    split = split_rank(name)
    return split is not None and split[1] == _LOSS_SUM
