"""Lightning's own requeue, which examples/lightning does not use, beside the launcher's."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.examples.conftest import Example

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

PROGRAM = """
import os, sys, time
import torch
from lightning import Callback, LightningModule, Trainer

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def training_step(self, batch, _):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Waits(Callback):
    def on_train_start(self, trainer, _):
        print("begins at step", trainer.global_step)
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 8 and os.environ["DDP_ATTEMPT"] == "1":
            trainer.strategy.barrier()  # the handler saves in whatever step a rank is
            print("waits for the signal")
            while True:
                time.sleep(0.1)

trainer = Trainer(
    devices=1, num_nodes=2, max_steps=int(sys.argv[2]), callbacks=[Waits()], logger=False,
    enable_progress_bar=False, default_root_dir=os.environ["DDP_RUN_DIR"],
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.rand(1000, 4)))
print("ends at step", trainer.global_step)
"""


@pytest.mark.parametrize("example", ["two tasks"], indirect=True)
def test_lightning_saves_and_requeues_itself(
    example: Callable[[str], Example], tmp_path: Path
) -> None:
    """On SIGUSR1 to the job; its ranks are killed after the grace, and the next start goes on."""
    (tmp_path / "own.py").write_text(PROGRAM)
    run = example("lightning").start("python own.py --steps 20", steps=20, DDP_GRACE="3")
    run.wait_for_word("waits for the signal", 2, timeout_s=120)
    run.cluster.run(["scancel", "--batch", "--signal=USR1", str(run.id)])
    assert run.end(timeout_s=240) == ("COMPLETED", 0, 0), run.log
    assert f"Slurm has requeued job {run.id}" in run.log
    why = [sys.executable, "-m", "monitor", "why", run.run_dir]
    assert "time limit" in subprocess.run(why, capture_output=True, text=True, check=True).stdout
    logs = [path.read_text() for path in run.run_dir.glob("logs/rank-*.log")]
    for log in logs:
        assert log.index("begins at step 0") < log.index("begins at step 8")
        assert "ends at step 20" in log
    assert len(logs) == 2
    assert run.all_gone()
