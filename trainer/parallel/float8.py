"""Matrix products of 8-bit floating point numbers, by torchao's layers.

A layer keeps its weight, and the weight its name. What goes into a product (input, weight, and in
the backward the gradient) is divided by its own largest value as the product is taken, and rounded
to 8 bits: e4m3, gradients to e5m2. Sums stay wide. All else is computed as under bf16.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from torch import nn

from trainer.errors import UserError
from trainer.parallel.plan import fits

if TYPE_CHECKING:
    from trainer.parallel.plan import ParallelPlan

_MULTIPLE = 16
"""The tensor cores take matrices whose sides are multiples of this; others stay in bf16."""


def convert(model: nn.Module, plan: ParallelPlan, tp: int = 1) -> None:
    """Convert the linear layers of the blocks that `plan` names, in place.

    What is outside of the blocks stays: an output layer loses most by it and gains little.
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
