"""A Megatron core GPT, as its torch_dist checkpoint holds it, in the layout of Hugging Face's.

Its options are the `args` in common.pt or common_state, by Megatron-LM's names. Two kinds compute
what a model of transformers computes: with rotary positions, RMSNorm, SwiGLU and no biases it is a
Llama; with learned positions, LayerNorm, GELU and biases a GPT-2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rundir.text import counted
from trainer.checkpoint import foreign
from trainer.errors import UserError
from trainer.workloads.llama_hf import config_of
from trainer.workloads.llama_presets import LlamaShape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

COMMON = "common.pt"
_COMMON_STATE = "common_state"
"""The same among the tensors, since 0.17 or later: 0.16.1 has the file, 0.19.2 has this."""

_REQUIRED: dict[str, object] = {
    "num_experts": None,
    "multi_latent_attention": False,
    "qk_layernorm": False,
    "add_qkv_bias": False,
    "use_rope_scaling": False,
    "rotary_interleaved": False,
    "rotary_percent": 1.0,
    "apply_layernorm_1p": False,
    "apply_residual_connection_post_layernorm": False,
    "squared_relu": False,
    "quick_geglu": False,
}
"""Options that must have these values, if they are there: others compute something else."""
_KINDS: dict[str, dict[str, object]] = {
    "rope": {"normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False},
    "learned_absolute": {"normalization": "LayerNorm", "swiglu": False, "add_bias_linear": True},
}
"""What goes with which `position_embedding_type`."""


def read_gpt(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and weights by their names there. Raises UserError for another model."""
    args = _read_args(path)
    _check_kind(path, args)
    weights, _ = foreign.read_weights(path)
    gpt = _Gpt(path=path, args=args, weights=weights)
    convert = gpt.to_llama if args["position_embedding_type"] == "rope" else gpt.to_gpt2
    try:
        config, converted = convert()
    except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise _error(path, f"{type(error).__name__}: {error}") from error
    dtype = next(iter(converted.values())).dtype
    shared = {"bos_token_id": None, "eos_token_id": None, "torch_dtype": f"{dtype}"[6:]}
    return {**config, **shared}, {name: w.contiguous() for name, w in converted.items()}


