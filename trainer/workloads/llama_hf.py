"""A Llama's weights in the layout of Hugging Face's transformers, and back.

A folder with model.safetensors, or several such files and their index, and config.json. Our rotary
pairs are theirs, so all that differs is names; a tied output matrix is not written.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import UserError
from trainer.workloads.llama_presets import PRESETS, LlamaShape, preset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor


CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What a damaged file of JSON ends in."""
_OUTPUT = "output.weight"
_NAMES = {
    "tok_embeddings.": "model.embed_tokens.",
    "norm.": "model.norm.",
    "output.": "lm_head.",
    "layers.": "model.layers.",
}
"""How a name begins here and there."""
_NAMES_IN_LAYER = {
    "attention.wq.": "self_attn.q_proj.",
    "attention.wk.": "self_attn.k_proj.",
    "attention.wv.": "self_attn.v_proj.",
    "attention.wo.": "self_attn.o_proj.",
    "feed_forward.w1.": "mlp.gate_proj.",
    "feed_forward.w2.": "mlp.down_proj.",
    "feed_forward.w3.": "mlp.up_proj.",
    "attention_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
}


def is_hugging_face(folder: Path) -> bool:
    """Whether a folder is in that layout."""
    return (folder / CONFIG).is_file()


def to_hf_name(name: str) -> str:
    """Return the name of a weight there."""
    begin, there = next((b, t) for b, t in _NAMES.items() if name.startswith(b))
    rest = name.removeprefix(begin)
    if begin != "layers.":
        return there + rest
    number, _, own = rest.partition(".")
    part = next(p for p in _NAMES_IN_LAYER if own.startswith(p))
    return f"{there}{number}.{_NAMES_IN_LAYER[part]}{own.removeprefix(part)}"


def to_hf(weights: Mapping[str, Tensor], *, is_tied: bool) -> dict[str, Tensor]:
    """Return the weights under their names there."""
    return {
        to_hf_name(name): weight
        for name, weight in weights.items()
        if not (is_tied and name == _OUTPUT)
    }


def config_of(shape: LlamaShape, sequence_length: int) -> dict[str, Any]:
    """Return the config.json of a model, for older and newer releases of transformers."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "max_position_embeddings": max(sequence_length, shape.max_sequence_length),
        "tie_word_embeddings": shape.is_tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": "float32",
    }


def read_shape(folder: Path) -> LlamaShape:
    """Return the shape that config.json describes. Raises UserError for what is no such Llama."""
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text("utf-8"))
        _check_kind(folder, config)
        rope = config.get("rope_parameters") or config
        num_heads = config["num_attention_heads"]
        return LlamaShape(
            vocab_size=int(config["vocab_size"]),
            dim=int(config["hidden_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=int(num_heads),
            num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
            ffn_dim=int(config["intermediate_size"]),
            rope_theta=float(rope.get("rope_theta", 10_000)),
            norm_eps=float(config["rms_norm_eps"]),
            is_tied=bool(config.get("tie_word_embeddings", False)),
            max_sequence_length=int(config.get("max_position_embeddings", 2048)),
        )
    except _WRONG as error:
        raise _error(folder, f"{type(error).__name__}: {error}") from error


def _check_kind(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse what would load and compute something else."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    facts = {
        "model_type": (config.get("model_type"), "llama"),
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
        "attention_bias": (config.get("attention_bias", False), False),
        "mlp_bias": (config.get("mlp_bias", False), False),
        "rope_type": (rope_type, "default"),
        "head_dim": (head_dim, config["hidden_size"] // config["num_attention_heads"]),
    }
    for name, (found, expected) in facts.items():
        if found != expected:
            raise _error(folder, f"{name} {found} instead of {expected}")


class StoredWeights:
    """The weights in a folder, by our names: each is read when it is asked for, in float32."""

    def __init__(self, folder: Path, shape: LlamaShape) -> None:
        """Find all of them. Raises UserError if one is missing or has another shape."""
        from safetensors import safe_open  # noqa: PLC0415 -- a rank's input is checked without it

        from trainer.workloads.llama import empty_llama  # noqa: PLC0415 -- imports torch

        self._folder, self._open = folder, safe_open
        self._is_tied = shape.is_tied
        self._places: dict[str, str] = {}
        self.shapes = {name: one.shape for name, one in empty_llama(shape, 1).state_dict().items()}
        with self._user_errors():
            self._places = _places(folder)
            for name, expected in self.shapes.items():
                there, file = self._find(name)
                with file:
                    found = file.get_slice(there).get_shape()
                if tuple(found) != tuple(expected):
                    raise _error(folder, f"{there} of shape {tuple(found)}")
            if shape.is_tied:
                self._check_tie()

    def _check_tie(self) -> None:
        """Refuse an output matrix of its own, which transformers takes, whatever config.json says.

        A copy of the embedding is left out: it computes the same.
        """
        there = to_hf_name(_OUTPUT)
        if self._places and there not in self._places:
            return
        with self._open(self._folder / self._places.get(there, WEIGHTS), "pt") as file:
            if there not in file.keys():  # noqa: SIM118 -- it is no mapping
                return
            is_copy = file.get_tensor(there).float().equal(self("tok_embeddings.weight"))
        if not is_copy:
            raise _error(
                self._folder,
                f"tie_word_embeddings with {there} of its own",
                f"set tie_word_embeddings to false in its {CONFIG}, or name another folder",
            )

    def __call__(self, name: str) -> Tensor:
        """Read one. Raises UserError if it cannot be read."""
        with self._user_errors():
            there, file = self._find(name)
            with file:
                weight: Tensor = file.get_tensor(there)
        return weight.float()

    def _find(self, name: str) -> tuple[str, Any]:
        """Return a weight's name there, and its file."""
        source = "tok_embeddings.weight" if self._is_tied and name == _OUTPUT else name
        there = to_hf_name(source)
        return there, self._open(self._folder / self._places.get(there, WEIGHTS), "pt")

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        from safetensors import SafetensorError  # noqa: PLC0415 -- see __init__

        try:
            yield
        except (*_WRONG, SafetensorError) as error:
            raise _error(self._folder, f"{type(error).__name__}: {error}") from error


def _places(folder: Path) -> dict[str, str]:
    """Return which file holds which weight, where there are several."""
    if not (folder / INDEX).exists():
        return {}
    places: dict[str, str] = json.loads((folder / INDEX).read_text("utf-8"))["weight_map"]
    if any("/" in name for name in places.values()):  # a stranger's folder may point anywhere
        raise ValueError(f"{INDEX} names files outside the folder")
    return places


def _error(folder: Path, found: object, remedy: str = "name another folder") -> UserError:
    return UserError(
        f"model in {folder}",
        rule=f"be a Llama of Hugging Face's layout: {CONFIG} and {WEIGHTS}",
        found=found,
        remedy=remedy,
    )


def shape_named(name: str) -> LlamaShape:
    """Return it. Raises UserError for neither a preset's name nor a folder with a Llama."""
    if name and name not in PRESETS and Path(name).is_dir():
        return read_shape(Path(name))
    return preset(name)
