"""A Hugging Face model trained by DeepSpeed's ZeRO-3, its state offloaded to the CPU."""

import argparse
import os

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

SAVE_EVERY = 5

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
deepspeed.add_config_arguments(parser)
args = parser.parse_args()

torch.manual_seed(0)
shape = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
)
model = LlamaForCausalLM(shape)
engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
rank = torch.distributed.get_rank()
checkpoints = os.path.join(os.environ["DDP_RUN_DIR"], "checkpoints")

path, _ = engine.load_checkpoint(checkpoints)  # the one that the file `latest` names, if any
if path and rank == 0:
    print(f"resumed at step {engine.global_steps}")

while engine.global_steps < args.steps:
    # Tokens of this step and rank: after a restart the same ones come again.
    generator = torch.Generator().manual_seed(engine.global_steps * 1000 + rank)
    start = torch.randint(0, 256, (4, 1), generator=generator)
    tokens = ((start + torch.arange(64)) % 256).to(engine.device)
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
    if engine.global_steps % SAVE_EVERY == 0 or engine.global_steps == args.steps:
        engine.save_checkpoint(checkpoints, tag=f"step-{engine.global_steps}")
        if rank == 0:
            print(f"saved step {engine.global_steps}, loss {loss.item():.3f}")

if rank == 0:
    print(f"finished at step {engine.global_steps}")
torch.distributed.barrier()  # a rank that leaves earlier would cost the others their connections
torch.distributed.destroy_process_group()
