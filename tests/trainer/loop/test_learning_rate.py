from typing import get_args

import pytest

from trainer.config import Config, Schedule
from trainer.loop.optim import LearningRate


def rates(
    kind: Schedule, steps: list[int], total_steps: int = 110, warmup_steps: int = 10, **more: float
) -> list[float]:
    """What a schedule of 10 warm-up steps and 110 in all says to some steps."""
    config = Config(lr=1.0, schedule=kind, warmup_steps=warmup_steps, **more)  # type: ignore[arg-type]
    rate = LearningRate(config=config, total_steps=total_steps)
    return [rate.at(step) for step in steps]


def test_the_cosine_rises_falls_and_ends_near_zero() -> None:
    """Linear warm-up to the peak, half of it in the middle, the last step above zero."""
    *found, last = rates("cosine", [0, 9, 10, 60, 109])
    assert found == pytest.approx([0.1, 1.0, 1.0, 0.5])
    assert 0 < last < 0.001


def test_constant_stays() -> None:
    """After warm-up the rate does not move."""
    assert rates("constant", [0, 1, 2, 8], 9, 2) == [0.5, 1.0, 1.0, 1.0]


def test_a_line_goes_down_to_zero() -> None:
    """The peak once, half of it in the middle, and the last step is one above zero."""
    assert rates("linear", [0, 9, 10, 60, 109]) == pytest.approx([0.1, 1.0, 1.0, 0.5, 0.01])


def test_wsd_stays_and_then_goes_down() -> None:
    """Over the last fraction of all steps, and not before the warm-up is over."""
    steps = [0, 9, 10, 88, 89, 99, 109]
    expected = [0.1, 1.0, 1.0, 1.0, 1 - 1 / 22, 0.5, 1 / 22]
    assert rates("wsd", steps, decay_fraction=0.2) == pytest.approx(expected)
    assert rates("wsd", steps, decay_fraction=1) == rates("linear", steps)
    assert rates("wsd", [50, 109], decay_fraction=0) == [1.0, 1.0]
    assert rates("wsd", [50], total_steps=10**6) == [1.0]


def test_the_way_down_ends_where_it_is_asked_to() -> None:
    """Each schedule that goes down is its own form between the peak and the lowest rate."""
    steps = [0, 10, 60, 100, 109]
    for kind in ("cosine", "linear", "wsd"):
        to_zero = rates(kind, steps)[1:]
        expected = [0.25 + 0.75 * rate for rate in to_zero]
        assert rates(kind, steps, min_lr=0.25) == pytest.approx([0.1, *expected])


def test_a_run_shorter_than_its_warm_up_is_all_warm_up() -> None:
    """Nothing is divided by zero, either."""
    for kind in get_args(Schedule):
        assert rates(kind, [0, 4], total_steps=5) == pytest.approx([0.1, 0.5])
        assert rates(kind, [0], total_steps=1, warmup_steps=0) == [1.0]
        assert rates(kind, [9, 10], total_steps=10) == [1.0, 1.0]
