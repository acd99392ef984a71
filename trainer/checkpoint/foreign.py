"""Checkpoints of other programs: a folder of torch.distributed.checkpoint, or a file of torch.save.

Of a folder (torchtitan's, FSDP's, Megatron's torch_dist) the index is read by `safe_reader`; a file
is read with `weights_only`, its unknown classes replaced by an empty one. Neither imports what
wrote them, and neither runs code of theirs.
"""

from __future__ import annotations

import argparse
import io
import re
import zipfile
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from rundir.text import counted
from trainer.checkpoint import manifest
from trainer.checkpoint.layout import STATE_FILE
from trainer.errors import UserError, short_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from torch import Tensor
    from torch.distributed.checkpoint.metadata import Metadata

INDEX = ".metadata"
_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
_ZERO = ("*zero_pp_rank_*", *(f"{at}zero_to_fp32.py" for at in ("", "*/", "*/*/")))
"""What DeepSpeed's ZeRO leaves in a checkpoint, in a folder of them, or in a run directory."""
_OPTIMIZER = re.compile(r"optim(izer)?s?(_states?)?(_dict)?(_\d+)?|callbacks")
"""A part of the names of what belongs to an optimizer, or to Lightning's callbacks."""


def is_foreign(path: Path) -> bool:
    """Whether it is no checkpoint of this trainer's, and can be read here. Imports no torch."""
    if path.is_file():
        return path.suffix in _ENDINGS
    own = (manifest.FILE, STATE_FILE)
    return (path / INDEX).exists() and not any((path / name).exists() for name in own)


def check_is_whole(path: Path) -> None:
    """Raise UserError for what ZeRO saved in a part per rank, of which each part alone is empty."""
    is_zeros = (
        "zero_pp_rank_" in path.name
        if path.is_file()
        else any(next(path.glob(pattern), None) for pattern in _ZERO)
    )
    if is_zeros:
        raise UserError(
            str(path),
            rule="hold whole weights",
            found="each rank's part, by DeepSpeed's ZeRO",
            remedy="run the zero_to_fp32.py that lies with it, and name the file that it writes",
        )


def read_weights(path: Path) -> tuple[dict[str, Tensor], str]:
    """Return all tensors but an optimizer's by name, and what was skipped, in words.

    A name is what the program called it in its own dictionary, without the dictionary's name
    ("model"), where that is enough to tell all of them apart. Raises UserError.
    """
    tensors, others = _read_file(path) if path.is_file() else _read_folder(path)
    if not tensors:
        raise UserError(
            str(path),
            rule="hold a model's tensors",
            found=f"none, and {others}",
            remedy="name another",
        )
    short = [keys[-1] for keys in tensors]
    is_enough = len({*short}) == len(short)
    named = {keys[-1] if is_enough else ".".join(keys): value for keys, value in tensors.items()}
    return named, others


def read_file(path: Path) -> Any:  # noqa: ANN401 -- whatever was saved
    """Return what torch.save wrote; an object of an unknown class is an empty one.

    Raises UserError for what cannot be read, and for what names a module that reaches the system.
    """
    return _load(path, path)


def read_object(path: Path, name: str) -> Any:  # noqa: ANN401 -- as above
    """Return an object that a folder holds beside its tensors, in one part; None if it has none.

    Raises UserError as `read_file` does.
    """
    index = _read_index(path)
    places = {key.fqn: place for key, place in index.storage_data.items()}
    found = next((fqn for fqn in places if fqn.partition("/")[0] == name), None)
    if found is None:
        return None
    _check_files(path, index, {found})
    place = places[found]
    return _load(path, path / place.relative_path, (place.offset, place.length))


def _load(path: Path, file: Path, place: tuple[int, int] | None = None) -> Any:  # noqa: ANN401 -- as above
    """Read what torch.save wrote: a file, or, by an offset and a length, a part of one."""
    import torch  # noqa: PLC0415 -- see is_foreign
    from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals  # noqa: PLC0415

    known = [argparse.Namespace]  # of Megatron's options
    try:
        with file.open("rb") as opened:
            source = opened if place is None else _part(opened, *place)
            is_zip = zipfile.is_zipfile(source)
            source.seek(0)
            names = get_unsafe_globals_in_checkpoint(source) if is_zip else []
            source.seek(0)
            unknown = [(_Unknown, name) for name in names if name != "argparse.Namespace"]
            with safe_globals([*known, *unknown]):
                return torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's own are of many types, and hide the reason in a page
        raise _error(path, short_line(error.__context__ or error)) from error


