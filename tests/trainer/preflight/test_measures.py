"""What is measured on CPUs: right results are right, a wrong product and a wrong sum are found."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from trainer.preflight import measures


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


def test_speeds_are_what_was_done_in_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that takes 2 s, and copies that take half a second."""
    clock = iter((5.0, 7.0, 8.0, 8.5))
    monkeypatch.setattr(measures, "now_s", lambda _device: next(clock))
    found = {one.check: one.value for one in measures.examine(None, None, nothing)}
    assert found["cpu_gflops"] == pytest.approx(3 * 2 * 1024**3 / 2 / 1e9)
    assert found["cpu_gb_per_s"] == pytest.approx(3 * 2 * 64 * 2**20 / 0.5 / 1e9)


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


REDUCE = """
import json, sys
import torch
from torch import distributed as dist
from trainer.preflight import measures
from trainer.preflight.children import call_all
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
def link(rank, enter):
    if sys.argv[1] == "wrong":
        torch.Tensor.all = lambda _self: torch.tensor(False)
    return measures.measure_link(
        None, measures.Group("127.0.0.1", store.port, "pair", rank, 2, 60), enter)
print(json.dumps(call_all([lambda e: link(0, e), lambda e: link(1, e)], 60)))
"""
"""In a process that has not computed yet, as the preflight's own: threads do not survive a fork."""


def reduced(word: str) -> list[tuple[float | None, str, bool]]:
    """Reduce by two processes; value, problem and whether it hung, of each."""
    command = [sys.executable, "-c", REDUCE, word]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    found: list[tuple[float | None, str, bool]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_processes_reduce_and_check_the_sum() -> None:
    """The speed is the same number on both; a wrong sum is an error with its words."""
    (one, problem, _), (two, _, _) = reduced("right")
    assert problem == ""
    assert one is not None
    assert one == two > 0
    assert "gave a wrong sum" in reduced("wrong")[0][1]
