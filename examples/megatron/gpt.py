"""The GPT of this example and its checkpoint, by Megatron core; what needs a GPU is replaced."""

import argparse
import os

import torch
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.strategies import torch as torch_dist
from megatron.core.models.gpt.gpt_layer_specs import (
    HAVE_TE,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.distributed import checkpoint
from torch.nn.functional import scaled_dot_product_attention

ON_GPU = torch.cuda.is_available()
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
TP, PP, CP = (int(os.environ.get(name, "1")) for name in ("TP", "PP", "CP"))
SHAPE = argparse.Namespace(  # by Megatron-LM's names, so that others know what is in a checkpoint
    num_layers=4,
    hidden_size=64,
    ffn_hidden_size=128,
    num_attention_heads=4,
    max_position_embeddings=64,
    padded_vocab_size=256,
    position_embedding_type="learned_absolute",
    normalization="LayerNorm",
    norm_epsilon=1e-5,
    swiglu=False,
    add_bias_linear=True,
    bias_gelu_fusion=False,
    untie_embeddings_and_output_weights=False,
)


class AttentionOnCpu(torch.nn.Module):
    """In the place of Megatron's, whose buffers are on a GPU whatever its input is."""

    def __init__(self, **_about: object) -> None:
        super().__init__()

    def forward(self, *qkv_and_mask: torch.Tensor, **_options: object) -> torch.Tensor:
        """Map (S, B, heads, E) to (S, B, D)."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in qkv_and_mask[:3])
        return scaled_dot_product_attention(q, k, v, is_causal=True).permute(2, 0, 1, 3).flatten(2)


def build() -> GPTModel:
    """Return this rank's part of the model; its weights are the same whatever TP and PP are."""
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=SHAPE.num_layers,
        hidden_size=SHAPE.hidden_size,
        ffn_hidden_size=SHAPE.ffn_hidden_size,
        num_attention_heads=SHAPE.num_attention_heads,
        layernorm_epsilon=SHAPE.norm_epsilon,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=TP,
        pipeline_model_parallel_size=PP,
        context_parallel_size=CP,
        use_cpu_initialization=True,
        bf16=ON_GPU,
        params_dtype=DTYPE,
        pipeline_dtype=DTYPE,
        masked_softmax_fusion=HAVE_TE,
        persist_layer_norm=HAVE_TE,
    )
    if ON_GPU and HAVE_TE:
        layer = get_gpt_layer_with_transformer_engine_spec()
    else:
        layer = get_gpt_layer_local_spec()
    if not ON_GPU:
        layer.submodules.self_attention.submodules.core_attention = AttentionOnCpu
    return GPTModel(
        config,
        layer,
        vocab_size=SHAPE.padded_vocab_size,
        max_sequence_length=SHAPE.max_position_embeddings,
        position_embedding_type=SHAPE.position_embedding_type,
        pre_process=mpu.is_pipeline_first_stage(),
        post_process=mpu.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=True,
    )


class SaveOnCpu(torch_dist.TorchDistSaveShardedStrategy):
    """Writes Megatron's format by torch's own writer: Megatron's synchronizes with a GPU."""

    def save(self, sharded_state_dict: dict, checkpoint_dir: str) -> None:
        """Write a checkpoint's tensors."""
        flat, _, _ = torch_dist._replace_state_dict_keys_with_sharded_keys(  # noqa: SLF001
            sharded_state_dict, keep_only_main_replica=True
        )
        planner = torch_dist.MCoreSavePlanner(
            dedup_replicated_tensors=False, flatten_state_dict=False
        )
        state = torch_dist.mcore_to_pyt_state_dict(flat, is_loading=False)
        writer = checkpoint.FileSystemWriter(checkpoint_dir)
        checkpoint.save(state, storage_writer=writer, planner=planner)


def save(state: dict, folder: str) -> None:
    """Write a checkpoint in Megatron's torch_dist format into an empty folder."""
    strategy = None if ON_GPU else SaveOnCpu("torch_dist", 1)
    dist_checkpointing.save({**state, "args": SHAPE}, folder, sharded_strategy=strategy)
