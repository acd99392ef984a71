from typing import get_args

import pytest

from trainer.config import Schedule
from trainer.loop.optim import LearningRate


def rates(kind: Schedule, steps: list[int], **more: float) -> list[float]:
    """What a schedule of 10 warm-up steps and 110 in all says to some steps."""
    options = {"warmup_steps": 10, "total_steps": 110, **more}
    rate = LearningRate(peak=1.0, kind=kind, **options)  # type: ignore[arg-type]
    return [rate.at(step) for step in steps]


def test_the_cosine_rises_falls_and_ends_near_zero() -> None:
    """Linear warm-up to the peak, half of it in the middle, the last step above zero."""
    rate = LearningRate(peak=1.0, kind="cosine", warmup_steps=10, total_steps=110)
    assert [rate.at(0), rate.at(9), rate.at(10), rate.at(60)] == pytest.approx([0.1, 1.0, 1.0, 0.5])
    assert 0 < rate.at(109) < 0.001


def test_constant_stays() -> None:
    """After warm-up the rate does not move."""
    rate = LearningRate(peak=2.0, kind="constant", warmup_steps=2, total_steps=9)
    assert [rate.at(s) for s in (0, 1, 2, 8)] == [1.0, 2.0, 2.0, 2.0]


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
        assert rates(kind, steps, lowest=0.25) == pytest.approx([0.1, *expected])


def test_a_run_shorter_than_its_warm_up_is_all_warm_up() -> None:
    """Nothing is divided by zero, either."""
    for kind in get_args(Schedule):
        assert rates(kind, [0, 4], total_steps=5) == pytest.approx([0.1, 0.5])
        assert rates(kind, [0], total_steps=1, warmup_steps=0) == [1.0]
        assert rates(kind, [9, 10], total_steps=10) == [1.0, 1.0]
