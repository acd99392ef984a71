"""What a GPU drew, whatever cells of its log are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.monitor.observed import WATTS, Observation, head, observations, reported_of, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def every(num: int) -> Callable[[int], bool]:
    """Which samples lack a cell: each so-manieth."""
    return lambda i: i % num == num - 1


@pytest.mark.parametrize("lost", [every(2), every(20), lambda i: 100 <= i < 160])
def test_a_counter_spans_cells_that_are_missing(
    tmp_path: Path, lost: Callable[[int], bool]
) -> None:
    """What it grew by is what was used, also between samples."""
    made = [
        Observation(i, counted=not lost(i), power_w=None if lost(i) else WATTS // 2)
        for i in range(400)
    ]
    path = tmp_path / "slurm-7.n1.gutil"
    path.write_text(head(1) + text(made, stamped=True))
    reported = reported_of(path)
    last = max(i for i in range(400) if not lost(i))
    rest = 0 if last == 399 else 399 - last
    assert reported["energy_j"] == last * WATTS
    assert reported["energy_unseen_min"] * 60 == pytest.approx(rest)


def test_power_spans_few_cells_and_tells_what_it_could_not_see(tmp_path: Path) -> None:
    """Some missing ones are bridged; a minute without any reading is not made up."""
    lost = {*range(1, 100, 2), *range(200, 260)}
    made = [Observation(i, counted=False, power_w=None if i in lost else WATTS) for i in range(400)]
    path = tmp_path / "slurm-7.n1.gutil"
    path.write_text(head(1) + text(made, stamped=True))
    reported = reported_of(path)
    assert reported["energy_j"] == (399 - 61) * WATTS
    assert reported["energy_unseen_min"] * 60 == pytest.approx(61)


def test_a_counter_spans_a_pause_but_no_new_start(tmp_path: Path) -> None:
    """Between two starts of a job its GPU may have been another's."""
    pause = [*observations(100), *observations(100, begin_s=1000)]
    path = tmp_path / "slurm-7.n1.gutil"
    path.write_text(head(1, attempt="1") + text(pause, stamped=True))
    assert reported_of(path)["energy_j"] == 1099 * WATTS
    again = head(1, attempt="2") + text(observations(100, begin_s=5000), stamped=True)
    path.write_text(path.read_text() + again)
    assert reported_of(path)["energy_j"] == (1099 + 99) * WATTS
