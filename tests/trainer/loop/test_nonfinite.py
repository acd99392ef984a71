"""Losses and gradients that are not finite: found, reported, and kept from the weights."""

import json
import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.checkpoint import loading
from trainer.config import Config
from trainer.loop.nonfinite import StepTable
from trainer.loop.optim import Update

pytestmark = pytest.mark.slow

OPTIONS = (
    *("--global-batch-size", "8", "--log-every", "4", "--schedule", "constant", "--lr", "0.01"),
    *("--seed", "2"),
)
"""Eight steps an epoch; the bad sample is met in steps 7, 9, 21 and 31."""
BAD_SAMPLE = 13
Train = Callable[..., tuple[int, Any]]
Start = Callable[..., Any]

_WORKLOADS = """
    import math
    import torch
    from trainer.workloads.base import TensorData, Workload

    class Line(Workload):
        '''Sample 13 is not a number.'''
        default_epochs = 3
        bad = 13
        def build_model(self): return torch.nn.Linear(2, 1)
        def train_data(self):
            x = torch.linspace(-1, 1, 128).view(-1, 2)
            y = x.sum(dim=1)
            if self.bad is not None:
                x[self.bad] = math.nan
            return TensorData(inputs=x, targets=y)
        def test_data(self): return None
        def loss(self, outputs, targets): return (outputs[:, 0] - targets).square().mean()

    class Clean(Line):
        bad = None

    class Gradient(Line):
        '''The loss is finite, its gradient is not: the root of nothing.'''
        bad = None
        def loss(self, outputs, targets):
            loss = super().loss(outputs, targets)
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 7:
                loss = loss + (outputs * 0).sum().abs().sqrt()
            return loss

    class Constant(Line):
        '''The loss is not finite, and yet has a finite gradient.'''
        bad = None
        def loss(self, outputs, targets):
            self.calls = getattr(self, "calls", 0) + 1
            return super().loss(outputs, targets) + (math.inf if self.calls == 7 else 0)

    class Doomed(Line):
        '''After twelve losses, none is finite any more.'''
        bad = None
        def loss(self, outputs, targets):
            self.calls = getattr(self, "calls", 0) + 1
            return super().loss(outputs, targets) * (math.nan if self.calls > 12 else 1)

    class HeldOut(Line):
        '''Only what is held out has a loss that is not finite.'''
        bad = None
        def test_data(self):
            return TensorData(inputs=torch.ones(8, 2), targets=torch.full((8,), math.inf))

    class Norm(Line):
        def build_model(self):
            return torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
"""


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return the name of one of the workloads above, as --workload takes it."""
    module = f"own_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(_WORKLOADS))
    monkeypatch.chdir(tmp_path)
    return lambda name: f"{module}:{name}"


def weights(run: Any) -> dict[str, torch.Tensor]:
    """What the last checkpoint holds of the model."""
    name = (run.path / "checkpoints" / "latest").read_text().strip()
    stored = loading.read_index(run.path / "checkpoints" / name)
    return loading.read_named(stored, "model/")


def test_by_default_the_run_ends_and_names_the_samples(
    train: Train, workload: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """70, one line, one event; the checkpoint there is is from before."""
    code, run = train("--workload", workload("Line"), *OPTIONS, "--checkpoint-every", "2")
    output = capsys.readouterr().err
    (event,) = run.events("non_finite")
    assert code == 70
    assert (event["policy"], event["action"], event["epoch"]) == ("stop", "stop", 1)
    assert BAD_SAMPLE in event["samples"]
    assert len(event["samples"]) == 8
    assert output.count("\n") == 1
    assert output.startswith(
        f"trainer: the loss of step {event['step']} is not finite (epoch 1, sam"
    )
    assert "--on-nan skip or rollback" in output
    (failure,) = run.events("failure")
    assert "RunFailedError: the loss of step" in failure["error"]
    assert all(torch.isfinite(w).all() for w in weights(run).values())
    assert max(event["step"] for event in run.events("checkpoint")) < event["step"]


def test_skipping_leaves_the_step_out_and_goes_on(
    train: Train, workload: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Counted, reported once each; no loss that is logged is spoilt by it."""
    code, run = train("--workload", workload("Line"), *OPTIONS, "--on-nan", "skip")
    assert code == 0
    assert run.summary()["non_finite_steps"] == 3
    assert [event["action"] for event in run.events("non_finite")] == ["skip"] * 3
    assert all(math.isfinite(loss) for loss in run.losses())
    assert all(torch.isfinite(w).all() for w in weights(run).values())
    assert "the loss or gradient of 3 steps" in capsys.readouterr().out


