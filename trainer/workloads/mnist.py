"""Handwritten digits: those that ship with the package, or all of MNIST."""

from __future__ import annotations

import gzip
import struct
import tempfile
import zlib
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import UserError
from trainer.text import or_mount
from trainer.workloads.base import TensorData, Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainer.config import Config

_MODELS = ("cnn", "mlp")
_NUM_CLASSES = 10
_SIDE_PX = 28
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_SHIPPED = Path(__file__).parent / "digits"
_UNSIGNED_BYTE = 0x08
_MEAN, _STD = 0.1307, 0.3081  # of the training pixels, scaled to 0..1


class Mnist(Workload):
    """The tutorial's CNN, or a perceptron, on digits of 28 x 28 pixels."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # Three passes over 5,000 digits are a demonstration; all of MNIST takes one.
        self.default_epochs = 1 if config.data_dir else 3  # type: ignore[misc] # by the data set
        self._read = cache(self._read_split)  # read once, though checked and loaded

    def check(self) -> None:
        """Read the files that are there; absent ones are left to `prepare`."""
        if self.config.model not in ("", *_MODELS):
            raise UserError(
                "--model",
                rule=f"be one of {', '.join(_MODELS)} for workload mnist",
                found=repr(self.config.model),
                remedy="change it",
            )
        folder = self.config.data_dir
        if folder and not folder.is_dir():
            raise UserError(
                f"--data-dir {folder}",
                rule="be a directory that exists",
                found="none",
                remedy=or_mount("create it to have MNIST downloaded into it, or correct the path"),
            )
        for split, names in _FILES.items():
            if all(self._find(name) for name in names):
                self._read(split)

    def num_train_samples(self) -> int | None:
        """Return how many labels there are, if they are here."""
        is_here = all(self._find(name) for name in _FILES["train"])
        return self._read("train")[1].shape[0] if is_here else None

    def prepare(self) -> None:
        """Download MNIST through torchvision if a file of it is missing."""
        if all(self._find(name) for names in _FILES.values() for name in names):
            return
        assert self.config.data_dir is not None  # the shipped digits are always there  # noqa: S101
        _download(self.config.data_dir)

    def build_model(self) -> nn.Module:
        """Return the CNN of 1.2 M parameters, or the 784-128-10 perceptron."""
        from trainer.workloads import mnist_models  # noqa: PLC0415 -- imports torch

        build = mnist_models.perceptron if self.config.model == "mlp" else mnist_models.cnn
        return build(dropout=self.config.dropout)

    def train_data(self) -> TensorData:
        """Return inputs of shape (N, 1, 28, 28), normalised, and targets 0 to 9."""
        return _as_tensors(*self._read("train"))

    def test_data(self) -> TensorData:
        """Return the held-out digits, in the same form."""
        return _as_tensors(*self._read("test"))

    def _find(self, name: str) -> Path | None:
        folder = self.config.data_dir
        folders = [folder / "MNIST" / "raw", folder] if folder else [_SHIPPED]
        candidates = [f / (name + end) for f in folders for end in ("", ".gz")]
        return next((path for path in candidates if path.is_file()), None)

    def _read_split(self, split: str) -> tuple[IdxArray, IdxArray]:
        image_path, label_path = (self._find(name) for name in _FILES[split])
        assert image_path is not None  # noqa: S101 -- `prepare` saw to it
        assert label_path is not None  # noqa: S101
        images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
        ok = (
            images.shape == (*labels.shape, _SIDE_PX, _SIDE_PX)
            and labels.data
            and max(labels.data) < _NUM_CLASSES
        )
        if not ok:
            raise UserError(
                f"damaged IDX files {image_path} and {label_path.name}",
                rule=f"have as many 28 x 28 images as labels from 0 to {_NUM_CLASSES - 1}",
                found=f"shapes {images.shape} and {labels.shape}, "
                f"largest label {max(labels.data, default=None)}",
                remedy="replace them",
            )
        return images, labels


def _as_tensors(images: IdxArray, labels: IdxArray) -> TensorData:
    import torch  # noqa: PLC0415 -- not before the input is checked

    def tensor(array: IdxArray) -> Tensor:
        return torch.frombuffer(bytearray(array.data), dtype=torch.uint8).view(array.shape)

    inputs = tensor(images).unsqueeze(1).float().div_(255).sub_(_MEAN).div_(_STD)
    return TensorData(inputs=inputs, targets=tensor(labels).long())


def _download(folder: Path) -> None:
    """Download beside, then rename: nodes that share `folder` may do so at the same time."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as beside:
            from torchvision.datasets import MNIST  # noqa: PLC0415 -- slow, and seldom needed

            MNIST(beside, download=True)
            target = folder / "MNIST" / "raw"
            target.mkdir(parents=True, exist_ok=True)
            for name in (name for names in _FILES.values() for name in names):
                (Path(beside) / "MNIST" / "raw" / name).replace(target / name)
    except (OSError, RuntimeError) as error:  # URLError is an OSError
        raise UserError(
            f"MNIST in {folder}",
            rule="have the four IDX files in MNIST/raw, or a network to download them",
            found=f"none, and the download failed ({error})",
            remedy="copy them there, or leave --data-dir out to train on the shipped digits",
        ) from error


@dataclass(frozen=True)
class IdxArray:
    """An array of unsigned bytes in C order."""

    shape: tuple[int, ...]
    data: bytes


def read_idx(path: Path, num_dims: int) -> IdxArray:
    """Read a file of IDX, MNIST's format: a magic number, the dimensions, then the bytes.

    The format is described on the page of the MNIST database. Takes unsigned bytes with `num_dims`
    dimensions, plain or `.gz`. Raises UserError when it cannot be read or is damaged.
    """
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, "a readable file", error) from error
    size_of_header = 4 + 4 * num_dims
    if len(raw) < size_of_header:
        raise _damaged(path, f"a header of {size_of_header} bytes", f"{len(raw)} bytes")
    magic, *shape = struct.unpack_from(f">I{num_dims}I", raw)
    if magic != (_UNSIGNED_BYTE << 8) + num_dims:
        raise _damaged(path, f"magic number {(_UNSIGNED_BYTE << 8) + num_dims}", magic)
    data = raw[size_of_header:]
    if len(data) != prod(shape):
        raise _damaged(path, f"{prod(shape)} bytes after the header", f"{len(data)} bytes")
    return IdxArray(shape=tuple(shape), data=data)


def _damaged(path: Path, rule: str, found: object) -> UserError:
    remedy = "replace it, or remove it to have it downloaded again"
    return UserError(f"damaged IDX file {path}", rule=f"be {rule}", found=found, remedy=remedy)
