"""A node's snapshots: files in pages that are memory, and an index beside each.

<rank>.<slot>        tensors, one after the other; there are two slots
<rank>.<slot>.json   the step, where each tensor lies, a checksum; without it the file is void
child-<rank>         that rank's process: while one lives, agents of other jobs leave all this
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from typing import TYPE_CHECKING, Any

import torch

from rundir import heartbeat
from trainer.checkpoint import manifest
from trainer.checkpoint.shards import hash_of, local_of, num_local_bytes, part_of
from trainer.errors import short_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from trainer.environment import Ranks

NUM_SLOTS = 2
_ALIGNED_BYTES = 64
_HASHED_BYTES = 1 << 20
"""Of each so many a sum goes into a file's hash: ten times as fast as SHA-256 of all of it, and a
run's own memory is not forged."""

Key = tuple[int, int]
"""Whose file it is, and in which slot."""


class NodeFiles:
    """The directory of a node, which all its ranks read and write."""

    def __init__(self, path: Path, layout: str, device: torch.device) -> None:
        """Take where it is to be, and the run's layout: files of another are of no use."""
        self.path = path
        self._layout = layout
        self._device = device
        self.buffers: dict[Key, Tensor] = {}
        """The pages of the files that this rank writes."""
        self._pinned: list[Tensor] = []
        """Those that CUDA has registered."""

    def open(self, ranks: Ranks) -> str:
        """Make it; return what is wrong with it."""
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            found = self.path.lstat()  # its name can be guessed
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                return f"{self.path} is another user's"
            child = heartbeat.child_line(os.getpid(), ranks.local_rank, is_trainer=True)
            (self.path / f"{heartbeat.CHILD_PREFIX}{ranks.rank}").write_bytes(child)
        except OSError as error:
            return short_line(error)
        return ""

    def file(self, key: Key) -> Path:
        """Return where the tensors are."""
        return self.path / "{}.{}".format(*key)

    def _index(self, key: Key) -> Path:
        return self.path / "{}.{}.json".format(*key)

    def allocate(self, sizes: Mapping[Key, int]) -> None:
        """Get the memory of the files that this rank writes. Raises OSError where it is not."""
        self._release()
        self.buffers = {key: map_pages(self.file(key), size) for key, size in sizes.items()}
        if self._device.type == "cuda":
            self._pin()

    def _pin(self) -> None:
        """Let a GPU write the buffers by itself; where it cannot, the copies are slower."""
        cuda: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        for buffer in self.buffers.values():
            error = cuda.cudaHostRegister(buffer.data_ptr(), buffer.numel(), 0)
            if error == cuda.cudaError.success:
                self._pinned.append(buffer)
            else:  # CUDA keeps the error, and the next kernel would raise it: let it be this one
                with contextlib.suppress(RuntimeError):
                    torch.zeros((), device=self._device)

    def _release(self) -> None:
        """Let the buffers go: CUDA would keep pages that it knows, and take others for them."""
        for buffer in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(buffer.data_ptr())  # type: ignore[no-untyped-call]
        self._pinned, self.buffers = [], {}

    def buffer(self, key: Key, size: int) -> Tensor:
        """Return the pages of a file, of that size."""
        found = self.buffers.get(key)
        return map_pages(self.file(key), size) if found is None else found

    def copy(
        self, tensors: Mapping[str, Tensor], parts: Sequence[Mapping[str, Any]], key: Key
    ) -> None:
        """Copy what this rank holds of `tensors` to their places in a file."""
        with torch.no_grad():
            for part in parts:
                if part["name"] in tensors:
                    source = local_of(tensors[part["name"]])
                    view(self.buffers[key], part).copy_(source, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def void(self, key: Key) -> None:
        """Let a file count no more."""
        self._index(key).unlink(missing_ok=True)

    def seal(self, key: Key, **content: object) -> None:
        """Let a file count: write its checksum, and `content`, into its index."""
        record = _record(self.buffers[key])
        self.write_text(key, json.dumps({**content, "layout": self._layout, "file": record}))

    def write_text(self, key: Key, text: str) -> None:
        """Write an index at once, or not at all."""
        beside = self.path / ".{}.{}.partial".format(*key)
        beside.write_text(text, encoding="utf-8")
        beside.replace(self._index(key))

    def read_text(self, key: Key) -> str:
        """Return an index as it was written."""
        return self._index(key).read_text(encoding="utf-8")

    def read(self, key: Key) -> dict[str, Any]:
        """Return an index."""
        index: dict[str, Any] = json.loads(self.read_text(key))
        return index

    def list(self) -> dict[tuple[int, int], Key]:
        """Return the file of each (step, rank) that is here and of this layout."""
        found = {}
        for path in self.path.glob("*.json"):
            rank, slot, _ = path.name.split(".")
            key = int(rank), int(slot)
            with contextlib.suppress(OSError, ValueError, KeyError):
                index = self.read(key)
                if index["layout"] == self._layout:
                    found[index["step"], key[0]] = key
        return found

    def verify(self, key: Key) -> None:
        """Read a file. Raises DamagedError if it has changed since it was written."""
        if _record(self.load(key)) != self.read(key)["file"]:
            name = self.file(key).name
            raise manifest.DamagedError(f"{name} has changed since it was written: its sums differ")

    def load(self, key: Key) -> Tensor:
        """Return a file's bytes."""
        path = self.file(key)
        return torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)

    def keep_only(self, step: int | None) -> None:
        """Make void what is not of that step. Other ranks of the node do the same."""
        for path in self.path.glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                if step is None or json.loads(path.read_text(encoding="utf-8"))["step"] != step:
                    path.unlink()

    def remove(self) -> None:
        """Give the memory back."""
        self._release()
        shutil.rmtree(self.path, ignore_errors=True)


def map_pages(path: Path, size: int) -> Tensor:
    """Return a file's pages as memory. All are allocated now: later, no room would be fatal."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def _record(data: Tensor) -> dict[str, int]:
    """Return what an index holds of its file's bytes."""
    blocks = data.split(_HASHED_BYTES)  # type: ignore[no-untyped-call]
    return {"bytes": data.numel(), "checksum": hash_of(blocks)}


def lay_out(tensors: Mapping[str, Tensor]) -> tuple[list[dict[str, Any]], int]:
    """Give each tensor a place in the file; return them, and the file's size."""
    parts, offset = [], 0
    for name, tensor in tensors.items():
        local = local_of(tensor)
        parts.append(
            {
                "name": name,
                "place": part_of(name, tensor)[1],
                "shape": list(local.shape),
                "stride": torch.empty_like(local, device="meta").stride(),
                "dtype": name_of(local.dtype),
                "offset": offset,
                "bytes": num_local_bytes(local),
            }
        )
        offset += -(-num_local_bytes(local) // _ALIGNED_BYTES) * _ALIGNED_BYTES
    return parts, max(offset, _ALIGNED_BYTES)


def view(buffer: Tensor, part: Mapping[str, Any]) -> Tensor:
    """Return a tensor's place in the file, as a tensor of its strides: a copy is one sweep."""
    own = buffer[part["offset"] : part["offset"] + part["bytes"]]
    return own.view(getattr(torch, part["dtype"])).as_strided(part["shape"], part["stride"])


def name_of(dtype: torch.dtype) -> str:
    """Return the name by which torch has a type, such as `float32`."""
    return str(dtype).removeprefix("torch.")
