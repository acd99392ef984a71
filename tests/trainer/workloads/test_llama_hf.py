"""A Llama to Hugging Face's layout and back, and what it writes."""

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer import export, sample
from trainer.checkpoint import loading
from trainer.command import run
from trainer.config import Config
from trainer.errors import UserError
from trainer.workloads.language import Language
from trainer.workloads.llama import build_llama, empty_llama
from trainer.workloads.llama_hf import StoredWeights, config_of, read_shape, to_hf, to_hf_name
from trainer.workloads.llama_presets import LlamaShape

Train = Callable[..., tuple[int, Any]]
SHAPE = LlamaShape(
    vocab_size=256,
    dim=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    ffn_dim=48,
    rope_theta=500.0,
    norm_eps=1e-4,
    is_tied=True,
    max_sequence_length=16,
)


def write(folder: Path, shape: LlamaShape = SHAPE, **changed: Any) -> dict[str, torch.Tensor]:
    """Write a model there; return its weights under our names."""
    folder.mkdir()
    torch.manual_seed(1)
    weights = dict(build_llama(shape).state_dict())
    save_file(to_hf(weights, is_tied=shape.is_tied), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(shape, 16) | changed))
    return weights


def read_weights(folder: Path, shape: LlamaShape) -> dict[str, torch.Tensor]:
    """Read all of them, under our names."""
    stored = StoredWeights(folder, shape)
    return {name: stored(name) for name in empty_llama(shape, 1).state_dict()}


def test_there_and_back_is_the_same_model(tmp_path: Path) -> None:
    """Shape and weights; a tied matrix is written once."""
    weights = write(tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert "lm_head.weight" not in stored
    assert stored["model.layers.1.mlp.gate_proj.weight"].shape == (48, 32)
    assert len(stored) == len(weights) - 1
    assert read_shape(tmp_path / "m") == SHAPE
    back = read_weights(tmp_path / "m", SHAPE)
    assert set(back) == set(weights)
    assert all(torch.equal(back[name], weight) for name, weight in weights.items())


def test_weights_in_several_files_are_found(tmp_path: Path) -> None:
    """By their index, as large models are published; bf16 becomes float32."""
    weights = write(tmp_path / "m")
    whole = tmp_path / "m" / "model.safetensors"
    stored = {name: weight.bfloat16() for name, weight in load_file(whole).items()}
    whole.unlink()
    places = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(stored)}
    for file in set(places.values()):
        part = {name: weight for name, weight in stored.items() if places[name] == file}
        save_file(part, tmp_path / "m" / file)
    index = {"weight_map": places}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, weight in read_weights(tmp_path / "m", SHAPE).items():
        assert weight.dtype == torch.float32
        torch.testing.assert_close(weight, weights[name], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("place", ["../other/model.safetensors", "{}/other/model.safetensors"])
def test_an_index_reaches_no_file_outside_its_folder(tmp_path: Path, place: str) -> None:
    """A downloaded folder could name any weights of its reader's, which an export then gives on."""
    (tmp_path / "m").mkdir()
    stored = write(tmp_path / "other")
    index = {"weight_map": dict.fromkeys(map(to_hf_name, stored), place.format(tmp_path))}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="names files outside the folder"):
        StoredWeights(tmp_path / "m", SHAPE)


