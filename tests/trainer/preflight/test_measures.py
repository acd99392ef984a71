"""What is measured on CPUs: right results are right, a wrong product and a wrong sum are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import distributed as dist

from trainer.preflight import measures
from trainer.preflight.children import call_all
from trainer.preflight.measures import Group

if TYPE_CHECKING:
    from trainer.preflight.children import Enter


def nothing(_stage: str) -> None:
    """No parent listens."""


def test_a_machine_that_computes_right_has_no_wrong_element() -> None:
    """And speeds above 0, with every stage named."""
    stages: list[str] = []
    found = {one.check: one.value for one in measures.examine(None, None, stages.append)}
    assert found.pop("wrong_elements") == 0
    assert found.keys() == {"cpu_gflops", "cpu_gb_per_s"}
    assert all(float(value) > 0 for value in found.values())
    assert stages == ["CPU: allocate", "CPU: matrix product", "CPU: memory bandwidth"]


def test_a_single_wrong_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one element of the larger product differs."""
    multiply = torch.Tensor.__matmul__

    def wrong(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        result = multiply(one, two)
        if len(result) > measures._TILE:  # noqa: SLF001 -- not the exact one of a tile
            result[3, 5] += 1
        return result

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    (first, *_rest) = measures.examine(None, None, nothing)
    assert (first.check, first.value) == ("wrong_elements", 1)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_processes_reduce_and_check_the_sum(is_wrong: bool) -> None:  # noqa: FBT001 -- a parameter
    """The speed is the same number on both; a wrong sum is an error with its words."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def link(rank: int, enter: Enter) -> float:
        if is_wrong:
            torch.Tensor.all = lambda _self: torch.tensor(False)  # type: ignore[method-assign]
        group = Group("127.0.0.1", store.port, "pair", rank, 2, 60)
        return measures.measure_link(None, group, enter)

    found = call_all([lambda enter: link(0, enter), lambda enter: link(1, enter)], 60)
    if is_wrong:
        assert "gave a wrong sum" in found[0].problem
    else:
        assert found[0].problem == ""
        assert found[0].value == found[1].value > 0
