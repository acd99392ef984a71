"""Whole runs on images of one's own, on made ones, and on a workload of one's own."""

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.trainer.conftest import Ranks
from tests.trainer.quick_run import QUICK, Train
from trainer.config import Config
from trainer.workloads.images import FakeImages

pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds


def _images(folder: Path, *splits: str) -> None:
    from PIL import Image  # noqa: PLC0415 -- only here

    for split in splits:
        for name, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
            (folder / split / name).mkdir(parents=True)
            for i in range(6):
                Image.new("RGB", (40, 40), colour).save(folder / split / name / f"{i}.png")


def test_folders_of_images_train_a_model_of_torchvision(train: Train, tmp_path: Path) -> None:
    """Through loader workers, from files."""
    _images(tmp_path / "images", "train", "val")
    code, run = train(
        *("--workload", "imagefolder", "--data-dir", str(tmp_path / "images")),
        *("--model", "squeezenet1_1", "--image-size", "32", "--global-batch-size", "4"),
        *("--epochs", "1", "--num-workers", "1"),
    )
    assert (code, run.summary()["steps"]) == (0, 3)
    assert run.summary()["test_accuracy"] is not None


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_image_that_cannot_be_read_is_named(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str], num_workers: int
) -> None:
    """In one line, whichever process read it."""
    _images(tmp_path / "images", "train", "val")
    broken = tmp_path / "images" / "train" / "red" / "3.png"
    os.truncate(broken, broken.stat().st_size // 2)
    code, _ = train(
        *("--workload", "imagefolder", "--data-dir", str(tmp_path / "images")),
        *("--model", "squeezenet1_1", "--image-size", "32", "--global-batch-size", "4"),
        *("--epochs", "1", "--num-workers", str(num_workers)),
    )
    assert code == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"trainer: data must be samples that can be read; found {broken}: ")


