"""A small network trained by Ray Train, on the cluster that cluster.sh has made."""

import argparse
import os
import tempfile
import time
from pathlib import Path

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model

SAVE_EVERY = 10


def train_worker(config):
    """Train in one of Ray's workers."""
    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    torch.manual_seed(0)  # the same weights on every rank
    network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    step = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            saved = torch.load(Path(directory, "state.pt"))
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        print(f"resumed at step {step}")
    model = prepare_model(network)
    device = next(model.parameters()).device
    while step < config["steps"]:
        # Samples of this step and rank: after a restart the same ones come again.
        generator = torch.Generator().manual_seed(step * size + rank)
        x = torch.randn(64, 8, generator=generator).to(device)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % SAVE_EVERY and step != config["steps"]:
            continue
        with tempfile.TemporaryDirectory() as directory:
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step}, Path(directory, "state.pt"))
            checkpoint = train.Checkpoint.from_directory(directory) if rank == 0 else None
            train.report({"step": step, "loss": loss.item()}, checkpoint=checkpoint)
        if rank == 0:
            print(f"saved step {step}, loss {loss.item():.3f}")
    time.sleep(3)  # Ray passes on what a worker prints a moment later, and not once it has ended


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--gpu", action="store_true")
args = parser.parse_args()
ray.init()  # at RAY_ADDRESS
TorchTrainer(
    train_worker,
    train_loop_config={"steps": args.steps},
    scaling_config=train.ScalingConfig(num_workers=args.workers, use_gpu=args.gpu),
    # By this name Ray finds its last checkpoint at the next start.
    run_config=train.RunConfig(name="ray", storage_path=os.environ["DDP_RUN_DIR"]),
).fit()
print(f"finished at step {args.steps}")
