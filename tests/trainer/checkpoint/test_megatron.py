"""python -m trainer.export of Megatron's checkpoints, as a model that transformers can load."""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.trainer.checkpoint.test_foreign import write
from trainer import export
from trainer.command import run

ARGS = {
    "num_layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_attention_heads": 4,
    "kv_channels": 8,
    "max_position_embeddings": 16,
    "norm_epsilon": 1e-4,
}
LLAMA = {
    "position_embedding_type": "rope",
    "rotary_base": 500,
    "normalization": "RMSNorm",
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "group_query_attention": True,
    "num_query_groups": 2,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "LlamaConfig",
        {
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            "rms_norm_eps": 1e-4,
            "max_position_embeddings": 16,
        },
    ),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": 64,
            "n_embd": 32,
            "n_inner": 48,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 16,
            "activation_function": "gelu",
            "layer_norm_epsilon": 1e-4,
        },
    ),
}
GPT2 = {
    "position_embedding_type": "learned_absolute",
    "normalization": "LayerNorm",
    "swiglu": False,
    "add_bias_linear": True,
    "bias_gelu_fusion": False,
    "untie_embeddings_and_output_weights": False,
    "group_query_attention": False,
    "num_query_groups": 1,
}


def fuse(parts: Iterable[torch.Tensor], num_groups: int) -> torch.Tensor:
    """Put queries, keys and values together as Megatron has them: a group after the other."""
    return torch.cat([part.unflatten(0, (num_groups, -1)) for part in parts], dim=1).flatten(0, 1)