def test_folders_that_do_not_fit_are_one_line(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No folder, no val, other classes, no images: 64 and nothing written."""
    _images(tmp_path / "a", "train")
    _images(tmp_path / "b", "train", "val")
    (tmp_path / "b" / "val" / "green").mkdir()
    for split in ("train", "val"):
        (tmp_path / "c" / split / "empty").mkdir(parents=True)
    (tmp_path / "d" / "train").mkdir(parents=True)
    for options in ([], *(["--data-dir", str(tmp_path / name)] for name in "xabcd")):
        code, run = train("--workload", "imagefolder", *options)
        assert code == 64
        assert capsys.readouterr().err.count("\n") == 1
        assert not run.path.exists()


def test_fake_images_need_no_files(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """Any classification model by name; an unknown one is an error that lists them."""
    fake = ("--workload", "fake-images", "--num-samples", "16", "--num-classes", "2")
    small = ("--image-size", "32", "--global-batch-size", "8", "--model", "squeezenet1_1")
    code, run = train(*fake, *small)
    assert (code, run.summary()["steps"]) == (0, 2)
    code, _ = train(*fake, *small[:-1], "resnet19", out="other")
    assert code == 64
    assert "resnet18" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "side_px"), [("googlenet", 32), ("inception_v3", 75), ("vit_b_32", 64)]
)
def test_models_that_want_more_than_a_name_train(train: Train, model: str, side_px: int) -> None:
    """Those with outputs for the training alone, and those built for one size of images."""
    fake = ("--workload", "fake-images", "--num-samples", "16", "--num-classes", "2")
    small = ("--image-size", str(side_px), "--global-batch-size", "2", "--max-steps", "1")
    code, run = train(*fake, *small, "--model", model, "--checkpoint-every", "0")
    assert (code, run.summary()["steps"]) == (0, 1)


@pytest.mark.parametrize(
    "options",
    [
        ("--model", "alexnet", "--image-size", "16"),
        ("--model", "vit_b_32", "--image-size", "40"),
        ("--model", "resnet18", "--image-size", "32", "--micro-batch-size", "1"),
    ],
)
def test_images_that_do_not_go_through_the_model_are_one_line(
    train: Train, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """Too small, not divisible, or too few for batch norm: 64 and nothing written."""
    code, run = train("--workload", "fake-images", "--num-samples", "64", *options)
    output = capsys.readouterr().err
    assert (code, output.count("\n")) == (64, 1)
    assert output.startswith(f"trainer: --model {options[1]} must take ")
    assert not run.path.exists()


def test_a_ranks_share_of_one_is_too_few_for_batch_norm(
    start_ranks: Callable[..., Ranks],
) -> None:
    """It is the share that is tried, before anything is written; one rank reports it."""
    small = ("--image-size", "32", "--num-samples", "8", "--global-batch-size", "2")
    started = start_ranks(2, "--workload", "fake-images", *small)
    assert started.wait() == [64, 64]
    errors = "".join(output[1] for output in started.output)
    assert errors.count("trainer: --model resnet18 must take 1 image of --image-size 32") == 1
    assert not started.run.path.exists()


def test_a_trial_draws_nothing() -> None:
    """A model has the weights that its name and the seed alone give."""
    from torchvision import models  # noqa: PLC0415 -- slow, and only here

    config = Config(workload="fake-images", model="alexnet", num_classes=2)  # has dropout
    torch.manual_seed(1)
    own = FakeImages(config).build_model().state_dict()
    drawn = torch.get_rng_state()
    torch.manual_seed(1)
    torch.testing.assert_close(own, models.alexnet(num_classes=2).state_dict(), rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--workload", "fake-images", "--num-samples", str(10**30)), "--num-samples times"),
        (("--workload", "lm", "--mock-tokens", str(10**30)), "--mock-tokens"),
    ],
)
def test_made_up_data_must_fit_in_memory(
    train: Train, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], named: str
) -> None:
    """More than that is reported before anything is made, and leaves nothing."""
    code, run = train(*options)
    assert code == 64
    assert capsys.readouterr().err.startswith(f"trainer: {named}")
    assert not run.path.exists()


def test_a_workload_of_ones_own(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """package.module:Class from the working directory; without test data nothing is validated."""
    (tmp_path / "own_workload.py").write_text(
        textwrap.dedent("""
            import torch
            from trainer.workloads.base import TensorData, Workload

            class Line(Workload):
                default_epochs = 5
                def build_model(self): return torch.nn.Linear(1, 1)
                def train_data(self):
                    x = torch.linspace(-1, 1, 64).view(-1, 1)
                    return TensorData(inputs=x, targets=2 * x[:, 0])
                def test_data(self): return None
                def loss(self, outputs, targets): return (outputs[:, 0] - targets).square().mean()
        """)
    )
    monkeypatch.chdir(tmp_path)
    code, run = train(
        "--workload",
        "own_workload:Line",
        "--lr",
        "0.05",
        "--optimizer",
        "sgd",
        "--global-batch-size",
        "8",
        "--schedule",
        "constant",
        "--log-every",
        "8",
    )
    assert code == 0
    assert run.summary()["test_accuracy"] is None
    assert run.summary()["steps"] == 40
    assert run.losses()[-1] < run.losses()[0] / 10


@pytest.mark.slow
@pytest.mark.filterwarnings(
    # what torch's compiler imports of its own uses it, up to torch 2.13
    "ignore:`torch.jit.script_method`:DeprecationWarning"
)
def test_a_compiled_model_trains(train: Train) -> None:
    """With torch.compile: the same losses as without."""
    _, plain = train(*QUICK, "--max-steps", "10", out="plain")
    code, compiled = train(*QUICK, "--max-steps", "10", "--compile", out="compiled")
    assert code == 0
    assert compiled.losses() == pytest.approx(plain.losses(), rel=1e-4)
    torch.compiler.reset()
