"""A DistributedDataParallel loop for torchrun, whose nodes may come and go."""

import argparse
import datetime as dt
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

GLOBAL_BATCH_SIZE, SAVE_EVERY = 64, 5

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
args = parser.parse_args()

# torchrun starts all ranks again when their number changes: what is not in a checkpoint is lost.
has_gpus = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpus else torch.device("cpu")
if has_gpus:
    torch.cuda.set_device(device)
# A rank whose peer lost its power notices by this timeout alone.
dist.init_process_group("nccl" if has_gpus else "gloo", timeout=dt.timedelta(seconds=60))
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
model = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
checkpoints = os.path.join(os.environ.get("DDP_RUN_DIR", "out"), "checkpoints")
os.makedirs(checkpoints, exist_ok=True)
latest, path = os.path.join(checkpoints, "latest"), os.path.join(checkpoints, "latest.pt")

step = 0
if os.path.exists(path):
    state = torch.load(path, map_location=device, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    if rank == 0:
        print(f"resumed at step {step} on {world_size} ranks", flush=True)

while step < args.steps:
    step += 1
    # A batch is global: all ranks make the same one, and each takes its share.
    x = torch.randn(GLOBAL_BATCH_SIZE, 16, generator=torch.Generator().manual_seed(step))
    share = x[rank::world_size].to(device)
    error = (model(share) - share.sum(dim=1, keepdim=True)).square().sum()
    loss = error * world_size / GLOBAL_BATCH_SIZE  # whose mean over ranks is the batch's
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (step % SAVE_EVERY == 0 or step == args.steps):
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "step": step}, f"{path}.new")
        os.replace(f"{path}.new", path)  # complete, or not there
        with open(f"{latest}.new", "w") as file:
            file.write(f"step-{step}\n")  # for the launcher: this run gets on
        os.replace(f"{latest}.new", latest)
        print(f"saved step {step} on {world_size} ranks, loss {loss.item():.3f}", flush=True)
    time.sleep(args.pause)

if rank == 0:
    print(f"finished at step {step}", flush=True)
dist.destroy_process_group()
