"""Runs of several ranks, each a process of its own, over gloo on the CPU."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

QUICK = ("--model", "mlp", "--log-every", "1")
ENDLESS = (*QUICK, "--epochs", "100000", "--val-every", "1000000")
Start = Callable[..., Any]


@pytest.mark.parametrize(("model", "steps"), [("mlp", "30"), ("cnn", "12")])
def test_every_split_of_a_batch_gives_the_same_losses(
    start_ranks: Start, model: str, steps: str
) -> None:
    """1x64, 2x32, 4x16, and 2 ranks with two microbatches of 16: equal to 1e-5 at each step."""
    losses, accuracies = [], []
    for ranks, micro in ((1, 64), (2, 32), (4, 16), (2, 16)):
        started = start_ranks(
            ranks, "--model", model, "--log-every", "1", "--max-steps", steps,
            "--global-batch-size", "64", "--micro-batch-size", str(micro), out=f"{ranks}x{micro}",
        )  # fmt: skip
        assert started.wait() == [0] * ranks
        losses.append(started.run.losses())
        accuracies.append(started.run.summary()["test_accuracy"])
    assert len(losses[0]) == int(steps)
    assert losses[0][-1] < losses[0][0]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-5)
    assert accuracies == pytest.approx([accuracies[0]] * 4, abs=0.0011)  # a digit on the edge


def test_a_run_goes_on_with_another_number_of_ranks(start_ranks: Start) -> None:
    """Stopped after 9 steps on 2 ranks, resumed on 1 and on 4: the losses of an unbroken run."""
    options = (*QUICK, "--schedule", "constant")
    whole = start_ranks(1, *options, "--max-steps", "20", out="whole")
    assert whole.wait() == [0]
    for count, steps in ((2, "9"), (1, "15"), (4, "20")):
        assert start_ranks(count, *options, "--max-steps", steps).wait() == [0] * count
    parts = start_ranks(2, *options, "--max-steps", "20")
    assert parts.wait() == [0, 0]  # nothing left to do is a good end, too
    assert parts.run.losses() == pytest.approx(whole.run.losses(), rel=1e-5)


def test_one_rank_asked_to_stop_stops_all_at_the_same_step(
    start_ranks: Start, patience: Callable[[float], float]
) -> None:
    """Only rank 1 gets the signal: all end with 75 within seconds, on one checkpoint."""
    started = start_ranks(2, *ENDLESS)
    started.wait_for_step(20)
    began_s = time.monotonic()
    started.processes[1].send_signal(signal.SIGUSR1)
    assert started.wait(30) == [75, 75]
    assert time.monotonic() - began_s < patience(15)
    summary = started.run.summary()
    assert summary["outcome"] == "stopped"
    assert (started.run.path / "checkpoints" / "latest").read_text().strip() == (
        f"step-{summary['steps']}"
    )


def test_ranks_save_by_the_clock_of_rank_0(start_ranks: Start) -> None:
    """All at the same step, in the middle of an epoch, with all that each has for itself."""
    started = start_ranks(
        2, *QUICK, "--max-steps", "70", "--checkpoint-minutes", "0.0005", "--keep-checkpoints", "99"
    )
    assert started.wait() == [0, 0]
    saved = [event["step"] for event in started.run.events("checkpoint")]
    assert len(saved) > 2
    for step in saved:
        folder = started.run.path / "checkpoints" / f"step-{step}"
        assert {entry.name for entry in folder.iterdir()} == {
            ".metadata", "__0_0.distcp", "__1_0.distcp", "state.json", "manifest.json",
        }  # fmt: skip


def test_all_ranks_skip_what_one_finds_damaged(start_ranks: Start) -> None:
    """The files are verified by shares: the rank with the bad one reports it to the others."""
    options = (*QUICK, "--checkpoint-every", "4")
    before = start_ranks(2, *options, "--max-steps", "8")
    assert before.wait() == [0, 0]
    bad = before.run.path / "checkpoints" / "step-8" / "__1_0.distcp"
    data = bytearray(bad.read_bytes())
    data[len(data) // 3] ^= 16
    bad.write_bytes(data)
    parts = start_ranks(2, *options, "--max-steps", "12")
    assert parts.wait() == [0, 0]
    printed = parts.output[0][1] + parts.output[1][1]
    assert printed.count("skipped checkpoint") == 1
    assert "__1_0.distcp has changed since it was written" in printed
    resume = parts.run.events("resume")[-1]
    assert (resume["step"], len(resume["skipped"])) == (4, 1)


def test_a_killed_rank_ends_the_others(start_ranks: Start) -> None:
    """They fail by themselves, with 70, a failure in the record and a summary; no rank hangs."""
    started = start_ranks(3, *ENDLESS, "--global-batch-size", "63")
    started.wait_for_step(20)
    started.processes[2].kill()
    assert started.wait(60) == [70, 70, -signal.SIGKILL]
    assert {event["rank"] for event in started.run.events("failure")} <= {0, 1}
    assert started.run.events("failure")
    assert started.run.summary()["outcome"] == "failed"
    assert "Traceback" in started.output[0][1]


def test_wrong_input_ends_all_ranks_alike(start_ranks: Start, tmp_path: Path) -> None:
    """64 on each, one line from rank 0, nothing written."""
    started = start_ranks(2, "--global-batch-size", "63")
    assert started.wait() == [64, 64]
    assert started.output[0][1].count("\n") == 1
    assert started.output[1] == ("", "")
    assert not list(tmp_path.iterdir())


def test_a_download_that_fails_ends_all_ranks_alike(start_ranks: Start, tmp_path: Path) -> None:
    """One rank of the node tries; the others learn of it."""
    folder = tmp_path / "data"
    folder.mkdir()
    no_network = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    started = start_ranks(2, "--data-dir", str(folder), env=no_network)
    assert started.wait() == [64, 64]
    printed = [line for line in started.output[0][1].splitlines() if line.startswith("trainer: ")]
    assert len(printed) == 1
    assert "leave --data-dir out" in printed[0]
    assert not list(folder.iterdir())
    assert not started.run.path.exists()


def test_torchrun_starts_it(clean_env: dict[str, str], tmp_path: Path) -> None:
    """Its variables and its store are enough; without --out all ranks share one directory."""
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "trainer", *QUICK, "--max-steps", "3"),
        ],
        env=clean_env,
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=400,
    )
    (run_dir,) = (tmp_path / "out").iterdir()
    last = json.loads((run_dir / "events.jsonl").read_text().splitlines()[-1])
    assert last["summary"]["world_size"] == 2
    assert last["summary"]["outcome"] == "finished"


def test_wrong_input_is_answered_before_torch_is_imported(clean_env: dict[str, str]) -> None:
    """So quickly that a typing error costs no patience; so is --help.

    Nor is typeguard imported, a tenth of a second, which tyro takes for types it does not know.
    """
    code = (
        "import sys; from trainer.__main__ import main\n"
        "code = main(['--data-dir', '/nonesuch'], {})\n"
        "assert code == 64 and not {'torch', 'typeguard'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], env=clean_env, check=True, timeout=300)


def test_without_compiling_the_compiler_is_not_imported(
    clean_env: dict[str, str], tmp_path: Path
) -> None:
    """Importing it takes seconds on every rank; after a whole run it is still not there.

    Nor is sympy, half a second, when the first step is taken; saving needs it, beside the training.
    """
    code = (
        "import os, sys; from trainer.__main__ import main\n"
        "from trainer.loop.optim import Update\n"
        "apply = Update.apply\n"
        "def first(*args): assert 'sympy' not in sys.modules; Update.apply = apply; apply(*args)\n"
        "Update.apply = first\n"
        f"code = main(['--model', 'mlp', '--max-steps', '2', '--out', {str(tmp_path / 'r')!r}],"
        " os.environ)\n"
        "assert code == 0\n"
        "assert not {'torch._dynamo', 'torchvision'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], env=clean_env, check=True, timeout=400)


def test_no_garbage_is_looked_for_among_imports(clean_env: dict[str, str], tmp_path: Path) -> None:
    """Not while they are made, which would take half a second, and not later, in a step."""
    (tmp_path / "told.py").write_text(
        "import gc\nimports_are_collected = gc.isenabled()\n"
        "from trainer.workloads.mnist import Mnist\n"
        "class Told(Mnist):\n"
        "    def train_data(self):\n"
        "        print(imports_are_collected, gc.isenabled(), gc.get_freeze_count() > 100_000)\n"
        "        return super().train_data()\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "trainer", "--workload", "told:Told", *QUICK, "--max-steps", "1"],
        env=clean_env, cwd=tmp_path, check=True, timeout=300, capture_output=True, text=True,
    )  # fmt: skip
    assert run.stdout.startswith("False True True\n")
