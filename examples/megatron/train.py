"""Trains a GPT of Megatron core: TP, PP and CP are the environment's, other ranks data parallel."""

import argparse
import os
import shutil
import sys
from pathlib import Path

import torch
from gpt import CP, DTYPE, HAVE_TE, ON_GPU, PP, SHAPE, TP, build, save
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.optimizer import (
    get_param_id_to_sharded_param_map,
    optim_state_to_sharding_state,
)
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module

SAVE_EVERY, MICRO_BATCH_SIZE, LR = 5, 4, 1e-3
LENGTH = SHAPE.max_position_embeddings


def mock_batch(step: int, number: int) -> dict[str, torch.Tensor]:
    """Return a microbatch; after a restart the same ones come again."""
    seed = (step * 1000 + number) * 1000 + mpu.get_data_parallel_rank()
    start = torch.randint(256, (MICRO_BATCH_SIZE, 1), generator=torch.Generator().manual_seed(seed))
    row = (start + torch.arange(LENGTH + 1)) % 256
    positions = torch.arange(LENGTH).expand(MICRO_BATCH_SIZE, -1)
    batch = {"input_ids": row[:, :-1], "labels": row[:, 1:], "position_ids": positions}
    device = "cuda" if ON_GPU else "cpu"
    return {name: on_this_cp_rank(x).to(device) for name, x in batch.items()}


def on_this_cp_rank(rows: torch.Tensor) -> torch.Tensor:
    """Return an early and a late part of the rows: causal attention works more on late ones."""
    rank, parts = mpu.get_context_parallel_rank(), rows.chunk(2 * CP, dim=1)
    return torch.cat([parts[rank], parts[-1 - rank]], dim=1)


class OnGpu:
    """Megatron's own: its schedules, gradient buffers and optimizer, in bf16.

    Its distributed optimizer needs Transformer Engine's Adam: with torch's it saves what it cannot
    load (KeyError: 'step', in 0.16 and 0.19).
    """

    def __init__(self, gpt: torch.nn.Module) -> None:
        model_parallel_cuda_manual_seed(1)
        self.gpt, config = gpt, gpt.config
        ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=HAVE_TE)
        self.model = DistributedDataParallel(config, ddp_config, Float16Module(config, gpt.cuda()))
        optimizer_config = OptimizerConfig(
            optimizer="adam",
            lr=LR,
            bf16=True,
            params_dtype=DTYPE,
            use_distributed_optimizer=HAVE_TE,
        )
        self.optimizer = get_megatron_optimizer(optimizer_config, [self.model])
        config.finalize_model_grads_func = finalize_model_grads
        config.grad_scale_func = self.optimizer.scale_loss

    def step(self, step: int) -> float:
        """Train on twice as many microbatches as there are stages; return the last one's loss."""

        def forward(batches, model):
            return model(attention_mask=None, **next(batches)), mean

        def mean(losses):
            loss = losses.float().mean()
            return loss, {"loss": loss.detach().clone()}  # Megatron divides the first in place

        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        num_microbatches = 2 * PP
        losses = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=(mock_batch(step, number) for number in range(num_microbatches)),
            model=[self.model],
            num_microbatches=num_microbatches,
            seq_length=LENGTH,
            micro_batch_size=MICRO_BATCH_SIZE,
            forward_only=False,
        )
        self.optimizer.step()
        last = losses[-1]["loss"] if losses else torch.zeros((), device="cuda")
        torch.distributed.all_reduce(last, group=mpu.get_pipeline_model_parallel_group())
        return last.item()  # of the last stage, which alone has one

    def state(self, *, is_loading: bool) -> dict:
        """Return what a checkpoint has."""
        model = self.gpt.sharded_state_dict()
        metadata = {"distrib_optim_sharding_type": "fully_reshardable"}
        optimizer = self.optimizer.sharded_state_dict(model, is_loading, metadata=metadata)
        return {"model": model, "optimizer": optimizer}


