"""A small network trained by JAX: a process for each rank, a mesh over the devices of all."""

import argparse
import os
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

SAVE_EVERY = 10
CHECKPOINT = Path(os.environ["DDP_RUN_DIR"], "checkpoint.npz")

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()


def end_at_once(*error):
    """End after an exception: JAX would first wait five minutes for the others, and then abort."""
    traceback.print_exception(*error)
    os._exit(1)


sys.excepthook = end_at_once
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# Under one task a node MASTER_PORT itself is taken: torchrun keeps its store there.
port = int(os.environ["MASTER_PORT"]) + (os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True")
jax.distributed.initialize(
    coordinator_address=f"{os.environ['MASTER_ADDR']}:{port}",
    num_processes=size,
    process_id=rank,
    local_device_ids=int(os.environ["LOCAL_RANK"]),
)
mesh = jax.make_mesh((jax.device_count(),), ("data",))
whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))


def loss_of(params, x):
    """Return the mean squared error."""
    predicted = jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]
    return jnp.mean((predicted - jnp.sin(x.sum(1, keepdims=True))) ** 2)


@jax.jit
def train_step(params, x):
    """Return the next parameters and the loss; the compiler adds the all-reduce."""
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), loss


rng = np.random.default_rng(0)  # the same weights in every process
saved = {"w1": rng.normal(0, 0.3, (8, 32)), "b1": np.zeros(32), "w2": rng.normal(0, 0.1, (32, 1))}
step = 0
if CHECKPOINT.exists():
    saved = dict(np.load(CHECKPOINT))
    step = int(saved.pop("step"))
    if rank == 0:
        print(f"resumed at step {step}")
params = {
    name: jax.make_array_from_process_local_data(whole, value.astype(np.float32))
    for name, value in saved.items()
}

while step < args.steps:
    # Samples of this step and rank: after a restart the same ones come again.
    x = np.random.default_rng(step * size + rank).normal(size=(64, 8)).astype(np.float32)
    params, loss = train_step(params, jax.make_array_from_process_local_data(split, x))
    step += 1
    if step % SAVE_EVERY == 0 or step == args.steps:
        loss = float(loss)  # waits for the step
        if rank == 0:
            with open(CHECKPOINT.with_suffix(".new"), "wb") as file:
                np.savez(file, step=step, **params)
            CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)  # whole or not at all
            print(f"saved step {step}, loss {loss:.3f}")

if rank == 0:
    print(f"finished at step {step}")
jax.distributed.shutdown()
