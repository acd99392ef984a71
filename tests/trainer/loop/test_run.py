"""Whole runs of one rank, in this process."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch

import trainer.loop.loop
from tests.trainer.quick_run import QUICK, Train
from trainer import command, evaluate, export, inspect

pytestmark = pytest.mark.slow  # real processes: seconds, not milliseconds


def test_a_run_leaves_what_the_contract_asks_for(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metrics, events, pointers, a summary, and a block for a person; then exit 0."""
    code, run = train(*QUICK, "--epochs", "2", "--lr", "0.003")
    summary = run.summary()
    assert code == 0
    assert list(summary) == [
        "outcome", "ended_by", "train_time_s", "samples_per_s", "final_loss", "test_accuracy",
        "test_loss", "best_step", "best_accuracy", "best_test_loss", "best_checkpoint",
        "num_validations_without_gain", "world_size", "steps", "checkpoint_step",
        "non_finite_steps", "peak_memory_bytes", "slow_ranks",
    ]  # fmt: skip
    assert (summary["outcome"], summary["steps"], summary["world_size"]) == ("finished", 40, 1)
    assert summary["test_accuracy"] > 0.85
    assert summary["peak_memory_bytes"] > 100 << 20  # torch itself is larger
    assert [line["step"] for line in run.metrics()] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert set(run.metrics()[0]) >= {
        "time", "attempt", "step", "total_steps", "epoch", "loss", "lr", "samples_per_s",
        "data_wait_pct", "memory_mib",
    }  # fmt: skip
    assert run.losses()[-1] < run.losses()[0] / 2
    assert summary["final_loss"] == run.losses()[-1]
    assert [line["step"] for line in run.metrics("test_accuracy")] == [20, 40]
    assert run.metrics("test_accuracy")[-1]["test_accuracy"] == summary["test_accuracy"]
    assert run.checkpoints() == {"step-20", "step-40", "latest", "best"}
    assert [event["step"] for event in run.events("checkpoint")] == [20, 40]
    output = capsys.readouterr().out
    assert "step 5/40  epoch 1  loss" in output
    assert re.search(r"FINISHED  test accuracy \d\d\.\d\d %", output)
    assert str(run.path) in output