class OnCpu:
    """Plain data parallelism: Megatron's buffers, optimizer and schedules are on a GPU."""

    def __init__(self, gpt: torch.nn.Module) -> None:
        self.gpt = gpt
        self.optimizer = torch.optim.AdamW(gpt.parameters(), LR)

    def step(self, step: int) -> float:
        """Train on a batch; return its loss."""
        self.optimizer.zero_grad()
        loss = self.gpt(attention_mask=None, **mock_batch(step, 0)).mean()
        loss.backward()
        group = mpu.get_data_parallel_group()
        for parameter in self.gpt.parameters():
            torch.distributed.all_reduce(parameter.grad, group=group)
            parameter.grad /= group.size()
        self.optimizer.step()
        return loss.item()

    def state(self, *, is_loading: bool) -> dict:
        """Return what a checkpoint has."""
        if is_loading and not self.optimizer.state:  # what is loaded needs somewhere to go
            for parameter in self.gpt.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.param_groups[0]["lr"] = 0.0
            self.optimizer.step()
        model, optimizer = self.gpt.sharded_state_dict(), self.optimizer.state_dict()
        steps = {number: own["step"] for number, own in optimizer["state"].items()}
        ids = get_param_id_to_sharded_param_map(model, self.gpt.parameters())
        optim_state_to_sharding_state(optimizer, ids, exclude_keys=("step",))
        for number, num_steps in steps.items():
            optimizer["state"][number]["step"] = num_steps
        return {"model": model, "optimizer": optimizer}


def resume(trained: OnGpu | OnCpu, folder: Path) -> int:
    """Load the checkpoint that the file `latest` names, if any; return its step."""
    latest = folder / "latest"
    if not latest.exists():
        return 0
    wanted = trained.state(is_loading=True) | {"step": 0}
    state = dist_checkpointing.load(wanted, str(folder / latest.read_text().strip()))
    trained.gpt.load_state_dict(state["model"])
    trained.optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save_as(step: int, trained: OnGpu | OnCpu, folder: Path, *, is_main: bool) -> None:
    """Save step-N, let `latest` name it when it is complete, and remove the one before."""
    new = folder / f"step-{step}"
    if is_main:  # a start that was killed may have left half of it
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
    torch.distributed.barrier()
    save(trained.state(is_loading=False) | {"step": step}, str(new))
    torch.distributed.barrier()
    if is_main:
        beside = folder / ".latest"
        beside.write_text(f"{new.name}\n")
        beside.replace(folder / "latest")
        for other in folder.glob("step-*"):
            if other != new:
                shutil.rmtree(other)


def main() -> None:
    """Train until `--steps`, from the newest checkpoint on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    num_steps = parser.parse_args().steps
    if not ON_GPU and (PP, CP) != (1, 1):
        print(f"PP and CP must be 1 without CUDA; found PP={PP} CP={CP}; set TP alone, or use GPUs")
        sys.exit(64)
    if CP > 1 and not HAVE_TE:
        print(f"CP must be 1 without Transformer Engine; found {CP}; install it, or set CP=1")
        sys.exit(64)
    if ON_GPU:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl" if ON_GPU else "gloo")
    mpu.initialize_model_parallel(TP, PP, context_parallel_size=CP)
    is_main = torch.distributed.get_rank() == 0
    trained = OnGpu(build()) if ON_GPU else OnCpu(build())
    folder = Path(os.environ["DDP_RUN_DIR"]) / "checkpoints"
    step = resume(trained, folder)
    if is_main and step:
        print(f"resumed at step {step}")
    while step < num_steps:
        loss = trained.step(step)
        step += 1
        if step % SAVE_EVERY == 0 or step == num_steps:
            save_as(step, trained, folder, is_main=is_main)
            if is_main:
                print(f"saved step {step}, loss {loss:.3f}")
    if is_main:
        print(f"finished at step {step}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":  # Megatron starts processes of its own that import this file
    main()
