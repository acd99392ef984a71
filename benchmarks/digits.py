"""The digits that ship with the package, repeated to MNIST's 60,000, where torchvision finds them.

Repeated, because then no contestant comes to the end of an epoch: what is timed is steps alone,
and the set is as large in memory as the tutorial's.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.workloads.mnist import IdxArray, read_idx

if TYPE_CHECKING:
    from torch import Tensor

_SHIPPED = Path(__file__).parent.parent / "trainer" / "workloads" / "digits"
_NUM_DIMS = {
    "train-images-idx3-ubyte": 3,
    "train-labels-idx1-ubyte": 1,
    "t10k-images-idx3-ubyte": 3,
    "t10k-labels-idx1-ubyte": 1,
}
_NUM_REPEATS = 12
_UNSIGNED_BYTE = 0x08


def write_digits(folder: Path) -> None:
    """Write `folder`/MNIST/raw with the four IDX files."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, num_dims in _NUM_DIMS.items():
        array = read_idx(_SHIPPED / f"{name}.gz", num_dims)
        num_repeats = _NUM_REPEATS if name.startswith("train") else 1
        (raw / name).write_bytes(_idx(array, num_repeats))


def load_tensors(folder: Path) -> tuple[Tensor, Tensor]:
    """Return inputs of shape (60000, 1, 28, 28), normalised, and targets of shape (60000,)."""
    from torchvision import datasets  # noqa: PLC0415 -- slow, and writing needs none of it

    dataset = datasets.MNIST(str(folder), train=True)
    inputs = ((dataset.data.float() / 255 - 0.1307) / 0.3081).unsqueeze(1)
    return inputs, dataset.targets


def _idx(array: IdxArray, num_repeats: int) -> bytes:
    num_samples, *rest = array.shape
    shape = (num_samples * num_repeats, *rest)
    magic = (_UNSIGNED_BYTE << 8) + len(shape)
    return struct.pack(f">I{len(shape)}I", magic, *shape) + array.data * num_repeats
