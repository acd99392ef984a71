"""A checkpoint's Llama as a folder that Hugging Face's transformers loads."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import save_file

from trainer import command
from trainer.checkpoint import manifest
from trainer.checkpoint.hugging_face_tokenizer import tokenizer_files
from trainer.checkpoint.llama import read_llama
from trainer.errors import UserError
from trainer.text import counted
from trainer.workloads.llama_hf import CONFIG, WEIGHTS, config_of, to_hf

if TYPE_CHECKING:
    from pathlib import Path


def export_hf(checkpoint: Path, target: Path, tokenizer: Path | None) -> None:
    """Write the folder beside, then rename it. Raises UserError for what is no such checkpoint."""
    llama = read_llama(checkpoint)
    tokenizer_texts = tokenizer_files(tokenizer, llama.model, llama.shape.vocab_size)
    beside = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        weights = to_hf(llama.weights, is_tied=llama.shape.is_tied)
        save_file(weights, beside / WEIGHTS, {"format": "pt", "step": str(llama.step)})
        config = config_of(llama.shape, llama.sequence_length)
        (beside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        command.follow_umask(beside / WEIGHTS)
        for name, text in tokenizer_texts.items():
            (beside / name).write_text(text + "\n", "utf-8")
        for path in beside.iterdir():
            manifest.flush(path)
        beside.rename(target)
    except (OSError, SafetensorError) as error:
        raise UserError(
            str(target), rule="a folder that can be written", found=error, remedy="name another"
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)  # also of one that was interrupted
    size_mib = (target / WEIGHTS).stat().st_size / 2**20
    print(f"{target}: {counted(len(weights), 'tensor')}, {size_mib:.1f} MiB, of {checkpoint}")
    if not tokenizer_texts:
        print(f"{target}: no tokenizer, which a checkpoint does not name: give --tokenizer FILE")
