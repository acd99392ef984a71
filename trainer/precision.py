"""In which precision the model computes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from trainer.config import Precision

NOTHING = contextlib.nullcontext()
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return what to compute a forward in; fp32 needs nothing."""
    dtype = _DTYPES.get(precision)
    return NOTHING if dtype is None else torch.autocast(device.type, dtype)