def _part(file: BinaryIO, offset: int, length: int) -> BinaryIO:
    file.seek(offset)
    return io.BytesIO(file.read(length))


class _Unknown:
    """In the place of a class that is not known here: takes everything, and keeps nothing."""

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        return super().__new__(cls)

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        pass

    def __setstate__(self, _state: object) -> None:
        pass


_Tensors = tuple[dict[tuple[str, ...], "Tensor"], str]


def _read_file(path: Path) -> _Tensors:
    import torch  # noqa: PLC0415 -- see is_foreign

    leaves = dict(_leaves(read_file(path)))
    tensors = {keys: leaf for keys, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    chosen = [keys for keys in tensors if not _is_optimizers(keys)]
    # A file has tied weights once, and safetensors refuses two tensors of one memory.
    own = {keys: tensors[keys].detach().clone() for keys in chosen}
    return own, _skipped(len(tensors) - len(chosen), len(leaves) - len(tensors))


def _leaves(value: object, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*keys, str(key)))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _leaves(inner, (*keys, str(number)))
    else:
        yield keys, value


def _read_folder(path: Path) -> _Tensors:
    import torch  # noqa: PLC0415 -- see is_foreign
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415

    from trainer.checkpoint import loading  # noqa: PLC0415

    index = _read_index(path)
    entries = {
        name: entry
        for name, entry in index.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    all_keys = {name: _keys(index, name) for name in entries}
    chosen = [name for name, keys in all_keys.items() if not _is_optimizers(keys)]
    for name in chosen:
        held = sum(prod(chunk.sizes) for chunk in entries[name].chunks)
        if held != entries[name].size.numel():
            raise _error(
                path, f"{held} of {counted(entries[name].size.numel(), 'number')} of {name}"
            )
    _check_files(path, index, {*chosen})
    try:
        tensors = {
            name: torch.empty(entries[name].size, dtype=entries[name].properties.dtype)
            for name in chosen
        }
    except RuntimeError as error:  # more than there is memory, maybe by a torn index
        raise _error(path, short_line(error)) from error
    with loading.damage_is_users(path):
        loading.read_into(path, tensors)
    num_others = len(index.state_dict_metadata) - len(entries)
    named = {all_keys[name]: tensor for name, tensor in tensors.items()}
    return named, _skipped(len(entries) - len(chosen), num_others)


def _read_index(path: Path) -> Metadata:
    from trainer.checkpoint.safe_reader import SafeReader  # noqa: PLC0415 -- see is_foreign

    try:
        return SafeReader(path).read_metadata()
    except Exception as error:  # whatever a damaged pickle raises
        raise _error(path, short_line(error)) from error


def _keys(index: Metadata, name: str) -> tuple[str, ...]:
    """Return the keys by which a tensor lay in nested dictionaries, where the index knows them."""
    keys = (index.planner_data or {}).get(name, (name,))
    return tuple(str(key) for key in keys)


def _is_optimizers(keys: tuple[str, ...]) -> bool:
    return any(_OPTIMIZER.fullmatch(part) for part in ".".join(keys).split("."))


def _check_files(path: Path, index: Metadata, names: Collection[str]) -> None:
    """Raise UserError for a file that is gone, or shorter than what it should hold."""
    for key, place in index.storage_data.items():
        if key.fqn in names:
            file, end = path / place.relative_path, place.offset + place.length
            size = file.stat().st_size if file.is_file() else None
            if size is None:
                raise _error(path, f"no file {file.name}, which has a part of {key.fqn}")
            if size < end:
                raise _error(path, f"{file.name} of {size} bytes, {end} with its part of {key.fqn}")


def _skipped(num_optimizer: int, num_others: int) -> str:
    return (
        f"{counted(num_optimizer, 'tensor')} of an optimizer and {num_others} non-tensors skipped"
    )


def _error(path: Path, found: object) -> UserError:
    return UserError(
        str(path),
        rule="be a whole checkpoint of torch.distributed.checkpoint or torch.save",
        found=found,
        remedy="name another one",
    )
