"""A run in pieces is the run that never stopped, to the last bit."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer.loop.evaluation
import trainer.loop.loop
from trainer.checkpoint import loading
from trainer.checkpoint.lookup import find

pytestmark = pytest.mark.slow

Train = Callable[..., tuple[int, Any]]
MLP = ("--model", "mlp", "--global-batch-size", "250", "--dropout", "0.3", "--log-every", "5")
_TIMES = ("time", "attempt", "samples_per_s", "data_wait_pct", "memory_mib", "slow_ranks")
_TIMES += ("rank_spread_pct",)
_ASKED = ("total_steps",)
"""What a start of the run was asked for."""


def tensors_of(run_dir: Path) -> dict[str, torch.Tensor]:
    """All that the run's last checkpoint holds: weights, optimizer, generators, losses."""
    return loading.read_named(loading.read_index(find(run_dir)), "")


def metrics_of(run: Any) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, in the order of the steps, without what clock and user say."""
    lines = [*run.metrics("loss"), *run.metrics("test_loss")]
    kept = [
        {k: v for k, v in line.items() if k not in (*_TIMES, *_ASKED) and not k.endswith("_s")}
        for line in lines
    ]
    return sorted(kept, key=lambda line: (line["step"], "loss" in line))


def differing(run: Any, other: Any) -> list[str]:
    """The tensors that are not the same in the last checkpoints of two runs."""
    ours, theirs = tensors_of(run.path), tensors_of(other.path)
    assert ours.keys() == theirs.keys()
    pairs = {name: (ours[name].nan_to_num(9), theirs[name].nan_to_num(9)) for name in ours}
    return [name for name, pair in pairs.items() if not torch.equal(*pair)]


def assert_same(run: Any, other: Any) -> None:
    """Bit by bit."""
    assert metrics_of(run) == metrics_of(other)
    assert differing(run, other) == []
    positions = [loading.read_index(find(r.path)).state.position for r in (run, other)]
    assert positions[0] == positions[1]


@pytest.fixture(autouse=True)
def freely_chosen() -> Iterator[None]:
    """What --deterministic turned on ends with the test."""
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a real signal come in the middle of these steps, and of that many validations."""
    one_step = trainer.loop.loop.Loop._train_step  # noqa: SLF001 -- a signal in the midst of a step
    measure = trainer.loop.evaluation.Evaluation.measure

    def stop_at(*steps: int, in_validation: bool = False) -> None:
        due = [in_validation]

        def train_step(loop: trainer.loop.loop.Loop, step: int) -> None:
            one_step(loop, step)
            if step in steps:
                os.kill(os.getpid(), signal.SIGUSR1)

        def validate(self: trainer.loop.evaluation.Evaluation) -> Any:
            if due.pop() if due else False:
                os.kill(os.getpid(), signal.SIGUSR1)
            return measure(self)

        monkeypatch.setattr(trainer.loop.loop.Loop, "_train_step", train_step)
        monkeypatch.setattr(trainer.loop.evaluation.Evaluation, "measure", validate)

    return stop_at


def in_pieces(
    train: Train, stop_at: Any, options: tuple[str, ...], steps: list[int], *, validation: bool
) -> Any:
    """Train with a stop at each of `steps`, and one in a validation."""
    for step in steps:
        stop_at(step)
        assert train(*options, out="pieces")[0] == 75
    if validation:
        stop_at(in_validation=True)
        assert train(*options, out="pieces")[0] == 75
    stop_at()
    code, run = train(*options, out="pieces")
    assert code == 0
    return run


@pytest.mark.parametrize("micro", ["250", "50"])
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_pieces_add_up_to_the_run(
    train: Train, stop_at: Callable[..., None], micro: str, mode: str
) -> None:
    """With dropout and accumulation; stopped in an interval, at a validation, and in one."""
    options = (*MLP, "--max-steps", "33", "--val-every", "8", "--micro-batch-size", micro)
    _, whole = train(*options, out="whole")
    options = (*options, "--checkpoint-mode", mode, "--deterministic")
    assert_same(whole, in_pieces(train, stop_at, options, [3, 8, 9, 20], validation=True))


def test_a_shorter_run_may_be_made_longer(train: Train) -> None:
    """Ended in the middle of an interval, it says so; what follows is as if it had not ended."""
    options = (*MLP, "--schedule", "constant", "--val-every", "8", "--checkpoint-every", "8")
    _, whole = train(*options, "--max-steps", "24", out="whole")
    train(*options, "--max-steps", "13", out="pieces")
    _, pieces = train(*options, "--max-steps", "24", out="pieces")
    lines = metrics_of(pieces)
    assert [line["step"] for line in lines if line["step"] == 13] == [13, 13]
    assert [line for line in lines if line["step"] != 13] == metrics_of(whole)
    assert differing(whole, pieces) == []


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.filterwarnings("ignore:torch.cuda.amp")
def test_so_do_they_in_other_precisions(
    train: Train, stop_at: Callable[..., None], precision: str
) -> None:
    """The gradient scaler of fp16 is part of the state."""
    options = (*MLP, "--max-steps", "12", "--val-every", "8", "--precision", precision)
    _, whole = train(*options, out="whole")
    assert_same(whole, in_pieces(train, stop_at, options, [5], validation=True))


def test_augmented_images_come_out_the_same(
    train: Train, stop_at: Callable[..., None], tmp_path: Path
) -> None:
    """Random crops and flips, in whatever process, for a model with dropout."""
    from PIL import Image  # noqa: PLC0415 -- only here

    generator = torch.Generator().manual_seed(1)
    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for i in range(8):
                pixels = torch.randint(256, (40, 40, 3), generator=generator, dtype=torch.uint8)
                image = Image.fromarray(pixels.numpy())
                image.save(tmp_path / "images" / split / name / f"{i}.png")
    options = (
        *("--workload", "imagefolder", "--data-dir", str(tmp_path / "images")),
        *("--model", "squeezenet1_1", "--image-size", "32", "--global-batch-size", "4"),
        *("--micro-batch-size", "2", "--epochs", "2", "--log-every", "3"),
    )
    _, whole = train(*options, "--num-workers", "1", out="whole")
    options = (*options, "--num-workers", "0")
    assert_same(whole, in_pieces(train, stop_at, options, [2, 5], validation=False))


@pytest.mark.parametrize("count", [2])
def test_several_ranks_resume_exactly(start_ranks: Callable[..., Any], count: int) -> None:
    """Each with its own dropout; stopped by a signal to one of them, wherever that is."""
    options = (
        "--model",
        "mlp",
        "--global-batch-size",
        "60",
        "--dropout",
        "0.3",
        "--log-every",
        "7",
    )
    options += ("--max-steps", "190", "--checkpoint-minutes", "0.002", "--val-every", "40")
    options += ("--micro-batch-size", "10", "--optimizer", "sgd", "--lr", "0.05")
    whole = start_ranks(count, *options, out="whole")
    assert whole.wait() == [0] * count
    for step in (14, 91):
        part = start_ranks(count, *options, out="pieces")
        part.wait_for_step(step)
        part.processes[1].send_signal(signal.SIGUSR1)
        assert part.wait() == [75] * count
    part = start_ranks(count, *options, out="pieces")
    assert part.wait() == [0] * count
    assert_same(whole.run, part.run)
