"""python -m trainer.export of what other programs wrote, real, damaged and hostile."""

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
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