@pytest.mark.parametrize(
    "changed",
    [
        {"model_type": "mistral"},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0}},
        {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}},
        {"head_dim": 16},
        {"hidden_size": "many"},
        {"rms_norm_eps": None, "vocab_size": None},
        {"num_key_value_heads": 3},
        {"num_attention_heads": 0},
        {"num_attention_heads": -4, "num_key_value_heads": -2, "head_dim": -8},
        {"vocab_size": 0},
        {"vocab_size": -5},
        {"hidden_size": 0, "head_dim": None},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": 10**9},
        {"intermediate_size": 0},
        {"max_position_embeddings": 0},
        {"rms_norm_eps": float("nan")},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 0}},
    ],
)
def test_what_would_compute_something_else_is_refused(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    """In one line."""
    write(tmp_path / "m", **changed)
    with pytest.raises(UserError) as caught:
        Language(Config(workload="lm", model=str(tmp_path / "m"), mock_tokens=9)).check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"num_attention_heads": 4'])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_damaged_file_of_json_is_one_line(tmp_path: Path, name: str, text: str) -> None:
    """Cut, of something else, or nested without an end."""
    write(tmp_path / "m")
    (tmp_path / "m" / name).write_text(text)
    with pytest.raises(UserError, match="must be a Llama of Hugging Face's layout"):
        StoredWeights(tmp_path / "m", read_shape(tmp_path / "m"))


def test_a_vocabulary_too_small_for_bytes_needs_data(tmp_path: Path) -> None:
    """Without --data-dir, tokens are bytes; made-up ones are of any vocabulary."""
    write(tmp_path / "m", vocab_size=255)
    config = Config(workload="lm", model=str(tmp_path / "m"))
    with pytest.raises(UserError, match=r"must have 256 tokens, .* found 255"):
        Language(config).check()
    Language(replace(config, mock_tokens=99)).check()


def test_missing_and_misshapen_weights_are_an_error(tmp_path: Path) -> None:
    """Of another model, none at all, or a folder with neither."""
    write(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    stored = load_file(file)
    for name in ("model.norm.weight", "model.layers.0.mlp.up_proj.weight"):
        save_file({k: v for k, v in stored.items() if k != name}, file)
        with pytest.raises(UserError, match=name):
            read_weights(tmp_path / "m", SHAPE)
        save_file(stored | {name: torch.zeros(3)}, file)
        with pytest.raises(UserError, match=r"of shape \(3,\)"):
            read_weights(tmp_path / "m", SHAPE)
    file.write_bytes(b"no safetensors")
    with pytest.raises(UserError, match=r"config\.json and model\.safetensors"):
        read_weights(tmp_path / "m", SHAPE)
    with pytest.raises(UserError, match=r"--init-from .*of the shape of --model"):
        Language(Config(workload="lm", init_from=tmp_path / "m")).check()


def test_a_tied_model_has_no_output_matrix_of_its_own(tmp_path: Path) -> None:
    """transformers 5 computes with that one; a copy of the embedding is none."""
    write(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    stored = load_file(file)
    embedding = stored["model.embed_tokens.weight"]
    save_file(stored | {"lm_head.weight": embedding.clone()}, file)
    assert torch.equal(read_weights(tmp_path / "m", SHAPE)["output.weight"], embedding)
    save_file(stored | {"lm_head.weight": embedding + 1}, file)
    with pytest.raises(UserError, match=r"lm_head\.weight of its own; set tie_word_embeddings to"):
        read_weights(tmp_path / "m", SHAPE)


@pytest.mark.slow
def test_the_check_reads_the_weights_shapes(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It refuses what the run would, in the same line."""
    write(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    stored = load_file(file)
    del stored["model.norm.weight"]
    save_file(stored, file)
    options = ("--workload", "lm", "--model", str(tmp_path / "m"), "--global-batch-size", "4")
    options += ("--mock-tokens", "300")
    refused = []
    for check in ((), ("--check",)):
        code, run_dir = train(*options, "--init-from", str(tmp_path / "m"), *check)
        refused.append((code, capsys.readouterr().err, run_dir.path.exists()))
    assert refused[0] == refused[1]
    assert (refused[0][0], refused[0][2]) == (64, False)


@pytest.fixture
def trained(train: Train, tmp_path: Path) -> Path:
    """A run of two steps that began with a model of that layout."""
    write(tmp_path / "m")
    code, run_dir = train(
        *("--workload", "lm", "--model", str(tmp_path / "m"), "--init-from", str(tmp_path / "m")),
        *("--mock-tokens", "300", "--global-batch-size", "4", "--max-steps", "2", "--lr", "1e-2"),
    )
    assert code == 0
    return Path(run_dir.path)


@pytest.mark.slow
def test_a_run_begins_with_a_model_and_exports_it(trained: Path, tmp_path: Path) -> None:
    """What comes out has the shape of what went in, and the weights of the checkpoint."""
    assert run(export.main, [str(trained), str(tmp_path / "out"), "--format", "hf"]) == 0
    assert read_shape(tmp_path / "out") == SHAPE
    began, ended = (read_weights(tmp_path / name, SHAPE) for name in ("m", "out"))
    moved = [(began[name] - ended[name]).abs().max().item() for name in began]
    assert 0 < max(moved) < 0.05  # two steps of 0.01 from there, not from anywhere
    stored = loading.read_index(trained / "checkpoints" / "step-2")
    kept = loading.read_named(stored, "model/")
    assert all(torch.equal(ended[name], kept[f"model/{name}"]) for name in ended)
    assert run(export.main, [str(trained), str(tmp_path / "out"), "--format", "hf"]) == 64


@pytest.mark.slow
def test_transformers_loads_what_is_exported(trained: Path, tmp_path: Path) -> None:
    """And gives the same logits to 1e-5 in fp32."""
    transformers: Any = pytest.importorskip(
        "transformers", reason="an independent implementation to compare with"
    )
    assert run(export.main, [str(trained), str(tmp_path / "out"), "--format", "hf"]) == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ours = build_llama(SHAPE)
    ours.load_state_dict(read_weights(tmp_path / "out", SHAPE))
    tokens = torch.randint(256, (3, 16), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_tokenizer_comes_along(trained: Path, tmp_path: Path) -> None:
    """Of a model of bytes: any text is its bytes, and comes back; a document's end is known."""
    transformers: Any = pytest.importorskip("transformers", reason="what reads the folder")
    assert run(export.main, [str(trained), str(tmp_path / "out"), "--format", "hf"]) == 0
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000)]))
    for text in ("def f(x):\r\n\treturn x  \n", " ÿ\u0100 é 漢字 🙂", "", every):
        tokens = theirs.encode(text, add_special_tokens=False)
        assert tokens == list(text.encode())
        assert theirs.decode(tokens) == text
    assert theirs.eos_token_id == 255
    umask = os.umask(0)
    os.umask(umask)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()}
    assert modes == {0o666 & ~umask}


