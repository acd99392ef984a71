"""In which precision the model computes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from trainer.errors import UserError

if TYPE_CHECKING:
    from trainer.config import Precision

NOTHING = contextlib.nullcontext()
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_AMPERE = (8, 0)  # compute capability


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return what to compute a forward in; fp32 needs nothing."""
    dtype = _DTYPES.get(precision)
    return NOTHING if dtype is None else torch.autocast(device.type, dtype)


def set_up(precision: Precision, device: torch.device) -> None:
    """Get this process ready for `precision`. Raises UserError where the device has none."""
    if precision != "tf32":
        return
    if device.type != "cuda":
        found = device.type
    elif torch.cuda.get_device_capability(device) < _AMPERE:
        found = torch.cuda.get_device_name(device)
    else:
        torch.set_float32_matmul_precision("high")  # convolutions take TF32 unless told otherwise
        return
    raise UserError(
        "--precision tf32", rule="a GPU from Ampere on", found=found, remedy="take fp32"
    )