def of_llama(layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a layer's weights under Megatron's names, where Transformer Engine's layers wrote."""
    return {
        "self_attention.linear_qkv.layer_norm_weight": layer["input_layernorm.weight"],
        "self_attention.linear_qkv.weight": fuse(
            [layer[f"self_attn.{part}_proj.weight"] for part in "qkv"], 2
        ),
        "self_attention.linear_proj.weight": layer["self_attn.o_proj.weight"],
        "mlp.linear_fc1.layer_norm_weight": layer["post_attention_layernorm.weight"],
        "mlp.linear_fc1.weight": torch.cat(
            [layer[f"mlp.{part}_proj.weight"] for part in ("gate", "up")]
        ),
        "mlp.linear_fc2.weight": layer["mlp.down_proj.weight"],
    }


def of_gpt2(layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same, by Megatron's own layers: its norms stand alone."""
    weights = {}
    layer = {n: w.T if w.dim() == 2 else w for n, w in layer.items()}
    for part in ("weight", "bias"):
        qkv = layer[f"attn.c_attn.{part}"].chunk(3)
        weights |= {
            f"input_layernorm.{part}": layer[f"ln_1.{part}"],
            f"self_attention.linear_qkv.{part}": fuse(qkv, 4),
            f"self_attention.linear_proj.{part}": layer[f"attn.c_proj.{part}"],
            f"pre_mlp_layernorm.{part}": layer[f"ln_2.{part}"],
            f"mlp.linear_fc1.{part}": layer[f"mlp.c_fc.{part}"],
            f"mlp.linear_fc2.{part}": layer[f"mlp.c_proj.{part}"],
        }
    return weights


def megatron_weights(model: Any, *, is_stacked: bool) -> dict[str, torch.Tensor]:
    """Return a model's weights under Megatron's names."""
    state = dict(model.state_dict())
    is_llama = model.config.model_type == "llama"
    start, convert = ("model.layers", of_llama) if is_llama else ("transformer.h", of_gpt2)
    layers = [
        convert(
            {n.removeprefix(f"{start}.{i}."): w for n, w in state.items() if f"{start}.{i}." in n}
        )
        for i in range(2)
    ]
    shared = {
        "model.embed_tokens.weight": "embedding.word_embeddings.weight",
        "model.norm.weight": "decoder.final_layernorm.weight",
        "transformer.wte.weight": "embedding.word_embeddings.weight",
        "transformer.wpe.weight": "embedding.position_embeddings.weight",
        "transformer.ln_f.weight": "decoder.final_layernorm.weight",
        "transformer.ln_f.bias": "decoder.final_layernorm.bias",
    } | ({"lm_head.weight": "output_layer.weight"} if is_llama else {})
    weights = {there: state[name] for name, there in shared.items() if name in state}
    if is_stacked:
        names = {f"decoder.layers.{n}": torch.stack([own[n] for own in layers]) for n in layers[0]}
    else:
        names = {
            f"decoder.layers.{i}.{n}": w for i, own in enumerate(layers) for n, w in own.items()
        }
    return weights | {name: w.contiguous() for name, w in names.items()}


def write_megatron(
    folder: Path,
    weights: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_new: bool = False,
    **args: Any,
) -> Path:
    """Write what Megatron-LM would; its args hold a member of a class of its own.

    `is_new`: as its core 0.19 does, args among the tensors, instead of a file beside them.
    """
    state: dict[str, Any] = weights | {"optimizer.state.exp_avg": torch.ones(4)}
    with monkeypatch.context() as patch:
        module: Any = ModuleType("megatron_enums")
        module.Backend = Enum("Backend", "flash", module=module.__name__)
        patch.setitem(sys.modules, module.__name__, module)
        options = Namespace(**ARGS | args, attention_backend=module.Backend.flash)
        common = {"args": options, "iteration": 3}
        if is_new:
            write(folder, state | {"common_state/shard_0_1": [common]}, is_flat=False)
        else:
            write(folder, state)
            torch.save(common, folder / "common.pt")
    return folder


def logits(model: Any) -> torch.Tensor:
    """Return a model's for some tokens."""
    tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        result: torch.Tensor = model.eval()(tokens).logits
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("is_stacked", "is_new"), [(True, False), (False, True)])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_transformers_computes_what_a_megatron_gpt_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_stacked: bool, is_new: bool
) -> None:
    """The same logits to the bit, whether a tensor holds all layers or each has its own."""
    transformers: Any = pytest.importorskip("transformers", reason="it made the model")
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, CONFIGS[kind][0])(**CONFIGS[kind][1])
    )
    for parameter in model.parameters():  # biases are 0 and norms 1 in a new one
        torch.nn.init.normal_(parameter, std=0.3)
    weights = megatron_weights(model, is_stacked=is_stacked)
    source = write_megatron(
        tmp_path / "iter_3",
        weights,
        monkeypatch,
        is_new=is_new,
        **{"llama": LLAMA, "gpt2": GPT2}[kind],
    )
    assert run(export.main, [str(source), str(tmp_path / "hf"), "--format", "hf"]) == 0
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert torch.equal(logits(exported), logits(model))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_experts": 8}, "num_experts 8 instead of None"),
        ({"normalization": "LayerNorm"}, "normalization LayerNorm instead of RMSNorm"),
        ({"position_embedding_type": "mrope"}, "position_embedding_type mrope"),
        ({"kv_channels": 16}, "heads of 16 instead of 8"),
        ({"num_layers": 2}, "KeyError: 'embedding.word_embeddings.weight'"),
    ],
)
def test_another_model_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., None],
    changed: dict[str, Any],
    words: str,
) -> None:
    """What transformers would compute otherwise, by one line."""
    weights = {"decoder.final_layernorm.weight": torch.ones(32)}
    source = write_megatron(tmp_path / "iter_3", weights, monkeypatch, **LLAMA | changed)
    refused(source, words, "--format", "hf")
    (source / "common.pt").unlink()
    refused(source, "no args of Megatron-LM's in common.pt or common_state", "--format", "hf")


@pytest.mark.parametrize("common", [[], [{}, {}], ["args"]])
def test_a_common_state_without_args_is_refused(
    tmp_path: Path, refused: Callable[..., None], common: list[Any]
) -> None:
    """Whatever it holds instead of one dictionary with them."""
    state = {"decoder.final_layernorm.weight": torch.ones(32), "common_state/shard_0_1": common}
    source = write(tmp_path / "iter_3", state, is_flat=False)
    refused(source, "no args of Megatron-LM's in common.pt or common_state", "--format", "hf")
