"""A model trained by Accelerate: FSDP2, or ZeRO-2 by its DeepSpeed plugin."""

import argparse
import os

import torch
from accelerate import (
    Accelerator,
    DeepSpeedPlugin,
    FullyShardedDataParallelPlugin,
    InitProcessGroupKwargs,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAVE_EVERY = 5
BATCH = 16

parser = argparse.ArgumentParser()
parser.add_argument("--plugin", choices=["fsdp2", "deepspeed"], default="fsdp2")
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

has_gpu = torch.cuda.is_available()
if args.plugin == "fsdp2":
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="size_based_wrap",
        min_num_params=1000,
        state_dict_type="SHARDED_STATE_DICT",
    )
    accelerator = Accelerator(cpu=not has_gpu, fsdp_plugin=plugin)
else:
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }
    # With cpu=True Accelerate would ignore the plugin; without it, it knows no backend for CPUs.
    backend = InitProcessGroupKwargs(backend="nccl" if has_gpu else "gloo")
    accelerator = Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config), kwargs_handlers=[backend]
    )
report = accelerator.on_main_process(print)
report(f"{accelerator.num_processes} ranks, {accelerator.distributed_type}")

torch.manual_seed(0)
inputs = torch.randn(8192, 32)
labels = (inputs[:, :16].sum(1) > inputs[:, 16:].sum(1)).long()
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=BATCH)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

checkpoints = os.path.join(os.environ["DDP_RUN_DIR"], "checkpoints")
latest = os.path.join(checkpoints, "latest")  # moved when all of a checkpoint is written


def save(step: int) -> None:
    accelerator.save_state(os.path.join(checkpoints, f"step-{step}"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        with open(latest + ".new", "w") as file:
            file.write(f"step-{step}\n")
        os.replace(latest + ".new", latest)
        print(f"saved step {step}, loss {loss.item():.3f}")


step = 0
if os.path.exists(latest):
    with open(latest) as file:
        name = file.read().strip()
    accelerator.load_state(os.path.join(checkpoints, name))
    step = int(name.removeprefix("step-"))
    report(f"resumed at step {step}")

while step < args.steps:
    for features, wanted in accelerator.skip_first_batches(loader, step % len(loader)):
        loss = nn.functional.cross_entropy(model(features), wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % SAVE_EVERY == 0 or step == args.steps:
            save(step)
        if step == args.steps:
            break

report(f"finished at step {step}")
accelerator.end_training()
