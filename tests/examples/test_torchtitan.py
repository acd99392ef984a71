"""examples/torchtitan: what runs without a GPU, what does not, and all of it without CUDA."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.environment import python_with
from tests.examples.conftest import EXAMPLES, FOR_EVER, InPlace
from tests.thorough import parameters
from trainer import export

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.examples.conftest import Example
    from tests.jobs.conftest import Scripts

pytestmark = pytest.mark.slow

FOLDER = EXAMPLES / "torchtitan"
TRAIN = ("python", "-m", "torchtitan.train", "--module", "small_llama", "--config", "small")
ON_CPUS = Path(__file__).with_name("torchtitan_on_cpus.py")
SMALL = "--training.seq_len 64 --training.local_batch_size 1 --checkpoint.interval 2"
NUMBERS = {str(number): number for number in range(100)}
TOKENIZER = {"model": {"type": "WordLevel", "vocab": NUMBERS, "unk_token": "0"}}
TOKENIZER["pre_tokenizer"] = {"type": "Whitespace"}


def start(scripts: Scripts, *command: str, num_ranks: int = 2) -> InPlace:
    """Run a command with the example's packages and configuration."""
    bin_folder = python_with(FOLDER / "requirements-gpu.txt").parent
    env = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(FOLDER)}
    env |= {"DDP_RUN_NAME": "example", "DDP_NPROC_PER_NODE": str(num_ranks)}
    run = InPlace(scripts, "--", *command, **env)
    run.end(timeout_s=240)
    return run


def test_every_rank_reads_the_configuration(scripts: Scripts) -> None:
    """The line of its page, and with an option of torchtitan's behind it."""
    run = start(scripts, *TRAIN, "--comm.mode", "local_tensor", "--training.steps", "7")
    assert run.end() == ("COMPLETED", 0, 0), run.log
    for rank in range(2):
        log = (run.run_dir / "logs" / f"rank-{rank}.log").read_text()
        assert "Local tensor mode enabled - skipping training execution" in log


def test_a_wrong_option_ends_it(scripts: Scripts) -> None:
    """So the configuration above was really read."""
    words = ("--comm.mode", "local_tensor", "--training.stops", "7")
    run = start(scripts, *TRAIN, *words, num_ranks=1)
    assert run.end()[0] == "FAILED"
    assert "training.stops" in run.log


CONTRACT = """
import os
from small_llama import small
from torchtitan.tools.utils import get_local_device
import torch

config = small()
assert config.dump_folder == os.environ["DDP_RUN_DIR"]
torch.distributed.init_process_group("gloo")  # as torchtitan does: by the environment alone
print("ranks", torch.distributed.get_rank(), torch.distributed.get_world_size(), get_local_device())
"""


def test_it_finds_the_ranks(scripts: Scripts) -> None:
    """By torchrun's variables: which rank it is, of how many, and its GPU."""
    file = scripts.directory / "contract.py"
    file.write_text(CONTRACT)
    run = start(scripts, "python", str(file))
    for rank in range(2):
        assert f"ranks {rank} 2 cuda:{rank}" in run.log, run.log


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_does_not_train_on_cpus(scripts: Scripts) -> None:
    """As its page says; once it does, the page has to say so."""
    run = start(scripts, *TRAIN, "--training.disable_cuda_graphs", num_ranks=1)
    assert run.end()[0] == "FAILED"
    assert "RuntimeError: Found no NVIDIA driver" in run.log


@pytest.fixture
def on_cpus(example: Callable[[str], Example], tmp_path: Path) -> Callable[[int], Example]:
    """Starts the training of so many steps, on a text of numbers."""
    (tmp_path / "texts").mkdir()
    text = json.dumps({"text": " ".join(10 * list(NUMBERS))})
    (tmp_path / "texts" / "numbers.jsonl").write_text(f"{text}\n" * 100)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps(TOKENIZER))

    def start(steps: int) -> Example:
        it = example("torchtitan")
        words = " ".join(TRAIN).replace("-m torchtitan.train", str(ON_CPUS))
        command = f"{words} {SMALL} --training.disable_cuda_graphs --training.steps 1"
        here = {"PYTHONPATH": str(tmp_path), "DDP_MAX_IDLE_RESTARTS": "1"}  # it has no `latest`
        it.start(command, steps, **here)
        return it

    return start


@pytest.mark.parametrize("example", ["in place"], indirect=True)
def test_it_goes_on_from_its_own_checkpoint(
    on_cpus: Callable[[int], Example], tmp_path: Path
) -> None:
    """After `kill -9` of a rank; and what it saved is exported as torch itself reads it."""
    it = on_cpus(FOR_EVER)
    run, checkpoints = it.run, it.run.run_dir / "checkpoints"
    run.wait_for_word("Finished saving the checkpoint", 2, timeout_s=180)
    os.kill(run.pid(1), signal.SIGSTOP)
    saved = max(int(path.parent.name[5:]) for path in checkpoints.glob("step-*/.metadata"))
    it.leave(saved + 4)
    os.kill(run.pid(1), signal.SIGKILL)
    assert run.end(timeout_s=240) == ("COMPLETED", 0, 0), run.log
    first, second = it.record()["attempts"]
    assert (first["first_failure"]["rank"], first["first_failure"]["signal"]) == (1, "KILL")
    assert (second["outcome"], second["code"]) == ("finished", 0)
    (begun,) = re.findall(r"Training starts at step (\d+)", it.text(2))
    assert saved < int(begun) <= saved + 4
    last = checkpoints / f"step-{saved + 4}"
    export.main([str(last), str(tmp_path / "w.safetensors")])
    dcp_to_torch_save(last, tmp_path / "all.pt")
    saved_by_it = torch.load(tmp_path / "all.pt", weights_only=False)
    exported = load_file(tmp_path / "w.safetensors")
    assert len(exported) == 57
    for name, weight in exported.items():
        torch.testing.assert_close(weight, saved_by_it[name], rtol=0, atol=0)
    assert run.all_gone()


@pytest.mark.slurm
@pytest.mark.parametrize(
    "example", parameters(("tasks", "a task a node"), {"a task a node"}), indirect=True
)
def test_four_ranks_on_two_nodes(on_cpus: Callable[[int], Example]) -> None:
    """They shard one model, and all report its loss."""
    it = on_cpus(4)
    assert it.run.end(timeout_s=240) == ("COMPLETED", 0, 0), it.run.log
    logs = [path.read_text() for path in it.run.run_dir.glob("logs/rank-*.log")]
    losses = {tuple(re.findall(r"loss: +([\d.]+)", log)) for log in logs}
    assert (len(logs), len(losses), len(losses.pop())) == (4, 1, 4)
    assert (it.run.run_dir / "checkpoints" / "step-4" / ".metadata").exists()
    assert it.run.all_gone()
