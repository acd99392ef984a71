"""A rank's random generators: Python's, NumPy's, torch's on the CPU and on its GPU.

They are kept as plain tensors, so that a checkpoint needs no pickled objects to hold them.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

_CPU = torch.device("cpu")
_NUMPY: Any = np.random
"""Its global generator, which data sets may draw from."""


def derive_seed(*parts: int | str) -> int:
    """Return a seed of 63 bits that no other parts give. CPU generators use 32 bits of it."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int) -> None:
    """Seed every generator of this process."""
    torch.manual_seed(seed)
    seed_cpu(seed)


def seed_cpu(seed: int) -> None:
    """Seed the generators that work on samples; microseconds, and no GPU is touched."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    _NUMPY.seed(seed & 0xFFFFFFFF)


def capture(device: torch.device = _CPU) -> dict[str, Tensor]:
    """Return the state of each generator by name; the GPU's if `device` is one."""
    version, words, gauss = random.getstate()
    _, keys, place, has_gauss, numpy_gauss = _NUMPY.get_state()
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *words], dtype=torch.int64),
        "python_gauss": torch.tensor(math.nan if gauss is None else gauss, dtype=torch.float64),
        "numpy": torch.tensor([*keys.tolist(), place, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor(numpy_gauss, dtype=torch.float64),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore(states: Mapping[str, Tensor], device: torch.device = _CPU) -> None:
    """Put back what `capture` returned; a generator that is not in it stays as it is."""
    torch.set_rng_state(states["torch"])
    version, *words = states["python"].tolist()
    gauss = states["python_gauss"].item()
    random.setstate((version, tuple(words), None if math.isnan(gauss) else gauss))
    if "numpy" in states:
        *keys, place, has_gauss = states["numpy"].tolist()
        array = np.array(keys, dtype=np.uint32)
        _NUMPY.set_state(("MT19937", array, place, has_gauss, states["numpy_gauss"].item()))
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


@contextlib.contextmanager
def undisturbed(device: torch.device = _CPU) -> Iterator[None]:
    """Leave all generators as they were, whatever is drawn in here."""
    states = capture(device)
    try:
        yield
    finally:
        restore(states, device)
