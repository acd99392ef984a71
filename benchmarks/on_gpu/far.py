"""A kernel that writes far from the memory that it was given."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store(pointer, distance):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, D103
    tl.store(pointer + distance.to(tl.int64), 1.0)
