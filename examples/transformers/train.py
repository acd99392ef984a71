"""A language model, built from its configuration, trained by the Trainer of Transformers."""

import argparse
import os

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

SAVE_EVERY = 5

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

checkpoints = os.path.join(os.environ["DDP_RUN_DIR"], "checkpoints")
latest = os.path.join(checkpoints, "latest")  # moved when all of a checkpoint is written


class Checkpoints(TrainerCallback):
    """Says which checkpoint is complete: the newest folder may have lost its writer."""

    def on_train_begin(self, args, state, control, **_) -> None:
        if state.is_world_process_zero and state.global_step:
            print(f"resumed at step {state.global_step}")

    def on_save(self, args, state, control, **_) -> None:
        if state.is_world_process_zero:
            with open(latest + ".new", "w") as file:
                file.write(f"step-{state.global_step}\n")
            os.replace(latest + ".new", latest)
            print(f"saved step {state.global_step}")

    def on_train_end(self, args, state, control, **_) -> None:
        if state.is_world_process_zero:
            print(f"finished at step {state.global_step}")


class Ramps(torch.utils.data.Dataset):
    """Sequences of tokens, each one more than the one before it."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (index + torch.arange(64)) % 256
        return {"input_ids": tokens, "labels": tokens}


shape = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
)
trainer = Trainer(
    model=LlamaForCausalLM(shape),
    args=TrainingArguments(
        output_dir=checkpoints,
        max_steps=args.steps,
        per_device_train_batch_size=4,
        save_steps=SAVE_EVERY,
        save_total_limit=3,
        logging_steps=10,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
        seed=0,
    ),
    train_dataset=Ramps(),
    callbacks=[Checkpoints()],
)
start = None
if os.path.exists(latest):
    with open(latest) as file:
        name = file.read().strip().replace("step", "checkpoint")
    start = os.path.join(checkpoints, name)
trainer.train(resume_from_checkpoint=start)