@dataclass(frozen=True, kw_only=True)
class _Gpt:
    """Shapes: L layers, H heads of queries, K of keys and values, E = head dim, D = hidden size."""

    path: Path
    args: Mapping[str, Any]
    weights: Mapping[str, Tensor]

    def to_llama(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        shape = LlamaShape(
            dim=self.args["hidden_size"],
            num_heads=self._num_heads,
            num_kv_heads=self._num_kv_heads,
            ffn_dim=self.args["ffn_hidden_size"],
            rope_theta=float(self.args.get("rotary_base") or 10_000),
            max_sequence_length=self.args["max_position_embeddings"],
            **self._shared_shape,
        )
        weights = {
            "model.embed_tokens.weight": self._embedding,
            "model.norm.weight": self.weights["decoder.final_layernorm.weight"],
            **self._output,
        }
        for i in range(shape.num_layers):
            q, k, v = self._qkv(i, "weight")
            gate, up = self._gate_up(i)
            weights |= {
                f"model.layers.{i}.{name}.weight": weight
                for name, weight in {
                    "input_layernorm": self._norm(i, _INPUT_NORM, "weight"),
                    "self_attn.q_proj": q,
                    "self_attn.k_proj": k,
                    "self_attn.v_proj": v,
                    "self_attn.o_proj": self._layer(i, "self_attention.linear_proj.weight"),
                    "post_attention_layernorm": self._norm(i, _MLP_NORM, "weight"),
                    "mlp.gate_proj": gate,
                    "mlp.up_proj": up,
                    "mlp.down_proj": self._layer(i, "mlp.linear_fc2.weight"),
                }.items()
            }
        return config_of(shape, 0), weights

    def to_gpt2(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """GPT-2's matrices are the other way round: (in, out)."""
        positions = self.weights["embedding.position_embeddings.weight"]
        shape = self._shared_shape
        # Megatron's fused kernel is the approximation by tanh.
        is_by_tanh = self.args.get("bias_gelu_fusion") or self.args.get("openai_gelu")
        config = {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": shape["vocab_size"],
            "n_positions": len(positions),
            "n_embd": self.args["hidden_size"],
            "n_layer": shape["num_layers"],
            "n_head": self._num_heads,
            "n_inner": self.args["ffn_hidden_size"],
            "activation_function": "gelu_new" if is_by_tanh else "gelu",
            "layer_norm_epsilon": shape["norm_eps"],
            "tie_word_embeddings": shape["is_tied"],
        }
        weights = {"transformer.wte.weight": self._embedding, "transformer.wpe.weight": positions}
        for part in ("weight", "bias"):
            weights[f"transformer.ln_f.{part}"] = self.weights[f"decoder.final_layernorm.{part}"]
            for i in range(shape["num_layers"]):
                matrices = {
                    "attn.c_attn": torch.cat(self._qkv(i, part)),
                    "attn.c_proj": self._layer(i, f"self_attention.linear_proj.{part}"),
                    "mlp.c_fc": self._layer(i, f"mlp.linear_fc1.{part}"),
                    "mlp.c_proj": self._layer(i, f"mlp.linear_fc2.{part}"),
                }
                layer = {name: w.T if part == "weight" else w for name, w in matrices.items()}
                layer["ln_1"] = self._norm(i, _INPUT_NORM, part)
                layer["ln_2"] = self._norm(i, _MLP_NORM, part)
                weights |= {f"transformer.h.{i}.{name}.{part}": w for name, w in layer.items()}
        return config, weights | self._output

    @property
    def _num_heads(self) -> int:
        return int(self.args["num_attention_heads"])

    @property
    def _num_kv_heads(self) -> int:
        is_grouped = self.args.get("group_query_attention", True)
        return int((is_grouped and self.args.get("num_query_groups")) or self._num_heads)

    @property
    def _embedding(self) -> Tensor:
        return self.weights["embedding.word_embeddings.weight"]

    @property
    def _output(self) -> dict[str, Tensor]:
        is_tied = self._shared_shape["is_tied"]
        return {} if is_tied else {"lm_head.weight": self.weights["output_layer.weight"]}

    @property
    def _shared_shape(self) -> dict[str, Any]:
        epsilon = self.args.get("norm_epsilon") or self.args["layernorm_epsilon"]
        return {
            "vocab_size": len(self._embedding),  # padded for the tensor parallel ranks
            "num_layers": self.args["num_layers"],
            "norm_eps": float(epsilon),
            "is_tied": not self.args.get("untie_embeddings_and_output_weights", False),
        }

    def _layer(self, number: int, name: str) -> Tensor:
        """Return a layer's weight: all layers are one tensor, or each has its own."""
        together = self.weights.get(f"decoder.layers.{name}")
        if together is not None:
            return together[number]
        return self.weights[f"decoder.layers.{number}.{name}"]

    def _norm(self, number: int, names: tuple[str, str], part: str) -> Tensor:
        """Return a norm before a matrix, with which Transformer Engine fuses it, or by itself."""
        fused, own = names
        try:
            return self._layer(number, f"{fused}{part}")
        except KeyError:
            return self._layer(number, f"{own}{part}")

    def _qkv(self, number: int, part: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return the three projections: for each head of keys its queries, itself, its values."""
        both = self._layer(number, f"self_attention.linear_qkv.{part}")
        num_queries = self._num_heads // self._num_kv_heads
        groups = both.reshape(self._num_kv_heads, num_queries + 2, -1, *both.shape[1:])
        q, k, v = groups[:, :-2], groups[:, -2], groups[:, -1]
        return q.flatten(0, 2), k.flatten(0, 1), v.flatten(0, 1)

    def _gate_up(self, number: int) -> tuple[Tensor, Tensor]:
        try:
            gate, up = self._layer(number, "mlp.linear_fc1.weight").chunk(2)
        except KeyError:  # of Megatron-FSDP
            gate, up = (self._layer(number, f"mlp.linear_fc1.weight_{part}") for part in "wv")
        return gate, up


_INPUT_NORM = ("self_attention.linear_qkv.layer_norm_", "input_layernorm.")
_MLP_NORM = ("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.")


def _read_args(path: Path) -> dict[str, Any]:
    if (path / COMMON).is_file():
        common = foreign.read_file(path / COMMON)
    else:
        common = foreign.read_object(path, _COMMON_STATE)
    if isinstance(common, list) and len(common) == 1:  # an array of one object
        common = common[0]
    args = common.get("args") if isinstance(common, dict) else None
    args = args if isinstance(args, dict) else getattr(args, "__dict__", {})
    if "position_embedding_type" not in args:
        raise _error(path, f"no args of Megatron-LM's in {COMMON} or {_COMMON_STATE}")
    return dict(args)


def _check_kind(path: Path, args: Mapping[str, Any]) -> None:
    """Refuse what would load and compute something else."""
    position = str(args["position_embedding_type"])
    if position not in _KINDS:
        raise _error(path, f"position_embedding_type {position}")
    for name, expected in {**_REQUIRED, **_KINDS[position]}.items():
        if args.get(name, expected) != expected:
            raise _error(path, f"{name} {args[name]} instead of {expected}")
    head_dim = args["hidden_size"] // args["num_attention_heads"]
    if args.get("kv_channels", head_dim) != head_dim:
        raise _error(path, f"heads of {args['kv_channels']} instead of {head_dim}")
    if position == "learned_absolute" and args.get("group_query_attention"):
        raise _error(path, f"{counted(args['num_query_groups'], 'query group')}, which GPT-2 lacks")


def _error(path: Path, found: object) -> UserError:
    return UserError(
        str(path),
        rule="be a Megatron core GPT that transformers has, a Llama or a GPT-2, with its args",
        found=found,
        remedy="export its weights without --format hf",
    )
