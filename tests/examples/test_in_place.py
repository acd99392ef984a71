"""Other people's frameworks on two ranks without Slurm: every line for a laptop on their pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import load_file

from tests.examples.conftest import EXAMPLES, FOLDERS, laptop_lines
from tests.thorough import parameters

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


def lightnings_shards(it: Example, checkpoints: Path, target: Path) -> None:
    """A folder of FSDP2's: the model's parameters by their names, and not its optimizer's."""
    export(checkpoints / f"step-{it.last('saved', 2)}.ckpt", target / "w.safetensors")
    weights = shapes(target / "w.safetensors")
    assert {name: shape for name, shape in weights.items() if "weight" in name} == {
        "layers.0.weight": (64, 32),
        "layers.2.weight": (64, 64),
        "layers.4.weight": (2, 64),
    }


def megatrons_logits(it: Example, checkpoints: Path, target: Path) -> None:
    """What two tensor parallel ranks saved has the same logits in transformers, to 1e-5."""
    checkpoint = checkpoints / f"step-{it.last('saved', 2)}"
    export(checkpoint, target / "hf", "--format", "hf")
    compare = [it.python, LOGITS, checkpoint, target / "hf"]
    env = os.environ | {"PYTHONPATH": str(EXAMPLES / "megatron")}
    subprocess.run(compare, env=env, check=True, timeout=240)


EXPORTS = {
    "--deepspeed_config": deepspeeds_shards,
    "--strategy model_parallel": lightnings_shards,
    "env TP=2": megatrons_logits,
}
"""What can be made of the checkpoints that a line with these words leaves."""
CASES = [
    (folder, line, next((export for words, export in EXPORTS.items() if words in line), None))
    for folder in FOLDERS
    for line in laptop_lines(folder)
]
ON_TWO_NODES = [case for case in CASES if re.search("--plugin deepspeed|--strategy ddp", case[1])]
"""Lines that test_on_two_nodes.py runs too, of frameworks with another line here."""


@pytest.mark.parametrize("example", ["in place"], indirect=True)
@pytest.mark.parametrize(("folder", "command", "exported"), parameters(CASES, ON_TWO_NODES))
def test_it_goes_on_from_its_own_checkpoint(
    example: Callable[[str], Example],
    folder: str,
    command: str,
    exported: Callable[[Example, Path, Path], None] | None,
    tmp_path: Path,
) -> None:
    """After `kill -9` of a rank the job starts it again; what it saved is what its page says."""
    it = example(folder)
    it.start(command)
    it.goes_on_after_a_kill()
    if exported:
        exported(it, it.run.run_dir / "checkpoints", tmp_path)


def test_every_export_has_its_line() -> None:
    """The pages still show the lines whose checkpoints are exported."""
    assert {exported for *_, exported in CASES} == {None, *EXPORTS.values()}
