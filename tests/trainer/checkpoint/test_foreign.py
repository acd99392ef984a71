"""python -m trainer.export of what other programs wrote, real, damaged and hostile."""

import os
import pickle
import subprocess
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, save

from tests.trainer.ports import free_port
from trainer import export
from trainer.command import run

RANKS = Path(__file__).with_name("sharding_ranks.py")


def write(folder: Path, state: dict[str, Any], *, is_flat: bool = True) -> Path:
    """Save it by torch's own function, on one process; `is_flat`: lists item by item."""
    planner = DefaultSavePlanner(flatten_state_dict=is_flat)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it is alone
        save(state, storage_writer=FileSystemWriter(folder), planner=planner, no_dist=True)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of two tensors."""
    return write(tmp_path / "dcp", {"a": torch.arange(40.0).view(8, 5), "b": torch.ones(3)})


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Ends with 64 and one line that has these words, and writes nothing."""

    def check(source: Path, words: str, *options: str) -> None:
        capsys.readouterr()
        assert run(export.main, [str(source), str(tmp_path / "out"), *options]) == 64
        told = capsys.readouterr().err
        assert words in told
        assert told.count("\n") == 1
        assert not list(tmp_path.glob("*out*"))

    return check


@pytest.mark.slow
def test_what_ranks_of_other_programs_saved(
    tmp_path: Path, clean_env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Tensors cut along any dimension are whole, of their type; an optimizer's are skipped."""
    source = tmp_path / "step-7"
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    subprocess.run([sys.executable, *launch, RANKS, source], env=clean_env, check=True, timeout=300)
    assert len(list(source.glob("*.distcp"))) == 2
    assert run(export.main, [str(source), str(tmp_path / "m")]) == 0
    assert "1 tensor of an optimizer and 2 non-tensors skipped" in capsys.readouterr().out
    weights = load_file(tmp_path / "m.safetensors")
    assert set(weights) == {"layers.0.rows", "layers.0.columns", "norm"}
    assert torch.equal(weights["layers.0.rows"], torch.arange(15.0).view(5, 3).bfloat16())
    assert torch.equal(weights["layers.0.columns"], torch.arange(10.0).view(2, 5))
    assert weights["norm"].dtype == torch.int8
    whole = torch.load(tmp_path / "m.pt", weights_only=True)["model"]
    assert all(torch.equal(whole[name], weights[name]) for name in weights)


def test_names_stay_apart(tmp_path: Path) -> None:
    """Two dictionaries with the same names keep theirs."""
    state = {"model": {"w": torch.zeros(2)}, "ema": {"w": torch.ones(2)}}
    write(tmp_path / "dcp", state)
    assert run(export.main, [str(tmp_path / "dcp"), str(tmp_path / "m.safetensors")]) == 0
    weights = load_file(tmp_path / "m.safetensors")
    assert {name: weight.sum().item() for name, weight in weights.items()} == {
        "model.w": 0,
        "ema.w": 2,
    }


def test_a_file_of_torch_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As DeepSpeed's zero_to_fp32 leaves it: tied weights are written twice."""
    tied = torch.rand(4, 2)
    state = {"module": {"embed": tied, "head": tied}, "optimizer": {"m": tied}, "iteration": 5}
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert run(export.main, [str(tmp_path / "pytorch_model.bin"), str(tmp_path / "m.pt")]) == 0
    assert "1 tensor of an optimizer and 1 non-tensors skipped" in capsys.readouterr().out
    assert run(export.main, [str(tmp_path / "m.pt"), str(tmp_path / "m.safetensors")]) == 0
    weights = load_file(tmp_path / "m.safetensors")
    assert set(weights) == {"embed", "head"}
    assert torch.equal(weights["head"], tied)


def test_a_checkpoint_of_lightnings(tmp_path: Path) -> None:
    """As its `ddp` leaves it: what a callback remembers is no weight."""
    state = {
        "pytorch-lightning_version": "2.6.6",
        "state_dict": {"layers.0.weight": torch.ones(2)},
        "callbacks": {"ModelCheckpoint{'mode': 'min'}": {"kth_value": torch.tensor(0.5)}},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(2)}}}],
    }
    torch.save(state, tmp_path / "step-5.ckpt")
    assert run(export.main, [str(tmp_path / "step-5.ckpt"), str(tmp_path / "w.safetensors")]) == 0
    assert set(load_file(tmp_path / "w.safetensors")) == {"layers.0.weight"}


