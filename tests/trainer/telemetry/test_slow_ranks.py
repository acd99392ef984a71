"""Who is slower than the others, and where the time goes."""

import itertools
import random
import textwrap
import time
from collections.abc import Callable
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.thorough import parameters
from tests.trainer.parallel.test_layouts import Server, server
from trainer.telemetry.ledger import Ledger
from trainer.telemetry.stragglers import ForwardTime, Stragglers

__all__ = ["server"]  # a fixture

LAYOUTS = (
    "--strategy fsdp",
    "--strategy hsdp --dp-shard 2 --activation-checkpointing full",
    "--strategy fsdp --tp 2 --sequence-parallel",
    "--tp 4",
    "--strategy fsdp --cp 2",
    "--pp 2 --micro-batch-size 2",
    "--strategy fsdp --compile",
)
SHOWN_BY_OTHERS = (
    "--strategy fsdp",
    "--tp 4",
    "--strategy fsdp --cp 2",
    "--strategy fsdp --compile",
)
_WORKLOAD = """
    import os, time
    import torch
    from trainer.workloads.base import TensorData, Workload

    class Slow(torch.nn.Linear):
        def forward(self, x):
            time.sleep(0.03 if os.environ["RANK"] == "2" else 0.01)
            return super().forward(x)

    class Line(Workload):
        '''Rank 2 is three times slower; its peers wait for it in the reduction.'''
        def build_model(self):
            return torch.nn.Sequential(Slow(1, 1), torch.nn.BatchNorm1d(1))
        def train_data(self):
            x = torch.linspace(-1, 1, 480).view(-1, 1)
            return TensorData(inputs=x, targets=2 * x[:, 0])
        def test_data(self): return self.train_data()
        def loss(self, outputs, targets): return (outputs[:, 0] - targets).square().mean()
"""


def test_a_rank_is_slow_beside_the_median_rank() -> None:
    """Over 1.5 times in an interval, or over the run; of two ranks the quicker one is typical."""
    stragglers = Stragglers(["a", "a", "b", "b"])
    slow = {"rank": 2, "node": "b", "ratio": 2.9, "cost_pct": 19.0}
    assert stragglers.compare([1.0, 1.1, 2.9, 1.0], 10.0, 1) == [slow]
    assert stragglers.over_the_run() == [], "one interval may be anything's doing"
    assert stragglers.compare([1.0, 1.1, 2.9, 1.0], 10.0, 1) == [slow]
    assert stragglers.compare([1.0, 1.1, 1.4, 1.0], 80 / 9, 9) == []
    assert stragglers.over_the_run() == [{"rank": 2, "node": "b", "ratio": 1.67, "cost_pct": 7.4}]
    assert Stragglers(["a", "b"]).compare([3.0, 1.0], 9.0, 1)[0]["ratio"] == 3
    assert Stragglers(["a"]).compare([0.0], 1.0, 1) == []


def test_what_costs_no_time_is_not_slow() -> None:
    """Ten times a forward of microseconds in a step of seconds, or a single hiccup of a run."""
    stragglers = Stragglers(["a", "b"])
    assert stragglers.compare([20e-6, 210e-6], 8.0, 9) == []
    assert stragglers.compare([1.0, 1.98], 20.0, 9) == []
    assert stragglers.compare([1.0, 2.0], 20.0, 9)[0]["rank"] == 1
    hiccup = Stragglers(["a", "b"])
    for own_s in ([60.0, 1.0], [1.0, 1.0], [1.0, 1.0]):
        hiccup.compare(own_s, 70.0, 9)
    assert hiccup.over_the_run() == []


def test_equal_ranks_with_noise_are_never_slow() -> None:
    """Of two to eight ranks, whose own share of a step is anything from nothing to all of it."""
    noise = random.Random(6)  # noqa: S311 -- the same each time
    for _ in range(300):
        num_ranks, share = noise.randint(2, 8), 10 ** noise.uniform(-6, 0)
        stragglers = Stragglers(["n"] * num_ranks)
        for _ in range(noise.randint(4, 30)):
            own_s = [share * noise.lognormvariate(0, 0.15) for _ in range(num_ranks)]
            stragglers.compare(own_s, max(*own_s, 1.0), 9)
        assert stragglers.over_the_run() == []


def test_of_two_ranks_at_most_one_is_slow() -> None:
    """Whichever is slow in turns: the other one is what is typical."""
    stragglers = Stragglers(["a", "b"])
    for turn in range(10):
        own_s = [1.0, 9.0] if turn % 2 else [9.0, 1.0]
        assert len(stragglers.compare(own_s, 10.0, 9)) == 1
    assert stragglers.over_the_run() == []