@pytest.mark.slow
def test_a_tokenizer_that_is_named_comes_along(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is, with the token that ends a document; not one of more tokens than the model."""
    file, out = tmp_path / "t.json", tmp_path / "out"
    for num_tokens, code in ((257, 64), (200, 0)):
        vocab = {f"t{number}": number for number in range(num_tokens - 1)}
        model = {"type": "BPE", "vocab": {**vocab, "</s>": num_tokens - 1}, "merges": []}
        file.write_text(json.dumps({"model": model}))
        words = [str(trained), str(out), "--format", "hf", "--tokenizer", str(file)]
        assert run(export.main, words) == code
        assert out.exists() == (code == 0)
    assert "of at most 256 tokens; found token 256" in capsys.readouterr().err
    assert json.loads((out / "tokenizer.json").read_text()) == {"model": model}
    about = json.loads((out / "tokenizer_config.json").read_text())
    assert ("eos_token", "</s>") in about.items()
    file.write_text("{}")
    assert run(export.main, [str(trained), str(tmp_path / "o2"), *words[2:]]) == 64
    assert run(export.main, [str(trained), str(tmp_path / "o2"), *words[4:]]) == 64
    assert "--tokenizer must be given with --format hf" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_writes(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The prompt and as many bytes as asked for; the same seed, the same text."""
    capsys.readouterr()
    reported = []
    cold = (["--temperature", "0"], ["--temperature", "1e-60"])
    for more in (["--seed", "3"], ["--seed", "3"], ["--seed", "4"], *cold):
        words = [str(trained), "--prompt", "def f(", "--tokens", "20", *more]
        assert run(sample.main, words) == 0
        reported.append(capsys.readouterr().out)
    assert reported[0] == reported[1] != reported[2]
    assert reported[3] == reported[4]
    assert all(text.startswith("def f(") for text in reported)
    for words in (
        [str(trained), "--prompt", ""],
        [str(trained), "--prompt", "a", "--temperature", "nan"],
        [str(trained), "--prompt", "a", "--seed", "-1"],
        [str(trained), "--prompt", "a", "--seed", str(2**64)],
        [str(trained / "none"), "--prompt", "a"],
    ):
        assert run(sample.main, words) == 64
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_bytes_do_not_write_a_larger_vocabulary(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reported before a token is computed: what is no byte could not be printed."""
    write(tmp_path / "m", replace(SHAPE, vocab_size=300))
    model = ("--workload", "lm", "--model", str(tmp_path / "m"), "--mock-tokens", "100")
    code, written = train(*model, "--global-batch-size", "2", "--max-steps", "1")
    assert code == 0
    capsys.readouterr()
    assert run(sample.main, [str(written.path), "--prompt", "a"]) == 64
    assert "trained with, of 300 tokens; found 256 of them" in capsys.readouterr().err


@pytest.mark.slow
def test_only_a_llama_is_exported_so(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the digits' perceptron."""
    code, other = train("--model", "mlp", "--global-batch-size", "250", "--max-steps", "1")
    assert code == 0
    capsys.readouterr()
    assert run(export.main, [str(other.path), str(tmp_path / "o"), "--format", "hf"]) == 64
    assert "a checkpoint of --workload lm; found mnist" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
