"""How busy a GPU was: the same for reports and diagnosis."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def activity(
    utilisation: Sequence[NDArray[np.floating]], sm_activity: Sequence[NDArray[np.floating]]
) -> NDArray[np.floating] | None:
    """Return it in %, (samples,): by the driver's own window, the ring where that saw more.

    A GPU whose utilisation is not reported (MIG) has its SM activity; None if it has neither.

    Args:
        utilisation: `sm` and `smavg`, those that have readings.
        sm_activity: `smact` or `smutil`, the same.

    """
    return highest(utilisation) if utilisation else next(iter(sm_activity), None)


def highest(columns: Sequence[NDArray[np.floating]]) -> NDArray[np.floating]:
    """Give the highest reading of each sample, of one column or several."""
    found: NDArray[np.floating] = reduce(np.fmax, columns)
    return found