@pytest.mark.usefixtures("train")  # it puts the signal handlers back
def test_the_run_directory_is_the_launchers(
    clean_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDP_RUN_DIR, attempt, seed and node; without any of them, out/local-<time>-<pid>."""
    from trainer.__main__ import main  # noqa: PLC0415 -- as the fixture has it

    env = {"DDP_RUN_DIR": str(tmp_path / "d"), "DDP_ATTEMPT": "4", "DDP_NODE": "n9"}
    assert main([*QUICK, "--max-steps", "1"], {**clean_env, **env}) == 0
    output = (tmp_path / "d" / "events.jsonl").read_text()
    assert '"attempt": 4, "host": "n9"' in output
    monkeypatch.chdir(tmp_path)
    assert main([*QUICK, "--max-steps", "1"], clean_env) == 0
    (made,) = (tmp_path / "out").iterdir()
    assert re.fullmatch(rf"local-\d{{8}}T\d{{6}}-{os.getpid()}", made.name)


def test_epochs_and_steps_end_a_run_at_whichever_comes_first(train: Train) -> None:
    """Steps alone go beyond the workload's own number of epochs, which is 3 of 20 steps."""
    for options, steps in (((), 65), (("--epochs", "1"), 20), (("--epochs", "9"), 65)):
        _, run = train(*QUICK, "--max-steps", "65", *options, out=f"run{len(options)}{steps}")
        assert run.summary()["steps"] == steps


def test_accumulation_changes_nothing_but_the_memory(train: Train) -> None:
    """One microbatch of 250, or five of 50: the same losses."""
    _, whole = train(*QUICK, "--max-steps", "10", out="a")
    _, cut = train(*QUICK, "--max-steps", "10", "--micro-batch-size", "50", out="b")
    assert whole.losses() == pytest.approx(cut.losses(), rel=1e-5)


def test_a_resumed_run_is_the_run_that_never_stopped(train: Train) -> None:
    """From the middle of an epoch, with the same losses to the last bit."""
    options = (*QUICK, "--log-every", "1", "--schedule", "constant", "--weight-decay", "0.1")
    _, whole = train(*options, "--max-steps", "33", out="whole")
    train(*options, "--max-steps", "27", out="parts")
    code, parts = train(*options, "--max-steps", "33", out="parts")
    assert code == 0
    assert parts.losses() == whole.losses()
    assert parts.summary()["steps"] == 33


def test_a_finished_run_started_again_has_nothing_left_to_do(train: Train) -> None:
    """It says finished, with the same numbers; --resume none starts afresh."""
    _, first = train(*QUICK, "--epochs", "1")
    before = first.summary()
    code, again = train(*QUICK, "--epochs", "1")
    after = again.summary()
    assert code == 0
    for key in ("outcome", "final_loss", "test_accuracy", "steps"):
        assert before[key] == after[key]
    assert len(again.metrics()) == 4
    train(*QUICK, "--epochs", "1", "--resume", "none")
    assert len(again.metrics()) == 8


def test_a_resume_with_other_numbers_is_refused(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """With 64 and the differences in one line; --force goes on, and then they are the run's."""
    train(*QUICK, "--max-steps", "2", "--lr", "0.002")
    other = (*QUICK[:2], "--global-batch-size", "100", "--max-steps", "4", "--lr", "0.001")
    capsys.readouterr()
    code, run = train(*other, "--seed", "9")
    output = capsys.readouterr().err
    assert code == 64
    assert "lr: 0.001 where the run began with 0.002" in output
    assert "global_batch_size: 100 where the run began with 250" in output
    assert "seed: 9 where the run began with 1" in output
    assert output.count("\n") == 1
    assert run.summary()["steps"] == 2
    code, run = train(*other, "--seed", "9", "--force")
    assert (code, run.summary()["steps"]) == (0, 4)
    code, _ = train(*other, "--seed", "9")
    assert code == 0


def test_what_does_not_change_the_numbers_may_change(train: Train) -> None:
    """How long, in which microbatches, what is validated, logged and kept; and DDP_SEED."""
    train(*QUICK, "--max-steps", "3")
    code, run = train(
        *(*QUICK[:4], "--log-every", "2", "--epochs", "1", "--micro-batch-size", "50"),
        *("--val-every", "7", "--checkpoint-every", "4", "--checkpoint-mode", "sync"),
        *("--checkpoint-minutes", "5", "--keep-checkpoints", "9", "--num-workers", "0"),
    )
    assert (code, run.summary()["steps"]) == (0, 20)
    (resume,) = [event for event in run.events("resume") if event["path"]]
    assert resume["step"] == 3


@pytest.mark.parametrize(
    "options",
    [
        ("--precision", "bf16"),
        ("--precision", "fp16", "--clip-grad-norm", "1.0"),
        ("--optimizer", "sgd", "--lr", "0.05", "--clip-grad-norm", "1.0"),
        ("--optimizer", "adam", "--dropout", "0.1", "--warmup-steps", "5"),
    ],
    ids=" ".join,
)
@pytest.mark.filterwarnings("ignore:torch.cuda.amp")
def test_every_precision_and_optimizer_learns(train: Train, options: tuple[str, ...]) -> None:
    """The loss falls by half in two epochs."""
    code, run = train(*QUICK, "--epochs", "2", *options)
    assert code == 0
    assert run.losses()[-1] < run.losses()[0] / 2


def test_clipping_bounds_the_step(train: Train) -> None:
    """With plain descent and a norm of almost nothing, nothing moves."""
    options = ("--optimizer", "sgd", "--lr", "0.1", "--weight-decay", "0", "--schedule", "constant")
    _, run = train(*QUICK, *options, "--max-steps", "20", "--clip-grad-norm", "1e-9")
    assert run.losses()[-1] > run.losses()[0] * 0.9


def test_validation_comes_every_n_steps_and_at_the_end(train: Train) -> None:
    """Also a checkpoint every n steps, besides each epoch's."""
    options = ("--val-every", "8", "--checkpoint-every", "7", "--keep-checkpoints", "9")
    _, run = train(*QUICK, "--max-steps", "30", *options)
    assert [line["step"] for line in run.metrics("test_accuracy")] == [8, 16, 24, 30]
    steps = {event["step"] for event in run.events("checkpoint")}
    assert steps >= {7, 14, 20, 21, 28, 30}


def test_checkpoints_come_every_few_minutes(train: Train) -> None:
    """In the middle of an epoch, too, by the clock; 0 turns them off."""
    for minutes, is_more in (("0.0005", True), ("0", False)):
        options = ("--max-steps", "39", "--checkpoint-minutes", minutes)
        _, run = train(*QUICK, *options, "--keep-checkpoints", "99", out=f"run{minutes}")
        saved = [event["step"] for event in run.events("checkpoint")]
        assert {20, 39} <= set(saved)
        assert (len(saved) > 2) is is_more


def test_early_stopping_ends_a_run_that_no_longer_gains(train: Train) -> None:
    """A learning rate of nothing gains once, then never: two validations later it ends."""
    options = ("--lr", "1e-12", "--epochs", "50", "--early-stop-patience", "2")
    code, run = train(*QUICK, *options)
    assert (code, run.summary()["outcome"], run.summary()["steps"]) == (0, "finished", 60)
    train(*QUICK, *options)
    assert run.summary()["steps"] == 60


@pytest.mark.parametrize(("lr", "patience"), [("0.05", 1), ("0.003", 0), ("0.02", 2)])
def test_the_end_tells_why_and_what_was_best(
    train: Train, capsys: pytest.CaptureFixture[str], tmp_path: Path, lr: str, patience: int
) -> None:
    """By the run's own metrics: the first of the best accuracies, and what followed it in vain."""
    options = ("--max-steps", "30", "--val-every", "2", "--early-stop-patience", str(patience))
    code, run = train(*QUICK, *options, "--lr", lr)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    measured = [line for line in map(json.loads, lines) if "test_accuracy" in line]
    best = max(measured, key=lambda line: line["test_accuracy"])  # the first of several
    in_vain = sum(line["step"] > best["step"] for line in measured)
    summary, output = run.summary(), capsys.readouterr().out
    is_early = measured[-1]["step"] < 30
    assert code == 0
    assert summary["ended_by"] == ("early_stop" if is_early else "last_step")
    assert (in_vain == patience) if is_early else True
    assert summary["num_validations_without_gain"] == in_vain
    assert [summary["best_step"], summary["best_accuracy"], summary["best_test_loss"]] == [
        best["step"], best["test_accuracy"], pytest.approx(best["test_loss"])
    ]  # fmt: skip
    path = run.path / "checkpoints" / f"step-{best['step']}"
    percent = 100 * best["test_accuracy"]
    assert f"step {best['step']}, test accuracy {percent:.2f} %, test loss " in output
    assert f": {path}\n" in output
    early = f", ended early: {in_vain} validation{'s' * (in_vain > 1)} in a row without a gain"
    assert (early in output) is is_early
    assert (", the last one\n" in output) is not is_early
    for named in (run.path / "best", run.path / "checkpoints" / "best"):
        assert command.run(export.main, [str(named), str(tmp_path / "best.pt"), "--force"]) == 0
        assert torch.load(tmp_path / "best.pt", weights_only=True)["step"] == best["step"]
        assert command.run(inspect.main, [str(named)]) == 0
        capsys.readouterr()
        assert command.run(evaluate.main, [str(named), "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        for name in ("step", "test_accuracy", "test_loss", "num_samples"):
            assert again[name] == pytest.approx(best[name], rel=1e-5)
    (run.path / "checkpoints" / "best").unlink()
    assert command.run(export.main, [str(run.path / "best"), str(tmp_path / "none.pt")]) == 64


def test_a_profile_and_tensorboard_when_asked(train: Train) -> None:
    """A trace of the chosen steps, and the curves."""
    code, run = train(*QUICK, "--max-steps", "6", "--profile-steps", "3:4", "--tensorboard")
    assert code == 0
    assert '"traceEvents"' in (run.path / "debug" / "trace-rank-0.json").read_text()
    assert list((run.path / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.parametrize("name", ["TERM", "INT", "USR1"])
def test_a_request_to_stop_leaves_a_checkpoint_and_75(
    train: Train, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """At the end of the step; the next start finishes the run with the same losses."""
    whole = train(*QUICK, "--log-every", "1", "--max-steps", "12", out="whole")[1].losses()
    one_step = trainer.loop.loop.Loop._train_step  # noqa: SLF001 -- to send the signal within a step

    def interrupted(loop: trainer.loop.loop.Loop, step: int) -> None:
        one_step(loop, step)
        if step == 7:
            os.kill(os.getpid(), getattr(signal, f"SIG{name}"))

    with monkeypatch.context() as patch:
        patch.setattr(trainer.loop.loop.Loop, "_train_step", interrupted)
        code, run = train(*QUICK, "--log-every", "1", "--max-steps", "12")
    assert (code, run.summary()["outcome"], run.summary()["steps"]) == (75, "stopped", 7)
    assert run.events("signal")[0]["signal"] == name
    assert run.checkpoints() == {"step-7", "latest"}
    code, run = train(*QUICK, "--log-every", "1", "--max-steps", "12")
    assert (code, run.summary()["outcome"]) == (0, "finished")
    assert run.losses() == whole


def test_a_failure_is_recorded_and_ends_with_70(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line in the record, the traceback on stderr; steps count that no line of the log has."""
    one_step = trainer.loop.loop.Loop._train_step  # noqa: SLF001 -- as above

    def broken(loop: trainer.loop.loop.Loop, step: int) -> None:
        if step == 4:
            raise RuntimeError(f"at step {step}:\n  it broke; password=SECRET")
        one_step(loop, step)

    monkeypatch.setattr(trainer.loop.loop.Loop, "_train_step", broken)
    code, run = train(*QUICK)
    assert code == 70
    (failure,) = run.events("failure")
    error = "RuntimeError: at step 4: it broke; password=***"
    assert (failure["rank"], failure["error"]) == (0, error)
    assert (run.summary()["outcome"], run.summary()["steps"]) == ("failed", 3)
    assert "Traceback" in capsys.readouterr().err


def test_a_failure_waits_for_the_checkpoint_on_its_way(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank alone can finish what it began to write; nothing that was saved is lost."""
    one_step = trainer.loop.loop.Loop._train_step  # noqa: SLF001 -- as above

    def broken(loop: trainer.loop.loop.Loop, step: int) -> None:
        one_step(loop, step)
        if step == 8:
            raise RuntimeError("it broke")

    monkeypatch.setattr(trainer.loop.loop.Loop, "_train_step", broken)
    code, run = train(*QUICK, "--checkpoint-every", "7")
    assert code == 70
    assert run.checkpoints() == {"step-7", "latest"}


def test_a_live_bar_on_a_terminal(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With loss and speed; the log's lines stay away."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, _ = train(*QUICK, "--epochs", "1")
    output = capsys.readouterr().out
    assert code == 0
    assert "samples/s" in output
    assert "20/20" in output
    assert "step 5/20" not in output


@pytest.mark.parametrize(
    "options",
    [
        ("--nonesuch",),
        ("--global-batch-size", "64", "--micro-batch-size", "7"),
        ("--global-batch-size", "5001"),
        ("--data-dir", "/nonesuch"),
        ("--model", "nonesuch"),
        ("--workload", "nonesuch"),
        ("--config", "/nonexistent.toml"),
        ("--resume", "nonesuch"),
    ],
    ids=" ".join,
)
def test_wrong_input_is_64_one_line_and_nothing_written(
    train: Train, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """No traceback, no run directory."""
    code, run = train(*options)
    output = capsys.readouterr().err
    assert code == 64
    assert output.startswith("trainer: ")
    assert output.count("\n") == 1
    assert not run.path.exists()


def test_tinyllamas_own_job_is_right_on_any_number_of_ranks() -> None:
    """10 does not divide 2048, so that each step ends with a smaller microbatch."""
    from trainer.__main__ import main  # noqa: PLC0415 -- as the fixture has it

    options = "--workload lm --model tinyllama-1.1b --micro-batch-size 10 --global-batch-size 2048"
    job = [*options.split(), "--max-steps", "131072", "--lr", "5e-3", "--precision", "bf16"]
    job.append("--check")
    for ranks in (1, 8, 256):
        assert main(job, {"WORLD_SIZE": str(ranks)}) == 0
    assert main([*job, "--pp", "2"], {"WORLD_SIZE": "8"}) == 64  # stages pass on one shape


def test_check_only_checks(train: Train, clean_env: dict[str, str]) -> None:
    """--check answers for as many ranks as WORLD_SIZE will be, and writes nothing."""
    from trainer.__main__ import main  # noqa: PLC0415 -- as the fixture has it

    code, run = train("--check")
    assert code == 0
    assert not run.path.exists()
    assert main(["--check"], {**clean_env, "WORLD_SIZE": "3"}) == 64
