"""A process that trains on a CPU keeps the memory that its tensors have freed.

Each step frees what the next one allocates again. glibc hands freed memory back to the system when
enough of it lies at the heap's end, and the system gives it out page by page, each filled with
zeros and asked for by a fault: some 4 % of the CPU time of a small model's step. When glibc does so
depends on the sizes of whatever was freed before, and so on chance.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_NEVER = -1
_LARGEST_BYTES = 32 << 20
"""Larger ones are always the system's: glibc takes no higher threshold."""


def keep_freed_memory(env: Mapping[str, str]) -> None:
    """Let malloc keep tensors of up to 32 MiB when they are freed, and give none of it back.

    Nothing is done where `env` sets malloc up itself, or where the C library has no such settings.
    """
    if any(name.startswith("MALLOC_") for name in env) or "malloc" in env.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
