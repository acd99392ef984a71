"""Generators of a rank: kept as tensors, put back bit by bit."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from trainer.data import generators


def draw() -> list[Any]:
    """Draw from each generator of this process."""
    return [
        torch.rand(3).tolist(),
        [random.random(), random.gauss(0, 1)],  # noqa: S311 -- the global one is under test
        [np.random.rand(), np.random.randn()],  # noqa: NPY002 -- the same
    ]


def test_what_is_captured_is_restored() -> None:
    """Python, NumPy and torch; also the second half of a pair of normal numbers."""
    generators.seed_all(7)
    draw()
    states = generators.capture()
    assert set(states) == {"torch", "python", "python_gauss", "numpy", "numpy_gauss"}
    assert all(isinstance(state, torch.Tensor) for state in states.values())
    expected = [draw() for _ in range(3)]
    generators.seed_all(8)
    draw()
    generators.restore(states)
    assert [draw() for _ in range(3)] == expected


def test_a_seed_fixes_every_generator() -> None:
    """The same seed, the same numbers; and seeds of neighbours have nothing in common."""
    generators.seed_all(3)
    first = draw()
    generators.seed_all(3)
    assert draw() == first
    seeds = {generators.derive_seed(*parts) for parts in [(1, 0), (0, 1), (1, 1), (1, "rank", 0)]}
    assert len(seeds) == 4
    assert len({seed & 0xFFFFFFFF for seed in seeds}) == 4  # all that a CPU's generator takes
    assert max(seeds) < 2**63


def test_what_is_drawn_inside_is_not_missed_outside() -> None:
    """Samples loaded in the rank's own process leave its generators alone, errors or not."""
    generators.seed_all(5)
    expected = draw()
    generators.seed_all(5)

    @generators.undisturbed()
    def fail() -> None:
        generators.seed_cpu(1)
        draw()
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert draw() == expected
