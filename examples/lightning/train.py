"""A model trained by Lightning: ddp, fsdp, or model_parallel, which is FSDP2, also on CPUs."""

import argparse
import os
import signal
import sys

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

SAVE_EVERY = 5

parser = argparse.ArgumentParser()
parser.add_argument("--strategy", choices=["ddp", "fsdp", "model_parallel"], default="ddp")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

checkpoints = os.path.join(os.environ["DDP_RUN_DIR"], "checkpoints")
latest = os.path.join(checkpoints, "latest")  # moved when all of a checkpoint is written


def move_latest(step: int) -> None:
    with open(latest + ".new", "w") as file:
        file.write(f"step-{step}\n")
    os.replace(latest + ".new", latest)
    print(f"saved step {step}")


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    def configure_model(self) -> None:
        if self.device_mesh is not None:  # model_parallel
            for layer in self.layers:
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, _) -> torch.Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.layers(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Latest(Callback):
    """Says which checkpoint is complete. Lightning saves after the callbacks of a batch."""

    def on_train_start(self, trainer, _) -> None:
        self.saved = trainer.global_step
        if self.saved and trainer.is_global_zero:
            print(f"resumed at step {self.saved}")

    def on_train_batch_start(self, trainer, *_) -> None:
        self._move(trainer)

    def on_train_end(self, trainer, _) -> None:
        self._move(trainer)
        if trainer.is_global_zero and trainer.global_step == args.steps:
            print(f"finished at step {trainer.global_step}")

    def _move(self, trainer) -> None:
        step = trainer.global_step
        if step % SAVE_EVERY or step == self.saved or not trainer.is_global_zero:
            return
        self.saved = step
        move_latest(step)


class StopOnRequest(Callback):
    """On SIGUSR1, sent before the time limit, all ranks save after the same step and end.

    Lightning's own handler, which this replaces, saves in the middle of whatever a rank does:
    if ranks are not in the same step, all of them wait for ever.
    """

    def __init__(self) -> None:
        self.is_requested = False
        signal.signal(signal.SIGUSR1, self._note)

    def _note(self, *_) -> None:
        self.is_requested = True

    def on_train_batch_end(self, trainer, *_) -> None:
        if trainer.strategy.reduce_boolean_decision(self.is_requested, all=False):
            self.is_requested = trainer.should_stop = True
            step = trainer.global_step
            trainer.save_checkpoint(os.path.join(checkpoints, f"step-{step}.ckpt"))
            if trainer.is_global_zero:
                move_latest(step)


torch.manual_seed(0)
inputs = torch.randn(8192, 32)
labels = (inputs[:, :16].sum(1) > inputs[:, 16:].sum(1)).long()
ranks_a_node = int(os.environ["LOCAL_WORLD_SIZE"])
stop = StopOnRequest()
trainer = Trainer(
    max_steps=args.steps,
    devices=ranks_a_node,
    num_nodes=int(os.environ["WORLD_SIZE"]) // ranks_a_node,
    strategy=ModelParallelStrategy() if args.strategy == "model_parallel" else args.strategy,
    callbacks=[
        Latest(),
        stop,
        ModelCheckpoint(
            dirpath=checkpoints,
            filename="step-{step}",
            auto_insert_metric_name=False,
            every_n_train_steps=SAVE_EVERY,
            save_top_k=-1,
        ),
    ],
    logger=False,
    enable_progress_bar=False,
)
start = None
if os.path.exists(latest):
    with open(latest) as file:
        start = os.path.join(checkpoints, file.read().strip() + ".ckpt")
trainer.fit(Model(), DataLoader(TensorDataset(inputs, labels), batch_size=16), ckpt_path=start)
if stop.is_requested:
    sys.exit(75)  # "requeue me", to the launcher