def test_zeros_shards_are_refused(tmp_path: Path, refused: Callable[..., None]) -> None:
    """A file of ZeRO-3's has each weight with no numbers in it; its folder and its run likewise."""
    checkpoint = tmp_path / "run" / "checkpoints" / "global_step5"
    checkpoint.mkdir(parents=True)
    shard = checkpoint / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    torch.save({"module": {"w": torch.ones(0)}}, shard)
    checkpoint.with_name("zero_to_fp32.py").touch()
    for path in (shard, checkpoint, checkpoint.parent, tmp_path / "run"):
        refused(path, "found each rank's part, by DeepSpeed's ZeRO; run the zero_to_fp32.py ")


class _Hostile:
    """Runs a command where its pickle is read by the plain unpickler."""

    def __init__(self, path: Path) -> None:
        self.words = f"touch {path}"

    def __reduce__(self) -> Any:
        """Return the call."""
        return os.system, (self.words,)


def test_an_index_that_would_run_something_runs_nothing(
    folder: Path, tmp_path: Path, refused: Callable[..., None]
) -> None:
    """Alone, and hidden in one that is otherwise good; the line names what it wanted."""
    index, ran = folder / ".metadata", tmp_path / "ran"
    good = pickle.loads(index.read_bytes())  # noqa: S301 -- our own
    good.planner_data = {"a": _Hostile(ran)}
    for content in (_Hostile(ran), good):
        index.write_bytes(pickle.dumps(content))
        refused(folder, "a checkpoint's index has no posix.system")
        assert not ran.exists()
    pickle.loads(index.read_bytes())  # noqa: S301 -- so it would have
    assert ran.exists()


def test_a_file_that_would_run_something_runs_nothing(
    tmp_path: Path, refused: Callable[..., None]
) -> None:
    """Whatever modules it names."""
    file, ran = tmp_path / "m.pt", tmp_path / "ran"
    torch.save({"w": torch.ones(1), "x": _Hostile(ran)}, file)
    refused(file, "posix.system")
    assert not ran.exists()


def test_damage_is_one_line(folder: Path, refused: Callable[..., None]) -> None:
    """A torn file, one that is gone, a part that no file has, a torn index, an absurd one."""
    index = folder / ".metadata"
    good = index.read_bytes()
    told = pickle.loads(good)  # noqa: S301 -- our own
    absurd = torch.Size([1 << 40, 1 << 20])
    told.state_dict_metadata["a"].size = told.state_dict_metadata["a"].chunks[0].sizes = absurd
    index.write_bytes(pickle.dumps(told))
    refused(folder, "RuntimeError: ")
    told.state_dict_metadata["a"].chunks[0].sizes = torch.Size([8, 4])
    told.state_dict_metadata["a"].size = torch.Size([8, 5])
    index.write_bytes(pickle.dumps(told))
    refused(folder, "32 of 40 numbers of a")
    index.write_bytes(good)
    file = next(folder.glob("*.distcp"))
    size = file.stat().st_size
    os.truncate(file, size - 100)
    refused(folder, f"__0_0.distcp of {size - 100} bytes, {size} with its part of ")
    file.unlink()
    refused(folder, "no file __0_0.distcp, which has a part of ")
    os.truncate(index, 20)
    refused(folder, "must be a whole checkpoint of torch.distributed.checkpoint")


def test_a_checkpoint_without_weights_is_one_line(
    tmp_path: Path, refused: Callable[..., None]
) -> None:
    """An optimizer's alone, and something else than one of Megatron's as --format hf."""
    write(tmp_path / "dcp", {"optimizer": {"m": torch.ones(2)}, "step": 3})
    refused(tmp_path / "dcp", "none, and 1 tensor of an optimizer and 1 non-tensors skipped")
    assert run(export.main, [str(tmp_path / "dcp"), str(tmp_path / "o"), "--format", "hf"]) == 64


# ---- Megatron ------------------------------------------------------------------------------------

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
