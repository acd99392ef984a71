"""Other people's frameworks on two ranks without Slurm: every line for a laptop on their pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

from tests.examples.conftest import EXAMPLES, FOLDERS, ON_CPUS, laptop_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.examples.conftest import Example

LOGITS = Path(__file__).with_name("megatron_logits.py")

pytestmark = pytest.mark.slow


def export(checkpoint: Path, target: Path, *options: str) -> None:
    """Make of a checkpoint what other programs read."""
    command = [sys.executable, "-m", "trainer.export", checkpoint, target, *options]
    subprocess.run(command, check=True)


def shapes(weights: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes in a plain file."""
    return {name: tuple(weight.shape) for name, weight in load_file(weights).items()}


def deepspeeds_shards(it: Example, checkpoints: Path, target: Path) -> None:
    """By its zero_to_fp32 and our export: every parameter, by its name and in its shape."""
    to_fp32 = [it.python, checkpoints / "zero_to_fp32.py", checkpoints, target / "fp32"]
    subprocess.run(to_fp32, check=True)
    export(target / "fp32" / "pytorch_model.bin", target / "w.safetensors")
    weights = shapes(target / "w.safetensors")
    assert len(weights) == 21
    assert weights["model.layers.1.mlp.up_proj.weight"] == (128, 64)


def lightnings_weights(it: Example, checkpoints: Path, target: Path) -> None:
    """Of ddp's file and of FSDP2's folder: the parameters by name, and not the optimizer's."""
    export(checkpoints / f"step-{it.last('saved', 2)}.ckpt", target / "w.safetensors")
    weights = shapes(target / "w.safetensors")
    assert {name: shape for name, shape in weights.items() if "weight" in name} == {
        "layers.0.weight": (64, 32),
        "layers.2.weight": (64, 64),
        "layers.4.weight": (2, 64),
    }


def megatrons_logits(it: Example, checkpoints: Path, target: Path) -> None:
    """What two ranks saved, each a part of it, has the same logits in transformers, to 1e-5."""
    checkpoint = checkpoints / f"step-{it.last('saved', 2)}"
    export(checkpoint, target / "hf", "--format", "hf")
    compare = [it.python, LOGITS, checkpoint, target / "hf"]
    env = os.environ | {"PYTHONPATH": str(EXAMPLES / "megatron")}
    subprocess.run(compare, env=env, check=True, timeout=240)


def not_sharded(it: Example, _checkpoints: Path, _target: Path) -> None:
    """Accelerate ignores the plugin on CPUs, and the program says what it got."""
    assert "2 ranks, DistributedType.MULTI_CPU" in it.text(1)


SHOWN = {
    "--deepspeed_config": deepspeeds_shards,
    "--plugin fsdp2": not_sharded,
    "--strategy": lightnings_weights,
    "env TP=2": megatrons_logits,
    "env PP=2": megatrons_logits,
}
"""What a line with these words shows in the end, most by the export of its checkpoints."""
LINES = [(folder, line) for folder in FOLDERS for line in laptop_lines(folder)]
CASES = [
    (folder, line, next((shown for words, shown in SHOWN.items() if words in line), None))
    for folder, line in [*LINES, ("megatron", f"env PP=2 {ON_CPUS}")]
]


@pytest.mark.parametrize("example", ["in place"], indirect=True)
@pytest.mark.parametrize(("folder", "command", "shown"), CASES)
def test_it_goes_on_from_its_own_checkpoint(
    example: Callable[[str], Example],
    folder: str,
    command: str,
    shown: Callable[[Example, Path, Path], None] | None,
    tmp_path: Path,
) -> None:
    """After `kill -9` of a rank the job starts it again; what it saved is what its page says."""
    it = example(folder)
    it.start(command)
    it.goes_on_after_a_kill()
    if shown:
        shown(it, it.run.run_dir / "checkpoints", tmp_path)


def test_all_that_is_shown_has_its_line() -> None:
    """The pages still have the lines that show it."""
    assert {shown for *_, shown in CASES} == {None, *SHOWN.values()}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("example", ["in place"], indirect=True)
def test_lightnings_fsdp_refuses_cpus(example: Callable[[str], Example]) -> None:
    """As its page says."""
    once = {"DDP_MAX_RESTARTS": "0", "DDP_NPROC_PER_NODE": "1"}
    run = example("lightning").start("python train.py --strategy fsdp --steps 200", **once)
    assert run.end() == ("FAILED", 1, 0)
    assert "The strategy `fsdp` requires a GPU accelerator" in run.log


@pytest.mark.parametrize("example", ["in place"], indirect=True)
def test_an_exception_in_one_rank_ends_jax(example: Callable[[str], Example]) -> None:
    """At its exit JAX would wait five minutes for the other ranks, and then abort."""
    command = "bash -c 'mkdir -p $DDP_RUN_DIR/checkpoint.new; exec python train.py --steps 200'"
    run = example("jax").start(command, DDP_MAX_RESTARTS="0")
    assert run.end() == ("FAILED", 1, 0)
    assert "rank 0" in run.log.splitlines()[-1]
    assert "ended with code 1: IsADirectoryError" in run.log.splitlines()[-1]
