"""The shape that `--model` means: a preset, or what a config.json of Hugging Face's describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainer.workloads.llama_hf import read_shape
from trainer.workloads.llama_presets import PRESETS, preset

if TYPE_CHECKING:
    from trainer.workloads.llama_presets import LlamaShape


def shape_named(name: str) -> LlamaShape:
    """Return it. Raises UserError for neither a preset's name nor a folder with a Llama."""
    if name and name not in PRESETS and Path(name).is_dir():
        return read_shape(Path(name))
    return preset(name)
