"""Read a distributed checkpoint without running code that is hidden in it.

The tensors are read with `weights_only`, but the index beside them, `.metadata`, is a pickle, which
torch opens with the plain unpickler: a checkpoint from a stranger could run anything. Here only the
few classes that an index is made of are let in, from whichever Python and torch wrote it.
"""

from __future__ import annotations

import pickle
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan

_PLAIN = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    # Megatron core keeps the plan of what was written, to reuse it.
    "torch.distributed.checkpoint.planner": {
        "BytesIOWriteData",
        "SavePlan",
        "TensorWriteData",
        "WriteItem",
        "WriteItemType",
    },
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict"},
}


_NUM_PROPERTIES = 5
"""Data type, layout, whether gradients are asked for, memory format, whether memory is pinned."""


class _Properties(TensorProperties):
    """From torch 2.15 on strides follow, which nothing here needs, and 2.11 would refuse them."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        super().__setstate__(state[:_NUM_PROPERTIES])  # type: ignore[no-untyped-call]


def _member(owner: object, name: str) -> Enum:
    """Return a member of an enumeration: Python 3.11.0 to 3.11.3 writes one as a call of getattr.

    Of anything else an attribute could be a way to run code.
    """
    members = owner.__members__ if isinstance(owner, type) and issubclass(owner, Enum) else {}
    if name not in members:
        raise pickle.UnpicklingError(f"a checkpoint's index has no attribute {name!r}")
    return members[name]


_REPLACED: dict[tuple[str, str], Any] = {
    ("builtins", "getattr"): _member,
    ("torch.distributed.checkpoint.metadata", "TensorProperties"): _Properties,
    # Where the run was written. Python 3.13 alone names such a path pathlib._local.
    **{
        (module, name): PurePosixPath
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "PurePosixPath")
    },
    # Megatron core up to 0.15 added a field of its own, on how an optimizer's tensors were cut.
    ("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata"): Metadata,
    ("megatron.core.dist_checkpointing.strategies.torch", "MCoreSavePlan"): SavePlan,
}


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:  # noqa: ANN401 -- pickle's
        replaced = _REPLACED.get((module_name, global_name))
        if replaced is not None:
            return replaced
        known = global_name in _PLAIN.get(module_name, ())
        is_dtype = module_name == "torch" and isinstance(
            getattr(torch, global_name, None), torch.dtype
        )
        if not (known or is_dtype):
            raise pickle.UnpicklingError(f"a checkpoint's index has no {module_name}.{global_name}")
        return super().find_class(module_name, global_name)


class SafeReader(FileSystemReader):
    """FileSystemReader with the restricted unpickler."""

    def read_metadata(self, *_args: object, **_kwargs: object) -> Metadata:
        """Read the index. Raises pickle.UnpicklingError for anything foreign in it."""
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata = _IndexUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError("a checkpoint's index is not one")
        for place in (metadata.storage_data or {}).values():
            if "/" in place.relative_path:
                raise pickle.UnpicklingError("a checkpoint's index names files outside its folder")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def entries(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Return shape and type of each tensor that the checkpoint holds."""
        return {
            name: (entry.size, entry.properties.dtype)
            for name, entry in self.read_metadata().state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
