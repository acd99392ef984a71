"""Which backend starts the ranks here: the first that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.backends.containers import HostImage, InContainer, as_owner
from jobs.backends.local import Local
from jobs.backends.srun import Srun
from jobs.messages import info

if TYPE_CHECKING:
    from jobs.backends.base import Backend, Surroundings

BACKENDS = (InContainer, HostImage, Srun, Local)


def choose(here: Surroundings) -> tuple[Surroundings, Backend]:
    """Choose the backend. Raises UsageError where ranks would have to start where none can."""
    here = as_owner(here)
    kind = next(kind for kind in BACKENDS if kind.fits(here))
    backend: Backend = kind(here)
    for name in ("DDP_IMAGE", "DDP_STAGE_IMAGE"):
        if here.is_in_container and here.environ.get(name, "0") not in ("", "0"):
            info(f"warning: {name} is ignored, the batch script already runs in a container")
    return here, backend
