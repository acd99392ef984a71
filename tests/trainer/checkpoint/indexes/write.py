"""Write the index of a checkpoint as this Python and torch do: python write.py."""

import platform
import shutil
import tempfile
from pathlib import Path

import torch
from torch.distributed.checkpoint import FileSystemWriter, save

TENSORS = {
    "model/w": torch.zeros(3, 2),
    "model/b": torch.zeros(3, dtype=torch.bfloat16),
    "optimizer/step": torch.zeros(()),
    "rank-0/generator": torch.zeros(16, dtype=torch.uint8),
    "images": torch.zeros(1, 3, 2, 2).to(memory_format=torch.channels_last),
}

with tempfile.TemporaryDirectory() as folder:
    save(TENSORS, storage_writer=FileSystemWriter(Path(folder)), no_dist=True)
    version = ".".join(torch.__version__.split(".")[:2])
    name = f"python-{platform.python_version()}-torch-{version}.metadata"
    shutil.copy(Path(folder, ".metadata"), Path(__file__).with_name(name))
