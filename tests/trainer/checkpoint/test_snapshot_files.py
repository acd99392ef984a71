"""The memory of a node's snapshots, where a GPU is to write it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from trainer.checkpoint.snapshot_files import NodeFiles

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Cuda:
    """The runtime's calls: it takes the first buffer, and no other."""

    cudaError = SimpleNamespace(success=0)  # noqa: N815 - its name

    def __init__(self) -> None:
        self.registered: list[int] = []
        self.released: list[int] = []

    def cudaHostRegister(self, address: int, _size: int, _flags: int) -> int:  # noqa: N802
        """Register."""
        if self.registered:
            return 1
        self.registered.append(address)
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        """Let go."""
        self.released.append(address)
        return 0


def test_what_cuda_has_registered_and_nothing_else_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its pages go; the error of what it did not take meets nobody else's kernel."""
    cuda, kernels = Cuda(), []
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cuda)
    monkeypatch.setattr(torch, "zeros", lambda *_, device: kernels.append(device))
    device = torch.device("cuda")
    files = NodeFiles(tmp_path / "files", "layout", device)
    files.path.mkdir()
    files.allocate({(0, 0): 100, (0, 1): 100})
    assert [len(cuda.registered), kernels, cuda.released] == [1, [device], []]
    files.remove()
    assert cuda.released == cuda.registered
    assert files.buffers == {}
