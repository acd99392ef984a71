"""Other people's frameworks under the launcher: every line for a laptop on the examples' pages."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import load_file

from tests.examples.conftest import EXAMPLES, FEW, LAYOUTS, laptop_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.examples.conftest import Example

STARTED_OTHERWISE = {"mpi", "ray"}
"""Another program starts their ranks: test_mpi.py, test_ray.py."""
FOLDERS = sorted(
    {path.parent.name for path in EXAMPLES.glob("*/requirements.txt")} - STARTED_OTHERWISE
)
CASES = [
    (layout, folder, line)
    for folder in FOLDERS
    for number, line in enumerate(laptop_lines(folder))
    for layout in LAYOUTS
    if number == 0 or layout == "in place"
]
"""The first line of a page in each layout, what else it shows in place: each takes a minute."""

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.mark.parametrize(("example", "folder", "command"), CASES, indirect=["example"])
def test_it_goes_on_from_its_own_checkpoint(
    example: Callable[[str], Example], folder: str, command: str
) -> None:
    """After `kill -9` of a rank the job starts it again, and it resumes at a step above 0."""
    it = example(folder)
    it.start(command)
    it.goes_on_after_a_kill()


@pytest.mark.parametrize("example", ["tasks"], indirect=True)
def test_lightning_is_requeued_before_the_time_limit(example: Callable[[str], Example]) -> None:
    """On SIGUSR1 its ranks save after one step and end with 75; the job's next start goes on."""
    it = example("lightning")
    run = it.start(laptop_lines("lightning")[0])
    run.wait_for_word("saved step ")
    run.cluster.run(["scancel", "--batch", "--signal=USR1", str(run.id)])
    run.wait_for("end")
    stopped = it.last("saved", 1)
    it.leave(stopped + FEW)
    assert run.end(timeout_s=240) == ("COMPLETED", 0, 0), run.log
    first, second = it.record()["attempts"]
    assert (first["job_id"], second["job_id"]) == (str(run.id),) * 2
    assert (first["code"], first["decision"]["decision"]) == (75, "requeue")
    assert (second["code"], second["restart_count"]) == (0, 1)
    assert it.last("resumed at", 2) == stopped
    assert it.last("finished at", 2) == stopped + FEW
    assert run.all_gone()


def exported(checkpoint: Path, target: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes of what our export makes of a checkpoint."""
    subprocess.run([sys.executable, "-m", "trainer.export", checkpoint, target], check=True)
    return {name: tuple(weight.shape) for name, weight in load_file(target).items()}


@pytest.mark.parametrize("example", ["in place"], indirect=True)
def test_deepspeeds_sharded_weights_become_a_plain_file(
    example: Callable[[str], Example], tmp_path: Path
) -> None:
    """By its zero_to_fp32 and our export: every parameter, by its name and in its shape."""
    it = example("deepspeed")
    run = it.start(laptop_lines("deepspeed")[0], steps=5)
    assert run.end() == ("COMPLETED", 0, 0), run.log
    folder = run.run_dir / "checkpoints"
    subprocess.run([it.python, folder / "zero_to_fp32.py", folder, tmp_path / "fp32"], check=True)
    weights = exported(tmp_path / "fp32" / "pytorch_model.bin", tmp_path / "w.safetensors")
    assert len(weights) == 21
    assert weights["model.layers.1.mlp.up_proj.weight"] == (128, 64)


@pytest.mark.parametrize("example", ["in place"], indirect=True)
def test_lightnings_sharded_weights_become_a_plain_file(
    example: Callable[[str], Example], tmp_path: Path
) -> None:
    """A folder of FSDP2's: the model's parameters by their names, and not its optimizer's."""
    it = example("lightning")
    run = it.start(laptop_lines("lightning")[1], steps=5)
    assert run.end() == ("COMPLETED", 0, 0), run.log
    weights = exported(run.run_dir / "checkpoints" / "step-5.ckpt", tmp_path / "w.safetensors")
    assert {name: shape for name, shape in weights.items() if "weight" in name} == {
        "layers.0.weight": (64, 32),
        "layers.2.weight": (64, 64),
        "layers.4.weight": (2, 64),
    }
