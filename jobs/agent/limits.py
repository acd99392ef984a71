"""Resource limits of a rank.

Slurm hands on the soft limits of the shell that submitted: RDMA pins memory, ranks that all talk to
each other and data loaders need descriptors and threads.
"""

from __future__ import annotations

import resource
from contextlib import suppress

_MOST_FILES = 1_048_576
"""Programs that close every descriptor there may be take seconds with more."""


def raise_limits() -> None:
    """Raise each limit as far as this process may."""
    infinity = resource.RLIM_INFINITY
    _set(resource.RLIMIT_MEMLOCK, infinity, infinity)
    for limit in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        hard = resource.getrlimit(limit)[1]
        soft = hard
        if limit == resource.RLIMIT_NOFILE and (hard == infinity or hard > _MOST_FILES):
            soft = _MOST_FILES
        _set(limit, soft, hard)


def _set(limit: int, soft: int, hard: int) -> None:
    with suppress(ValueError, OSError):
        resource.setrlimit(limit, (soft, hard))
