"""How much of what the devices could do a run does.

tokens/s   samples/s times the tokens of a sample
FLOP/s     samples/s times what a sample takes by the workload, forward and backward
MFU        FLOP/s over the sum of the devices' peaks: model FLOPs utilisation (arXiv 2204.02311).
           What is computed twice to save memory does not count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DENSE_BF16_TFLOPS = (
    # NVIDIA's data sheets, which print twice as much where they assume sparsity.
    ("B200", 2250.0),
    ("H200 NVL", 835.5),
    ("H200", 989.4),
    ("H100 NVL", 835.5),
    ("H100 PCIe", 756.4),
    ("H100", 989.4),
    ("H800", 989.4),
    ("A100", 311.9),
    ("A800", 311.9),
    ("L40S", 362.0),
    ("A40", 149.7),
    ("A10", 125.0),
    ("L4", 121.0),
)
"""By a part of the device's name; the first match counts."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What a run's speed in samples comes to; what is not known is None."""

    tokens_per_s: float | None = None
    flops_per_s: float | None = None
    """Over all ranks."""
    mfu_pct: float | None = None
    """Of the dense bf16 peak, whatever the run computes in."""

    def texts(self) -> list[str]:
        """Describe what is known."""
        texts = []
        if self.tokens_per_s is not None:
            texts.append(f"{self.tokens_per_s:.0f} tokens/s")
        if self.flops_per_s is not None:
            texts.append(f"{self.flops_per_s / 1e12:.3g} TFLOP/s")
        if self.mfu_pct is not None:
            texts.append(f"MFU {self.mfu_pct:.1f} %")
        return texts


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a sample takes, and what the devices could do."""

    tokens_per_sample: int | None
    flops_per_sample: float | None
    peak_flops_per_s: float | None
    """Of all devices together."""

    def speed(self, samples_per_s: float) -> Speed:
        """Return what so many samples a second come to."""
        flops = None if self.flops_per_sample is None else self.flops_per_sample * samples_per_s
        tokens = None if self.tokens_per_sample is None else self.tokens_per_sample * samples_per_s
        mfu_pct = None
        if flops is not None and self.peak_flops_per_s is not None:
            mfu_pct = 100 * flops / self.peak_flops_per_s
        return Speed(tokens_per_s=tokens, flops_per_s=flops, mfu_pct=mfu_pct)


def peak_flops_per_s(device_name: str) -> float | None:
    """Return a device's dense bf16 peak; None for one that the table does not know.

    Nor does it know that of a MIG instance, whose name holds the whole GPU's.
    """
    if re.search(r"\bMIG\b", device_name):
        return None
    for part, tflops in _DENSE_BF16_TFLOPS:
        if re.search(rf"\b{part}\b", device_name):
            return tflops * 1e12
    return None
