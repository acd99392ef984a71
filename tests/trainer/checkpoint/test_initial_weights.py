"""--init-from: a new run that begins with the weights of another."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.quick_run import QUICK
from trainer import export
from trainer.checkpoint.initial_weights import begin_with
from trainer.command import run as run_command
from trainer.errors import UserError
from trainer.workloads.llama import build_llama
from trainer.workloads.llama_presets import preset

Train = Callable[..., tuple[int, Any]]
TUNED = (*QUICK, "--lr", "1e-9", "--max-steps", "1", "--schedule", "constant")
"""A step that leaves the weights as they are: its loss is theirs."""


@pytest.fixture
def first(train: Train) -> Any:
    """A run of two epochs."""
    code, run = train(*QUICK, "--epochs", "2", out="first")
    assert code == 0
    return run


@pytest.fixture
def exported(first: Any, tmp_path: Path) -> Path:
    """Its weights in a file."""
    file = tmp_path / "weights.pt"
    assert run_command(export.main, [str(first.path), str(file)]) == 0
    return file


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "checkpoint", "best", "safetensors", "pt"])
def test_a_run_begins_with_the_weights_of_another(
    train: Train, first: Any, tmp_path: Path, kind: str
) -> None:
    """At step 0, with an optimizer of its own and other options, without --force."""
    source = {
        "run": first.path,
        "checkpoint": first.path / "checkpoints/step-40",
        "best": first.path / "best",
    }.get(kind, tmp_path / f"weights.{kind}")
    if kind in ("safetensors", "pt"):
        assert run_command(export.main, [str(first.path), str(source)]) == 0
    code, run = train(*TUNED, "--init-from", str(source), out="tuned")
    assert code == 0
    (line,) = run.metrics()
    assert line["step"] == 1
    assert line["loss"] < 2 * first.losses()[-1] < first.losses()[0]


@pytest.mark.slow
def test_a_restart_goes_on_from_its_own_checkpoint(train: Train, first: Any) -> None:
    """Not from the weights that the run once began with, which may be gone."""
    words = (*QUICK, "--init-from", str(first.path))
    assert train(*words, "--epochs", "1", out="tuned")[0] == 0
    first.path.rename(first.path.with_name("archived"))
    code, run = train(*words, "--epochs", "2", out="tuned")
    assert code == 0
    assert run.events("resume")[-1]["step"] == 20


@pytest.mark.slow
def test_shards_begin_with_them_too(start_ranks: Callable[..., Any], first: Any) -> None:
    """Two ranks, each with half of every weight: the loss of one."""
    losses = []
    for count, options in ((1, ()), (2, ("--strategy", "fsdp"))):
        words = (*TUNED, *options, "--init-from", str(first.path))
        started = start_ranks(count, *words, out=f"tuned-{count}")
        assert started.wait() == [0] * count, started.output
        losses += started.run.losses()
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
def test_a_file_is_cut_into_shards(
    start_ranks: Callable[..., Any], first: Any, tmp_path: Path
) -> None:
    """Of a whole tensor each rank keeps its rows."""
    file = tmp_path / "w.safetensors"
    assert run_command(export.main, [str(first.path), str(file)]) == 0
    started = start_ranks(2, *TUNED, "--strategy", "fsdp", "--init-from", str(file), out="cut")
    assert started.wait() == [0, 0], started.output
    assert started.run.losses()[0] < 2 * first.losses()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(min(w)), "1 tensor missing, such as "),
        (lambda w: w.update(extra=torch.zeros(1)), "1 tensor too many, such as extra; give the"),
        (lambda w: w.update({min(w): torch.zeros(3)}), r"of shape \(3,\) in place of \("),
        (lambda w: w.clear(), "tensors missing"),
        (lambda w: w.update({min(w): w[min(w)].long()}), "of torch.int64 in place of torch.float"),
        (lambda w: w.update({min(w): w[min(w)].cfloat()}), "of torch.complex64 in place of"),
        (lambda w: w.update({min(w): w[min(w)].to("meta")}), "with values; found .* without"),
        (None, "a state dict; found "),
    ],
)
def test_other_weights_are_refused(
    train: Train, exported: Path, capsys: pytest.CaptureFixture[str], change: Any, message: str
) -> None:
    """By the run as by --check: one line, code 64, and no run directory."""
    file = exported
    if change is None:
        file.write_bytes(b"no weights")
    else:
        whole = torch.load(file, weights_only=True)
        change(whole["model"])
        torch.save(whole, file)
    capsys.readouterr()
    assert train(*TUNED, "--init-from", str(file), out="tuned")[0] == 64
    output = capsys.readouterr().err
    assert train(*TUNED, "--init-from", str(file), "--check", out="tuned")[0] == 64
    assert capsys.readouterr().err == output
    assert output.startswith(f"trainer: --init-from {file} must be ")
    assert output.count("\n") == 1
    assert not (file.parent / "tuned").exists()
    assert re.search(message, output), output


def test_a_model_that_is_no_state_dict_is_refused(tmp_path: Path) -> None:
    """As one in which all is missing."""
    torch.save({"model": 5}, tmp_path / "w.pt")
    with pytest.raises(UserError, match="2 tensors missing"):
        begin_with(tmp_path / "w.pt", torch.nn.Linear(2, 2), {})


def test_what_is_one_parameter_has_one_value(tmp_path: Path) -> None:
    """Untied weights are none of a tied model; equal ones are, in whatever precision."""
    model = build_llama(replace(preset("toy"), is_tied=True))
    weights = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
    torch.save(weights, tmp_path / "w.pt")
    begin_with(tmp_path / "w.pt", model, {})
    torch.save(weights | {"output.weight": weights["output.weight"] + 1}, tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"found tok_embeddings\.weight and output\.weight that"):
        begin_with(tmp_path / "w.pt", model, {})


@pytest.mark.parametrize("source", ["nowhere", "nowhere.pt", "empty"])
def test_what_is_not_there_is_refused_by_check(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    """Before torch is imported."""
    (tmp_path / "empty").mkdir()
    assert train(*QUICK, "--init-from", str(tmp_path / source), "--check", out="tuned")[0] == 64
    assert capsys.readouterr().err.count("\n") == 1
