"""In which precision the model computes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from trainer.errors import UserError

if TYPE_CHECKING:
    from trainer.config import Precision

NOTHING = contextlib.nullcontext()
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""What is computed in where it is not fp32; under fp8 that is what is left beside its products."""
_AMPERE, _ADA = (8, 0), (8, 9)  # compute capabilities


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return what to compute a forward in; fp32 needs nothing."""
    dtype = HALVES.get(precision)
    return NOTHING if dtype is None else torch.autocast(device.type, dtype)


def set_up(precision: Precision, device: torch.device) -> None:
    """Get this process ready for `precision`. Raises UserError where the device has none."""
    if precision == "tf32":
        if device.type != "cuda":
            raise _error(precision, "a GPU from Ampere on", device.type, "take fp32")
        _check_gpu(precision, "a GPU from Ampere on", _AMPERE, device)
        torch.set_float32_matmul_precision("high")
    if precision == "fp32":
        # Convolutions take TF32 unless set otherwise. By the older of torch's two ways to set it:
        # the newer one lets those fail that ask by the older, as torch does itself.
        torch.backends.cudnn.allow_tf32 = False
    if precision == "fp8" and device.type == "cuda":  # a CPU has it, too: slow, but to try it
        _check_gpu(precision, "a GPU from Ada or Hopper on", _ADA, device)


def _check_gpu(precision: Precision, rule: str, lowest: tuple[int, int], gpu: torch.device) -> None:
    if torch.cuda.get_device_capability(gpu) < lowest:
        raise _error(precision, rule, torch.cuda.get_device_name(gpu), "take bf16 or fp32")


def _error(precision: Precision, rule: str, found: str, remedy: str) -> UserError:
    return UserError(f"--precision {precision}", rule=f"have {rule}", found=found, remedy=remedy)
