"""Images for any classification model of torchvision: from folders, or made up."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from rundir.text import counted
from trainer.errors import UserError, short_line
from trainer.text import or_mount
from trainer.workloads.base import TensorData, UnreadableSampleError, Workload, check_made_up

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor, nn
    from torch.utils.data import Dataset

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, per channel
_SPLITS = ("train", "val")
_FLOAT_BYTES = 4
_DEFAULT = "resnet18"
_WITH_MORE_OUTPUTS = ("googlenet", "inception_v3")
"""Those that have outputs for the training alone, which the loss would not take."""


class _TorchvisionModel(Workload):
    """Shared by both: the model by name."""

    def check_model(self) -> None:
        """Raise UserError for a model that is none of torchvision's, or does not take a batch."""
        self.build_model()

    def build_model(self) -> nn.Module:
        """Return torchvision's model of that name, freshly initialised."""
        from torchvision import models  # noqa: PLC0415 -- 0.5 s, and only here

        name = self.config.model or _DEFAULT
        valid = models.list_models(module=models)
        if name not in valid:
            raise UserError(
                "--model",
                rule="be a classification model of torchvision",
                found=repr(name),
                remedy=f"take one of {', '.join(valid)}",
            )
        options: dict[str, Any] = {"num_classes": self.num_classes()}
        if name in _WITH_MORE_OUTPUTS:
            options |= {"aux_logits": False, "init_weights": True}
        if name.startswith("vit_"):
            options["image_size"] = self.config.image_size
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some announce a change of their initialisation
            model: nn.Module = self._tried(lambda: models.get_model(name, **options))
        model.register_forward_pre_hook(_channels_last)
        return model

    def _tried(self, build: Callable[[], nn.Module]) -> nn.Module:
        """Build, and raise UserError unless a microbatch, tried without values, goes through."""
        import torch  # noqa: PLC0415 -- not before the input is checked

        size, side_px = self.config.micro_batch_size, self.config.image_size
        shape = (size or self.config.global_batch_size, 3, side_px, side_px)
        try:
            model = build()
            empty = {name: value.to("meta") for name, value in model.state_dict().items()}
            with torch.device("meta"), torch.no_grad():
                torch.func.functional_call(model, empty, torch.empty(shape))
        except Exception as error:  # each model has its own way to refuse
            raise UserError(
                f"--model {self.config.model or _DEFAULT}",
                rule=f"take {counted(shape[0], 'image')} of --image-size {side_px} at a time",
                found=short_line(error),
                remedy="change --image-size or --micro-batch-size, or take another --model",
            ) from error
        return model

    def num_classes(self) -> int:
        """Return the number of outputs."""
        return self.config.num_classes


class FakeImages(_TorchvisionModel):
    """Random images whose class shows in their mean: no files, any size, yet learnable."""

    def check(self) -> None:
        """Raise UserError for more than the memory holds."""
        one = 3 * self.config.image_size**2 * _FLOAT_BYTES
        check_made_up("--num-samples times --image-size", self.config.num_samples * one)

    def num_train_samples(self) -> int:
        """Return --num-samples."""
        return self.config.num_samples

    def train_data(self) -> TensorData:
        """Return inputs of shape (num_samples, 3, image_size, image_size)."""
        return self._make(self.config.num_samples, seed=0)

    def test_data(self) -> TensorData:
        """Return an eighth as many, drawn with another seed."""
        return self._make(max(1, self.config.num_samples // 8), seed=1)

    def _make(self, num_samples: int, seed: int) -> TensorData:
        import torch  # noqa: PLC0415 -- not before the input is checked

        generator = torch.Generator().manual_seed(seed)
        side_px = self.config.image_size
        targets = torch.randint(self.config.num_classes, (num_samples,), generator=generator)
        inputs = torch.randn(num_samples, 3, side_px, side_px, generator=generator)
        inputs += (targets / self.config.num_classes * 4 - 2).view(-1, 1, 1, 1)
        return TensorData(inputs=inputs, targets=targets)


class ImageFolder(_TorchvisionModel):
    """`data_dir/train/CLASS/*.jpg`, and `data_dir/val/CLASS/*.jpg` for validation."""

    def check(self) -> None:
        """Raise UserError unless both folders are there and have the same classes."""
        if self.config.data_dir is None:
            raise UserError(
                "--data-dir",
                rule="be given for workload imagefolder",
                found="none",
                remedy="name the directory that holds train/ and val/",
            )
        train, val = (_classes(self.config.data_dir / split) for split in _SPLITS)
        if train != val:
            raise UserError(
                f"--data-dir {self.config.data_dir}",
                rule="have the same classes in train/ and val/",
                found=f"only in one: {', '.join(sorted(set(train) ^ set(val)))}",
                remedy="add the missing folders",
            )

    def num_classes(self) -> int:
        """Return the number of class folders."""
        assert self.config.data_dir is not None  # noqa: S101 -- `check` saw to it
        return len(_classes(self.config.data_dir / "train"))

    def train_data(self) -> Dataset[Any]:
        """Return random crops, flipped at random."""
        from torchvision import transforms as t  # noqa: PLC0415 -- slow, and only here

        side_px = self.config.image_size
        return self._dataset("train", [t.RandomResizedCrop(side_px), t.RandomHorizontalFlip()])

    def test_data(self) -> Dataset[Any]:
        """Return centre crops."""
        from torchvision import transforms as t  # noqa: PLC0415 -- slow, and only here

        side_px = self.config.image_size
        return self._dataset("val", [t.Resize(side_px * 8 // 7), t.CenterCrop(side_px)])

    def _dataset(self, split: str, steps: list[Any]) -> Dataset[Any]:
        from torchvision import datasets, transforms  # noqa: PLC0415 -- slow, and only here

        assert self.config.data_dir is not None  # noqa: S101 -- `check` saw to it
        tail = [transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)]
        try:
            dataset: Dataset[Any] = datasets.ImageFolder(
                str(self.config.data_dir / split),
                transform=transforms.Compose([*steps, *tail]),
                loader=_read_image,
            )
        except FileNotFoundError as error:
            raise UserError(
                f"--data-dir {self.config.data_dir}",
                rule="have an image in every class folder",
                found=error,
                remedy="add images, or remove the empty folders",
            ) from error
        return dataset


def _channels_last(_model: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Lay images out as a GPU's convolutions run fastest; all that follows from them lies so, too.

    Not the weights, which fully_shard takes in rows only; and not on a CPU, where resnets are
    slower that way.
    """
    import torch  # noqa: PLC0415 -- not before the input is checked

    (images,) = inputs
    return (images.contiguous(memory_format=torch.channels_last),) if images.is_cuda else inputs


def _read_image(path: str) -> Any:  # noqa: ANN401 -- what torchvision's own reader returns
    from torchvision.datasets.folder import default_loader  # noqa: PLC0415 -- slow, and only here

    try:
        return default_loader(path)
    except Exception as error:  # a damaged file has many
        raise UnreadableSampleError(f"{path}: {short_line(error)}") from error


def _classes(folder: Path) -> list[str]:
    try:
        found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        raise UserError(
            f"--data-dir {folder.parent}",
            rule="have train/ and val/ with a folder for each class",
            found=error,
            remedy=or_mount("correct the path or the layout"),
        ) from error
    if not found:
        raise UserError(
            str(folder), rule="have a folder for each class", found="none", remedy="add them"
        )
    return found