def test_only_the_forwards_of_training_count() -> None:
    """Nor the first: it and a validation's are not a rank's pace; an interval begins anew."""
    module = torch.nn.Linear(1, 1)
    timed = ForwardTime([module], torch.device("cpu"), 9)
    module(torch.ones(1))
    module.eval()
    module(torch.ones(1))
    assert timed.take_s() == 0
    module.train()
    module(torch.ones(1))
    assert timed.take_s() > 0
    assert timed.take_s() == 0


def test_a_stage_of_more_layers_is_no_slow_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5 equal layers one rank has 3 and another 2: both report what 2.5 take."""
    clock = itertools.count()  # a layer takes a tick
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    for own in (3, 2):
        layers = [torch.nn.Identity() for _ in range(own)]
        timed = ForwardTime(layers, torch.device("cpu"), 9, 5 / 2 / own)
        for layer in layers * 4:
            layer(torch.ones(1))
        assert timed.take_s() == 2.5


def test_the_ledger_adds_up() -> None:
    """All that is before the first step's end is the start; the rest is computing."""
    ledger = Ledger()
    with ledger.counting("validation_s"):
        pass
    before = ledger.time_spent(0.0)
    assert before["data_wait_s"] == before["validation_s"] == before["compute_s"] == 0
    ledger.started(0.0)
    with ledger.counting("checkpoint_s"):
        sum(range(10**6))
    reported = ledger.time_spent(0.001)
    assert reported["checkpoint_s"] > 0
    assert reported["data_wait_s"] == 0.001
    assert reported["start_s"] >= before["start_s"]
    assert all(seconds >= 0 for seconds in reported.values())


@pytest.mark.slow
def test_the_slow_rank_is_named(start_ranks: Callable[..., Any], tmp_path: Path) -> None:
    """In metrics.jsonl, in the summary, and to a person; though rank 0's buffers go to all."""
    (tmp_path / "own_slow.py").write_text(textwrap.dedent(_WORKLOAD))
    options = ("--workload", "own_slow:Line", "--global-batch-size", "8", "--log-every", "15")
    started = start_ranks(4, *options, env={"DDP_NODE": "n7"})
    assert started.wait() == [0] * 4, started.output
    summary, metrics = started.run.summary(), started.run.metrics()
    (slow,) = summary["slow_ranks"]
    assert (slow["rank"], slow["node"]) == (2, "n7")
    assert 1.5 < slow["ratio"] < 4
    assert "rank 2 on n7 was" in started.output[0][0]
    assert "x slower than the median rank, which costs " in started.output[0][0]
    for line in metrics:
        assert line["slow_ranks"][0]["rank"] == 2
        assert line["rank_spread_pct"] > 50  # or it would not be reported


@pytest.mark.slow
@pytest.mark.parametrize("layout", parameters(LAYOUTS, SHOWN_BY_OTHERS))
def test_the_slow_rank_is_named_in_every_layout(server: Server, layout: str) -> None:
    """Though ranks wait for each other between layers, and within them."""
    out = "slow " + layout
    options = f"--workload tests.trainer.slowed:Slowed --max-steps 6 --log-every 3 {layout}"
    codes, run, output = server.train(4, options, out)
    assert codes == [0] * 4, output
    for reported in (run.summary(), *run.metrics("loss")):
        assert max(reported["slow_ranks"], key=itemgetter("ratio"))["rank"] == 2


@pytest.mark.slow
def test_the_time_of_an_attempt_is_reported(train: Callable[..., tuple[int, Any]]) -> None:
    """Sums in every line of the metrics, a ledger at the end, and the first step's moment."""
    options = ("--model", "mlp", "--log-every", "10", "--checkpoint-mode", "sync")
    code, run = train(*options, "--epochs", "2", "--val-every", "20")
    assert code == 0
    lines = run.metrics()
    keys = ("start_s", "data_wait_s", "checkpoint_s", "validation_s")
    for key in keys:
        values = [line[key] for line in lines]
        assert values == sorted(values)
    assert lines[-1]["validation_s"] > 0
    assert lines[-1]["checkpoint_s"] > 0
    assert not {"slow_ranks", "rank_spread_pct"} & lines[-1].keys()  # a single rank has no peers
    (ledger,) = run.events("ledger")
    reported = {key: ledger[key] for key in (*keys, "compute_s")}
    assert all(ledger[key] >= lines[-1][key] for key in keys)
    (first,) = run.events("first_step")
    assert first["step"] == 1
    began, ended = (datetime.fromisoformat(event["time"]) for event in (first, ledger))
    in_training_s = sum(reported.values()) - reported["start_s"]
    assert in_training_s == pytest.approx((ended - began).total_seconds(), rel=0.01, abs=0.02)
