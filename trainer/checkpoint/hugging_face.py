"""A checkpoint's Llama, or Megatron GPT, as a folder that Hugging Face's transformers loads."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from rundir.text import counted
from trainer import command
from trainer.checkpoint import loading, manifest
from trainer.checkpoint.foreign import is_foreign
from trainer.checkpoint.layout import STATE_FILE
from trainer.checkpoint.megatron import read_gpt
from trainer.data.tokenizer import EOS_NAMES
from trainer.errors import UserError
from trainer.options import from_table
from trainer.workloads.llama_hf import CONFIG, WEIGHTS, config_of, shape_named, to_hf
from trainer.workloads.tokens import BYTES_EOS, BYTES_VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from trainer.workloads.llama_presets import LlamaShape


@dataclass(frozen=True, kw_only=True)
class StoredLlama:
    """All that it takes to build it again."""

    shape: LlamaShape
    sequence_length: int
    weights: Mapping[str, Tensor]
    step: int
    model: str
    """As --model had it: a preset's name, a folder, or nothing for the default."""


def read_llama(checkpoint: Path) -> StoredLlama:
    """Read it, verified. Raises UserError if it is damaged, or of something else."""
    stored = loading.open_verified(checkpoint)
    identity = stored.state.identity
    if identity.get("workload") != "lm":
        raise UserError(
            str(checkpoint),
            rule="be a checkpoint of --workload lm",
            found=identity.get("workload"),
            remedy="name another one",
        )
    names = ("workload", "model", "sequence_length")
    known = {name: identity[name] for name in names if identity.get(name) is not None}
    config = from_table(known, checkpoint / STATE_FILE)
    shape = shape_named(config.model)
    return StoredLlama(
        shape=shape,
        sequence_length=config.sequence_length or shape.max_sequence_length,
        weights=loading.read_weights(stored),
        step=stored.state.position.step,
        model=config.model,
    )


def export_hf(checkpoint: Path, target: Path, tokenizer: Path | None) -> None:
    """Write the folder beside, then rename it. Raises UserError for what is no such checkpoint."""
    about = {"format": "pt"}
    if is_foreign(checkpoint):
        config, weights = read_gpt(checkpoint)
        texts = tokenizer_files(tokenizer, "", config["vocab_size"]) if tokenizer else {}
    else:
        llama = read_llama(checkpoint)
        config = config_of(llama.shape, llama.sequence_length)
        weights = to_hf(llama.weights, is_tied=llama.shape.is_tied)
        about["step"] = str(llama.step)
        texts = tokenizer_files(tokenizer, llama.model, llama.shape.vocab_size)
    beside = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        save_file(weights, beside / WEIGHTS, about)
        (beside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        command.follow_umask(beside / WEIGHTS)
        for name, text in texts.items():
            (beside / name).write_text(text + "\n", "utf-8")
        for path in beside.iterdir():
            manifest.flush(path)
        beside.rename(target)
    except (OSError, SafetensorError) as error:
        raise UserError(
            str(target), rule="be a folder that can be written", found=error, remedy="name another"
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)  # also of one that was interrupted
    size_mib = (target / WEIGHTS).stat().st_size / 2**20
    print(f"{target}: {counted(len(weights), 'tensor')}, {size_mib:.1f} MiB, of {checkpoint}")
    if not texts:
        print(f"{target}: no tokenizer, which a checkpoint does not name: give --tokenizer FILE")


TOKENIZER, ABOUT = "tokenizer.json", "tokenizer_config.json"
_EOS = "<|endoftext|>"


def tokenizer_files(named: Path | None, model: str, vocab_size: int) -> dict[str, str]:
    """Return the texts of the files, by name; none where the tokenizer is not known.

    It is the `named` one, or that of the folder `model`, or bytes for a model of bytes. Raises
    UserError for one that cannot be read, or has more tokens than the model.
    """
    folder = Path(model) if model else None
    if named is None and folder is not None and (folder / TOKENIZER).is_file():
        named = folder / TOKENIZER
    if named is None:
        if vocab_size != BYTES_VOCAB_SIZE:
            return {}
        return {TOKENIZER: json.dumps(_of_bytes(), indent=1), ABOUT: _about(_EOS)}
    text, ids = _read(named)
    if max(ids.values()) >= vocab_size:
        raise UserError(
            f"--tokenizer {named}",
            rule=f"be the one it was trained with, of at most {counted(vocab_size, 'token')}",
            found=f"token {max(ids.values())}",
            remedy="name that one",
        )
    beside = named.with_name(ABOUT)
    about = beside.read_text("utf-8") if beside.is_file() else None
    eos = next((name for name in EOS_NAMES if name in ids), None)
    return {TOKENIZER: text, ABOUT: about or _about(eos)}


def _read(path: Path) -> tuple[str, Mapping[str, int]]:
    """Return a tokenizer's text, and the number of each token."""
    try:
        text = path.read_text("utf-8")
        content = json.loads(text)
        vocab = content["model"]["vocab"]
        if isinstance(vocab, list):  # of unigrams: pairs of a token and its score
            vocab = {token: number for number, (token, _) in enumerate(vocab)}
        added = {token["content"]: token["id"] for token in content.get("added_tokens", ())}
        ids = {**vocab, **added}
        max(ids.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"--tokenizer {path}",
            rule="be a tokenizer.json of Hugging Face's",
            found=f"{type(error).__name__}: {error}",
            remedy="correct the path",
        ) from error
    return text, ids


def _about(eos: str | None) -> str:
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return json.dumps(about | ({"eos_token": eos} if eos else {}), indent=1)


def _of_bytes() -> dict[str, Any]:
    """Return a tokenizer whose tokens are the bytes of UTF-8, each under its own number."""
    step: dict[str, Any] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    vocab = {letter: byte for byte, letter in enumerate(_letters()) if byte != BYTES_EOS}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": BYTES_EOS, "content": _EOS, **special, "special": True}],
        "normalizer": None,
        "pre_tokenizer": step,
        "post_processor": None,
        "decoder": step,
        "model": {"type": "BPE", "vocab": {**vocab, _EOS: BYTES_EOS}, "merges": []},
    }


def _letters() -> list[str]:
    """Return the letter by which a tokenizer of bytes writes each: GPT-2's table.

    What can be printed stands for itself; the others follow from the 256th letter on.
    """
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]
