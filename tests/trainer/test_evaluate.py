"""python -m trainer.evaluate, and other commands, on the checkpoint of a run of one rank."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.quick_run import QUICK, Train
from trainer import command, evaluate, export, inspect
from trainer.checkpoint import manifest
from trainer.data import batch_plan

pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds


def test_a_model_is_evaluated_in_the_memory_that_a_few_samples_take(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A global batch is of as many as all GPUs of a run have room for."""
    _, run = train(*QUICK, "--max-steps", "1", "--global-batch-size", "512")
    sizes = []
    plan_batches = batch_plan.plan_batches

    def spy(**asked: Any) -> Any:
        sizes.append(plan_batches(**asked).micro_batch_size)
        return plan_batches(**asked)

    monkeypatch.setattr(batch_plan, "plan_batches", spy)
    assert command.run(evaluate.main, [str(run.path)]) == 0
    assert sizes == [8]


def test_a_checkpoint_does_not_choose_the_code_that_runs(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a stranger's, with a module beside it: a class is imported if its user names it."""
    own = "trainer.workloads.mnist:Mnist"
    _, run = train(*QUICK, "--max-steps", "1", "--workload", own)
    for wanted, code in (((), 64), (("--workload", "mnist"), 64), (("--workload", own), 0)):
        capsys.readouterr()
        assert command.run(evaluate.main, [str(run.path), *wanted]) == code
        assert (f"if that code is yours, add --workload {own}" in capsys.readouterr().err) == (
            code == 64
        )


def test_strange_options_of_a_checkpoint_are_one_line(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a stranger's, with sums that are right."""
    _, run = train(*QUICK, "--max-steps", "1")
    checkpoint = run.path / "checkpoints" / "step-1"
    state = json.loads((checkpoint / "state.json").read_text())
    hf = [str(checkpoint), str(tmp_path / "hf"), "--format", "hf"]
    for main, words in ((evaluate.main, [str(checkpoint)]), (export.main, hf)):
        for strange in (
            {"workload": []},
            {"workload": "lm", "sequence_length": "x"},
            {"workload": "lm", "model": {}},
            *({"precision": value} for value in ([], "x", 3)),
            *({"lr": value} for value in ("x", True, [], float("nan"))),
        ):
            spoiled = {**state, "identity": {**state["identity"], **strange}}
            (checkpoint / "state.json").write_text(json.dumps(spoiled))
            sums = {"state.json": manifest.examine(checkpoint / "state.json")}
            manifest.write(checkpoint, {**manifest.read(checkpoint), **sums})
            capsys.readouterr()
            assert command.run(main, words) == 64, strange
            assert capsys.readouterr().err.count("\n") == 1, strange


def test_a_loss_that_is_no_number_is_null_for_programs(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in metrics.jsonl: JSON has no word for it."""
    _, run = train(*QUICK, "--max-steps", "1", "--optimizer", "sgd", "--lr", "1e30")
    found = []
    for main in (evaluate.main, inspect.main):
        capsys.readouterr()
        assert command.run(main, [str(run.path), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out, parse_constant=pytest.fail))
    assert (found[0]["test_loss"], found[1]["position"]["last_test_loss"]) == (None, None)