def test_rolling_back_ends_with_the_weights_of_skipping(
    train: Train, workload: Callable[[str], str]
) -> None:
    """What is left out is the same, so the rest is the same to the bit; nor is it met again."""
    options = ("--workload", workload("Line"), *OPTIONS, "--checkpoint-every", "3")
    _, skipped = train(*options, "--on-nan", "skip", out="skip")
    code, run = train(*options, "--on-nan", "rollback", out="back")
    assert code == 0
    reported = run.events("non_finite")
    assert [(e["step"], e["action"]) for e in reported] == [(s, "rollback") for s in (7, 9, 21)]
    for name, weight in weights(skipped).items():
        assert torch.equal(weight, weights(run)[name])
    last = run.path / "checkpoints" / "step-24" / "state.json"
    assert json.loads(last.read_text())["position"]["skipped_steps"] == [7, 9, 21]


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_no_run_goes_back_to_another_branch(
    train: Train, workload: Callable[[str], str], tmp_path: Path, *, is_elsewhere: bool
) -> None:
    """Who began from an older checkpoint, of whatever run, goes back to that one."""
    options = ("--workload", workload("Line"), *OPTIONS, "--checkpoint-every", "3")
    _, other = train(*options, "--on-nan", "skip", "--max-steps", "18", "--keep-checkpoints", "99")
    chosen = other.path / "checkpoints" / "step-6"
    if is_elsewhere:
        chosen = chosen.rename(tmp_path / "mine")
    options = (*options, "--on-nan", "rollback", "--max-steps", "8")
    code, run = train(*options, "--resume", str(chosen))
    assert code == 0
    resumed = [(event["step"], event["path"]) for event in run.events("resume")]
    assert resumed == [(0, None), (6, str(chosen)), (6, str(chosen))]
    assert [event["step"] for event in run.events("first_step")] == [1, 7]
    assert run.summary()["steps"] == 8


def test_a_resume_leaves_the_same_steps_out(train: Train, workload: Callable[[str], str]) -> None:
    """Stopped after a rollback, before the interval's end: the rest is as if in one piece."""
    options = ("--workload", workload("Line"), *OPTIONS, "--checkpoint-every", "3")
    options = (*options, "--epochs", "4", "--on-nan", "rollback")
    _, whole = train(*options, out="whole")
    _, parts = train(*options, "--max-steps", "10", out="parts")
    assert [e["step"] for e in parts.events("non_finite")] == [7, 9]
    code, _ = train(*options, out="parts")
    assert code == 0
    assert [e["step"] for e in parts.events("non_finite")] == [7, 9, 21, 31]
    assert parts.losses()[-4:] == whole.losses()[-4:]
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(parts)[name])


@pytest.mark.parametrize("name", ["Gradient", "Constant"])
@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_neither_a_gradient_nor_a_loss_alone_gets_through(
    train: Train, workload: Callable[[str], str], name: str, policy: str
) -> None:
    """The one without the other is enough, also before there is a checkpoint to go back to."""
    code, run = train("--workload", workload(name), *OPTIONS, "--on-nan", policy)
    (event,) = run.events("non_finite")
    assert (code, event["step"], event["action"]) == (0, 7, "skip")
    assert all(torch.isfinite(w).all() for w in weights(run).values())
    assert all(math.isfinite(loss) for loss in run.losses())


