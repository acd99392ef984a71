"""The index of a checkpoint, as every supported Python writes it, and as an attacker would."""

import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, save
from torch.distributed.checkpoint.metadata import Metadata

from tests.trainer.saved import open_folder
from tests.trainer.saved import save as save_ours
from trainer.checkpoint.safe_reader import SafeReader

INDEXES = Path(__file__).parent / "indexes"


class Debian12(pickle.Pickler):
    """As Python 3.11.2 writes the members of enumerations."""

    def reducer_override(self, obj: Any) -> Any:
        """Write a call of getattr."""
        if isinstance(obj, Enum):
            return getattr, (type(obj), obj.name)
        return NotImplemented


class Says:
    """Is written as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        """Return what is to be called when it is read."""
        return self.call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of one tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it is alone
        save({"x": torch.arange(3)}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    return tmp_path


def test_an_index_that_debian_12_wrote_is_read(folder: Path) -> None:
    """Its Python is 3.11.2, which writes the members of enumerations in a way of its own."""
    index = folder / ".metadata"
    reported = pickle.loads(index.read_bytes())  # noqa: S301 -- our own
    with index.open("wb") as file:
        Debian12(file).dump(reported)
    assert b"getattr" in index.read_bytes()
    assert SafeReader(folder).entries() == {"x": (torch.Size([3]), torch.int64)}


@pytest.mark.parametrize("version", ["0.15", "0.16"])
def test_an_index_with_megatrons_plans_is_read(
    folder: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps each rank's plan, up to 0.15 in classes of its own with a field more."""
    planner = DefaultSavePlanner()
    planner.set_up_planner({"x": torch.arange(3), "y": "text"}, is_coordinator=True)
    index: Any = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 -- our own
    plan: Any = planner.create_local_plan()
    if version == "0.15":
        where = "megatron.core.dist_checkpointing.strategies.torch"
        module: Any = ModuleType(where)
        for name, of in (("MCoreMetadata", index), ("MCoreSavePlan", plan)):
            setattr(module, name, type(name, (type(of),), {"__module__": where}))
        parts = where.split(".")
        for number in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:number]), module)
        index = module.MCoreMetadata(**vars(index))
        plan = module.MCoreSavePlan(**vars(plan))
        vars(index)["mcore_data"] = vars(plan)["mcore_data"] = {"x": {}}
    index.all_local_plans = [plan]
    (folder / ".metadata").write_bytes(pickle.dumps(index))
    monkeypatch.undo()
    assert SafeReader(folder).entries() == {"x": (torch.Size([3]), torch.int64)}


@pytest.mark.parametrize(
    "pickled",
    [
        Says(getattr, Metadata, "__init__"),
        Says(getattr, Metadata, "__doc__"),
        Says(getattr, torch.Size, "numel"),
        Says(os.getcwd),
        Says(eval, "1 + 1"),
    ],
)
def test_nothing_else_is_let_in(folder: Path, pickled: Says) -> None:
    """An attribute of a class would be a first step to running code."""
    (folder / ".metadata").write_bytes(pickle.dumps(pickled))
    with pytest.raises(pickle.UnpicklingError, match="a checkpoint's index has no "):
        SafeReader(folder).read_metadata()


@pytest.mark.parametrize("index", sorted(INDEXES.glob("*.metadata")), ids=lambda path: path.stem)
def test_an_index_of_every_python_and_torch_is_read(index: Path, tmp_path: Path) -> None:
    """Python 3.13 writes a path in a way of its own, and torch 2.15 strides beside shapes."""
    shutil.copy(index, tmp_path / ".metadata")
    assert SafeReader(tmp_path).entries() == {
        "model/w": (torch.Size([3, 2]), torch.float32),
        "model/b": (torch.Size([3]), torch.bfloat16),
        "optimizer/step": (torch.Size([]), torch.float32),
        "rank-0/generator": (torch.Size([16]), torch.uint8),
        "images": (torch.Size([1, 3, 2, 2]), torch.float32),
    }


def test_our_index_holds_no_path(tmp_path: Path) -> None:
    """Each Python pickles one in its own way, and it says where somebody's files lie."""
    save_ours(open_folder(tmp_path), 5)
    index = (tmp_path / "checkpoints" / "step-5" / ".metadata").read_bytes()
    assert b"pathlib" not in index
    assert tmp_path.name.encode() not in index
