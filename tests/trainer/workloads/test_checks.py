"""What a workload of one's own gives, and gets wrong."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.trainer.conftest import Ranks
    from tests.trainer.quick_run import Train

pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds

LINE = """
import os
import torch
from trainer.errors import UserError
from trainer.workloads.base import TensorData, Workload

class Line(Workload):
    def build_model(self): return torch.nn.Linear(1, 1)
    def train_data(self): return TensorData(inputs=torch.ones(16, 1), targets=torch.ones(16))
    def test_data(self): return self.train_data()
    def loss(self, outputs, targets): return (outputs[:, 0] - targets).square().mean()
    def num_correct(self, outputs, targets): return None

class Endless(torch.utils.data.IterableDataset):
    def __iter__(self): yield torch.ones(1), torch.ones(())

class Odd(torch.utils.data.Dataset):
    def __init__(self, sample): self.sample = sample
    def __len__(self): return 16
    def __getitem__(self, index): return self.sample

class Stateful(torch.nn.Linear):
    def get_extra_state(self): return {}

class Wrong(Line):
"""
FEW = ("--workload", "own_line:Wrong", "--global-batch-size", "8", "--max-steps", "2")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Write a method that is wrong into own_line.py, where a run looks for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own_line", raising=False)
    return lambda method: (tmp_path / "own_line.py").write_text(f"{LINE}    def {method}\n")


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("train_data(self): return Endless()", "which has a length; found Endless without one"),
        ("train_data(self): return None", "which has a length; found NoneType without one"),
        ("test_data(self): return Endless()", "test_data() of the workload Wrong"),
        (
            "train_data(self): return TensorData(inputs=torch.ones(8, 1), targets=torch.ones(9))",
            "must have as many inputs as targets; found 8 inputs and 9 targets",
        ),
        (
            "train_data(self): return TensorData(inputs=[[1.0]] * 16, targets=torch.ones(16))",
            "train_data() of the workload Wrong must have tensors in a TensorData; found list;",
        ),
        ("train_data(self): return Odd((0, 0, 0))", "found batches of Tensor, Tensor, Tensor"),
        ("train_data(self): return Odd({'x': 0})", "found batches of dict"),
        ("train_data(self): return Odd(('a', 0))", "found batches of tuple, Tensor"),
        ("loss(self, o, t): return (o[:, 0] - t).square()", "found one of shape (8,)"),
        ("loss(self, o, t): return 3.0", "must return a scalar tensor; found float"),
        ("build_model(self): torch.nn.Linear(1, 1)", "must return a Module; found NoneType"),
        ("loss(self, o, t): return o.detach().mean()", "one that no gradient flows through"),
        ("build_model(self): return torch.nn.Identity()", "one that no gradient flows through"),
        (
            "build_model(self): return Stateful(1, 1)",
            "must return a Module with a state of tensors alone; found _extra_state, a dict",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(
    train: Train, write: Callable[[str], object], method: str, message: str, capfd: Any
) -> None:
    """It names the class and its method, where torch would speak of tensors of ours."""
    write(method)
    code, _ = train(*FEW, "--num-workers", "0")
    err = capfd.readouterr().err
    assert code == 64
    assert message in err
    assert "Traceback" not in err


def test_what_is_right_may_be_counted_in_fractions(
    train: Train, write: Callable[[str], object], capfd: Any
) -> None:
    """As by a mean over a mask, or by a sum of floats."""
    write("num_correct(self, o, t): return (t > 0).float().sum()")
    code, _ = train(*FEW)
    assert (code, "test accuracy 100.00 %" in capfd.readouterr().out) == (0, True)


def test_who_calls_exit_has_not_finished(
    train: Train, write: Callable[[str], object], capfd: Any
) -> None:
    """Code 0 in the middle would count as a finished run, and no link of a chain would follow."""
    write("loss(self, o, t): raise SystemExit(0)")
    code, run = train(*FEW)
    assert code == 70
    assert "SystemExit: 0" in capfd.readouterr().err
    assert run.events("failure")[0]["error"] == "SystemExit: 0"


def test_what_one_rank_alone_meets_is_in_its_log(
    start_ranks: Callable[..., Ranks], write: Callable[[str], object]
) -> None:
    """The others only lose a peer: only this rank can report why the run ends."""
    write(
        "loss(self, o, t):\n"
        "        if os.environ['RANK'] == '0': return super().loss(o, t)\n"
        "        raise UserError('token', rule='be below 256', found=300, remedy='mend the file')"
    )
    started = start_ranks(2, *FEW)
    assert started.wait()[1] == 64
    assert "trainer: token must be below 256; found 300; mend the file" in started.output[1][1]
