"""A small network trained by ranks that find each other, and average gradients, by MPI."""

import argparse
import os
from pathlib import Path

import torch
from mpi4py import MPI

SAVE_EVERY = 10
CHECKPOINT = Path(os.environ["DDP_RUN_DIR"], "checkpoint.pt")

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
print(f"MPI rank {rank} of {size}, RANK {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")

torch.manual_seed(0)  # the same weights on every rank
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
step = 0
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    if rank == 0:
        print(f"resumed at step {step}")

while step < args.steps:
    # Samples of this step and rank: after a restart the same ones come again.
    generator = torch.Generator().manual_seed(step * size + rank)
    x = torch.randn(64, 8, generator=generator)
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin())
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        gradient = parameter.grad.numpy()
        comm.Allreduce(MPI.IN_PLACE, gradient)
        gradient /= size
    optimizer.step()
    step += 1
    if rank == 0 and (step % SAVE_EVERY == 0 or step == args.steps):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, CHECKPOINT.with_suffix(".new"))
        CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)  # whole or not at all
        print(f"saved step {step}, loss {loss.item():.3f}")

if rank == 0:
    print(f"finished at step {step}")
