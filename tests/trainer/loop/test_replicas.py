"""Copies of a model whose weights differ: found, named, and never saved."""

import os
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rundir.failure import classify
from rundir.paths import MEMORY, snapshots_prefix
from trainer.checkpoint.shards import hash_of
from trainer.loop.replicas import odd_ranks
from trainer.parallel.layout import Layout

Start = Callable[..., Any]

_WORKLOAD = """
    import os
    import torch
    from trainer.workloads.base import TensorData, Workload

    class Flipped(Workload):
        '''On rank FLIPPED, in its forward of step 6, the lowest bit of a weight flips.'''
        default_epochs = 2
        def build_model(self):
            self.model = torch.nn.Linear(2, 1)
            return self.model
        def build_empty(self):
            with torch.device("meta"):
                return self.build_model()
        def train_data(self):
            x = torch.linspace(-1, 1, 128).view(-1, 2)
            return TensorData(inputs=x, targets=x.sum(dim=1))
        def test_data(self): return None
        def loss(self, outputs, targets):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 6 and os.environ["RANK"] == os.environ.get("FLIPPED"):
                with torch.no_grad():
                    self.model.bias.view(torch.int32)[0] ^= 1
            return (outputs[:, 0] - targets).square().mean()
"""
_OPTIONS = ("--global-batch-size", "6", "--max-steps", "10", "--checkpoint-every", "4")


@pytest.fixture
def flipped(tmp_path: Path) -> str:
    """Write the workload; return its name for --workload."""
    (tmp_path / "flipped.py").write_text(textwrap.dedent(_WORKLOAD))
    return "flipped:Flipped"


@pytest.mark.slow
def test_a_copy_that_differs_is_named_and_not_saved(start_ranks: Start, flipped: str) -> None:
    """Of three, the one that differs fails at the next checkpoint; the others lose it."""
    started = start_ranks(3, "--workload", flipped, *_OPTIONS, env={"FLIPPED": "1"})
    codes = started.wait()
    assert all(codes)
    (event,) = started.run.events("replica_differs")
    assert (event["step"], event["rank"]) == (8, 1)
    failures = {e["rank"]: e["error"] for e in started.run.events("failure")}
    assert "data-parallel copies must be the same to the bit" in failures[1]
    assert all("to the bit" not in failures.get(rank, "") for rank in (0, 2))
    assert not any("step-8" in name for name in started.run.checkpoints())
    ended = {"event": "rank_end", "rank": 1, "code": 70, "signal": None, "requested": False}
    finding = classify([event, *started.run.events("failure"), ended], step_code=70).finding
    assert (finding.failure_class, finding.line) == ("hardware", failures[1])


@pytest.mark.slow
def test_it_is_found_between_checkpoints(start_ranks: Start, flipped: str) -> None:
    """--check-replicas looks every so many steps; of two copies both are suspects."""
    options = (*_OPTIONS, "--check-replicas", "1")
    started = start_ranks(2, "--workload", flipped, *options, env={"FLIPPED": "0"})
    assert all(started.wait())
    steps = {(e["rank"], e["step"]) for e in started.run.events("replica_differs")}
    assert steps == {(0, 6), (1, 6)}


@pytest.mark.slow
def test_it_is_in_no_snapshot(start_ranks: Start, flipped: str) -> None:
    """It is found before the first one that would have it, long before a checkpoint."""
    launch_id = f"test-{os.getpid()}-replicas.1.1"
    options = ("--global-batch-size", "6", "--max-steps", "10", "--snapshot-every", "2")
    env = {"FLIPPED": "0", "DDP_LAUNCH_ID": launch_id, "DDP_NODE": "one", "DDP_ATTEMPT": "1"}
    started = start_ranks(2, "--workload", flipped, *options, env=env)
    assert all(started.wait())
    for left in Path(MEMORY).glob(f"{snapshots_prefix(launch_id)}*"):
        shutil.rmtree(left)
    steps = {(e["rank"], e["step"]) for e in started.run.events("replica_differs")}
    assert steps == {(0, 6), (1, 6)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [(), ("--strategy", "fsdp"), ("--dp-replicate", "2", "--dp-shard", "2")]
)
def test_copies_that_are_the_same_are_left_alone(
    start_ranks: Start, layout: tuple[str, ...]
) -> None:
    """A run of real digits, checked after each step, in each layout that has copies, or none."""
    options = (
        "--model",
        "mlp",
        "--max-steps",
        "12",
        "--check-replicas",
        "1",
        "--checkpoint-every",
        "5",
    )
    started = start_ranks(4, *options, *layout)
    assert started.wait() == [0] * 4
    assert started.run.events("replica_differs") == []


def test_a_hash_knows_every_bit() -> None:
    """Of each type of a weight, also of an odd number of them, and of none."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8):
        values = torch.ones(3, dtype=dtype)
        before = hash_of([values, torch.empty(0)])
        assert hash_of([values.clone(), torch.empty(0)]) == before
        values.view(torch.uint8)[0] ^= 1
        assert hash_of([values, torch.empty(0)]) != before
    many = torch.arange(5.0)
    assert hash_of([many[1:]]) == hash_of([many[1:].clone()])  # wherever it lies
    assert hash_of([torch.zeros(1), torch.ones(1)]) != hash_of([torch.ones(1), torch.zeros(1)])


@pytest.mark.parametrize(
    ("layout", "hashes", "odd"),
    [
        (Layout(dp_replicate=3), "aba", [1]),
        (Layout(dp_replicate=4), "aaaa", []),
        (Layout(dp_replicate=2), "ab", [0, 1]),
        (Layout(dp_replicate=3), "abc", [0, 1, 2]),
        (Layout(dp_shard=3), "abc", []),  # three parts of one copy
        (Layout(dp_replicate=3, dp_shard=2), "abacab", [3]),
        (Layout(dp_replicate=2, tp=2), "abab", []),
    ],
)
def test_each_part_is_compared_with_its_own_copies(
    layout: Layout, hashes: str, odd: list[int]
) -> None:
    """The majority is right; without one, all are suspects."""
    assert odd_ranks(hashes, layout) == odd
