"""In which precision the model computes; matrix products of 8-bit numbers are torchao's."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainer.errors import UserError
from trainer.parallel.plan import fits

if TYPE_CHECKING:
    from trainer.config import Precision
    from trainer.parallel.plan import ParallelPlan

NOTHING = contextlib.nullcontext()
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
"""What is computed in where it is not fp32; under fp8 that is what is left beside its products."""
_AMPERE, _ADA = (8, 0), (8, 9)  # compute capabilities
_MULTIPLE = 16
"""Sides of the 8-bit matrices that tensor cores take are multiples of this; others stay in bf16."""


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


def convert_to_float8(model: nn.Module, plan: ParallelPlan, tp: int = 1) -> None:
    """Let the linear layers of the blocks that `plan` names compute in 8 bits, in place.

    A layer of torchao's keeps its weight, and the weight its name. What goes into a product (input,
    weight, and in the backward the gradient) is divided by its own largest value as the product is
    taken, and rounded to 8 bits: e4m3, gradients to e5m2. Sums stay wide. What is outside of the
    blocks stays: an output layer loses most by it and gains little.
    Raises UserError if there is no such layer, or if its part on one of `tp` ranks is none.
    """
    # Of how torchao registers its types, torch warns on every rank.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    from torchao.float8 import (  # noqa: PLC0415 -- after that
        Float8LinearConfig,
        convert_to_float8_training,
    )

    blocks = [f"{name}." for name, _ in model.named_modules() if fits(name, plan.blocks)]
    chosen = {
        name
        for name, module in model.named_modules()
        if any(name.startswith(block) for block in blocks) and _is_convertible(module)
    }
    if not chosen:
        raise UserError(
            "--precision fp8",
            rule=f"have linear layers in the workload's blocks, with sides of multiples of"
            f" {_MULTIPLE}",
            found="none",
            remedy="take bf16",
        )
    for name in sorted(chosen):
        _check_part(name, model.get_submodule(name), plan, tp)
    # Padded where it is the number of tokens that is no such multiple.
    config = Float8LinearConfig(pad_inner_dim=True)
    convert_to_float8_training(
        model, module_filter_fn=lambda _, name: name in chosen, config=config
    )


def _check_part(name: str, layer: nn.Module, plan: ParallelPlan, tp: int) -> None:
    """Raise UserError if tensor parallelism leaves a rank a side that the tensor cores refuse."""
    style = next((style for pattern, style in plan.styles.items() if fits(name, pattern)), None)
    if style not in ("columns", "rows"):
        return
    assert isinstance(layer, nn.Linear)  # noqa: S101 -- see _is_convertible
    side = layer.out_features if style == "columns" else layer.in_features
    if side % (_MULTIPLE * tp):
        raise UserError(
            "--precision fp8",
            rule=f"leave matrices with sides of multiples of {_MULTIPLE} on each rank of tp",
            found=f"{side} / {tp} of {name}",
            remedy="take another --tp, or bf16",
        )


def _is_convertible(module: nn.Module) -> bool:
    if not isinstance(module, nn.Linear):
        return False
    return not (module.in_features % _MULTIPLE or module.out_features % _MULTIPLE)