def test_no_run_goes_back_to_one_checkpoint_for_ever(
    train: Train, workload: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Three times, then the run ends."""
    options = ("--workload", workload("Doomed"), *OPTIONS, "--on-nan", "rollback")
    code, run = train(*options)
    assert code == 70
    actions = [event["action"] for event in run.events("non_finite")]
    assert actions == ["rollback"] * 3 + ["stop"]
    assert "3 rollbacks in a row" in capsys.readouterr().err


@pytest.mark.parametrize("policy", ["stop", "skip", "rollback"])
def test_weights_that_an_update_carries_too_far_are_not_saved(
    train: Train, workload: Callable[[str], str], policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No loss shows it yet: the last step is the first."""
    options = ("--workload", workload("Clean"), *OPTIONS, "--on-nan", policy)
    code, run = train(*options, "--lr", "1e300", "--max-steps", "1")
    assert code == 70
    assert "the weights after step 1 must be finite; found some" in capsys.readouterr().err
    assert not list((run.path / "checkpoints").iterdir())


def test_a_validation_that_is_not_finite_is_called_that(
    train: Train, workload: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no best one, and ends nothing; nor was nothing measured."""
    code, run = train("--workload", workload("HeldOut"), *OPTIONS, "--max-steps", "2")
    assert (code, run.summary()["best_step"]) == (0, None)
    assert "FINISHED  a test loss not finite\n" in capsys.readouterr().out


def test_skipping_does_not_hide_a_run_that_is_lost(
    train: Train, workload: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A hundred steps in a row are enough; so is a running statistic that is spoilt."""
    options = (*OPTIONS, "--on-nan", "skip", "--epochs", "50")
    code, run = train("--workload", workload("Doomed"), *options, out="a")
    assert code == 70
    assert run.summary()["steps"] < 130
    assert "nor was any of the last" in capsys.readouterr().err
    code, _ = train("--workload", workload("Norm"), *options, out="b")
    assert code == 70
    assert "running statistics" in capsys.readouterr().err


def test_going_back_mends_running_statistics(train: Train, workload: Callable[[str], str]) -> None:
    """They come from the checkpoint, too."""
    options = ("--workload", workload("Norm"), *OPTIONS, "--checkpoint-every", "1")
    code, run = train(*options, "--on-nan", "rollback", "--keep-checkpoints", "99")
    assert code == 0
    assert run.events("non_finite")
    assert all(torch.isfinite(w).all() for w in weights(run).values())


def test_the_scalers_overflows_are_not_reported(train: Train) -> None:
    """fp16 begins with a scale that is too large on purpose; its loss is checked all the same."""
    options = ("--model", "mlp", "--global-batch-size", "250", "--precision", "fp16")
    code, run = train(*options, "--max-steps", "10", "--lr", "0.003")
    assert code == 0
    assert not run.events("non_finite")


def test_ranks_agree_on_what_only_one_has_seen(
    start_ranks: Start, workload: Callable[[str], str]
) -> None:
    """The bad sample is on one rank: it is named, with its own samples, and all stop alike."""
    started = start_ranks(2, "--workload", workload("Line"), *OPTIONS)
    assert started.wait() == [70, 70]
    (event,) = started.run.events("non_finite")
    assert len(event["ranks"]) == 1
    assert len(event["samples"]) == 4
    assert BAD_SAMPLE in event["samples"]
    assert [err.count("trainer: the loss") for _, err in started.output] == [1, 1]


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_ranks_go_on_alike(start_ranks: Start, workload: Callable[[str], str], policy: str) -> None:
    """Two ranks come to the losses of one."""
    options = ("--workload", workload("Line"), *OPTIONS, "--on-nan", policy)
    options = (*options, "--checkpoint-every", "3")
    one, two = (start_ranks(n, *options, out=f"{n}") for n in (1, 2))
    assert one.wait() == [0]
    assert two.wait() == [0, 0]
    assert two.run.losses() == pytest.approx(one.run.losses(), rel=1e-5)
    assert [e["step"] for e in two.run.events("non_finite")] == [
        e["step"] for e in one.run.events("non_finite")
    ]


@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_the_device_decides_without_being_read(optimizer: Any, max_norm: float | None) -> None:
    """As on a GPU: the fused optimizer takes the check's result, and moves nothing, nor counts.

    With clipping the norm is what is checked.
    """
    model = torch.nn.Linear(3, 2)
    config = Config(optimizer=optimizer, lr=0.1, clip_grad_norm=max_norm)
    update = Update(model, config, torch.device("cpu"))
    update._is_read = False  # noqa: SLF001 -- what a GPU has
    table = StepTable(3, torch.device("cpu"))
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(model.state_dict())
    plain = Update(other, config, torch.device("cpu"))
    for step in range(3):
        inputs = torch.full((1, 3), math.inf if step == 0 else float(step))
        model(inputs).sum().backward()
        update.apply(0.1, table.found)
        table.next_step()
        if step:
            other(inputs).sum().backward()
            plain.apply(0.1, torch.zeros(()))
    assert table.read()[1] == {0}
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_table_is_one_step_a_place() -> None:
    """Microbatches add up in it, a reading empties it, and its gradient is 1 or not a number."""
    table = StepTable(4, torch.device("cpu"))
    assert table.add_loss(torch.tensor(1.5)).item() == 1
    table.add_loss(torch.tensor(0.5))
    table.next_step()
    assert math.isnan(table.add_loss(torch.tensor(math.inf)).item())
    table.next_step()
    assert table.num_free == 2
    assert table.read() == ([2.0, math.inf], set())
    assert table.read() == ([], set())
    assert table.add_loss(torch.tensor(1.0, dtype=torch.float64)).dtype == torch.float64
    assert StepTable(10**9, torch.device("cpu")).capacity == 1024
