"""The weights that --init-from begins with: of a checkpoint, a file, or a Hugging Face folder.

A run that begins with another one's weights is a new run: it begins at step 0, with an optimizer of
its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors import safe_open

from rundir.text import counted
from trainer.checkpoint import loading
from trainer.checkpoint.lookup import SAFETENSORS, find
from trainer.checkpoint.tensor_names import MODEL
from trainer.errors import UserError, short_line
from trainer.parallel.initialise import keep_own_part
from trainer.workloads.llama_hf import StoredWeights, is_hugging_face, read_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor, nn

_NUM_NAMED = 3
"""Of the tensors that do not fit, so many are named."""


def check_weights(source: Path, model: nn.Module) -> None:
    """Raise UserError unless `source` has the weights of `model`, by names, shapes and kinds."""
    _opened(source, model.state_dict(), {})


def begin_with(source: Path, model: nn.Module, elsewhere: Mapping[str, torch.Size]) -> None:
    """Give `model`, as it is parallelized, the weights in `source`.

    `elsewhere` is what only other ranks have. Raises UserError, on all ranks alike, where names or
    shapes are others; and on a rank that cannot read what it needs.
    """
    own = model.state_dict()
    weights = _opened(source, own, elsewhere)
    tensors = {name: torch.empty_like(tensor, device="cpu") for name, tensor in own.items()}
    weights.fill(tensors)
    _check_tied(source, model, tensors)
    model.load_state_dict(tensors)


def _opened(
    source: Path, own: Mapping[str, Tensor], elsewhere: Mapping[str, torch.Size]
) -> _File | _Folder | _Checkpoint:
    kind: type[_File | _Folder | _Checkpoint]
    kind = _File if source.is_file() else _Folder if is_hugging_face(source) else _Checkpoint
    weights = kind(source)
    _check(source, weights.shapes, {**{k: t.shape for k, t in own.items()}, **elsewhere})
    _check_kinds(source, weights.kinds, own)
    return weights


def _check(source: Path, found: Mapping[str, torch.Size], wanted: Mapping[str, torch.Size]) -> None:
    rule = "the weights of this --workload and --model"
    remedy = "give the --model that they are of, or other weights"
    missing, surplus = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    for names, word in ((missing, "missing"), (surplus, "too many")):
        if names:
            first = ", ".join(sorted(names)[:_NUM_NAMED])
            number = counted(len(names), "tensor")
            raise _error(source, rule, f"{number} {word}, such as {first}", remedy)
    for name, shape in wanted.items():
        if found[name] != shape:
            found_shape = f"{name} of shape {tuple(found[name])} in place of {tuple(shape)}"
            raise _error(source, rule, found_shape, remedy)


def _check_kinds(source: Path, found: Mapping[str, torch.dtype], own: Mapping[str, Tensor]) -> None:
    """Refuse what a copy would make something else of; fractions are of any number of bits."""
    for name, tensor in own.items():
        kinds = [(d.is_floating_point, d.is_complex) for d in (found[name], tensor.dtype)]
        if kinds[0] != kinds[1]:
            text = f"{name} of {found[name]} in place of {tensor.dtype}"
            raise _error(source, "numbers of the model's kind", text, "convert it, or name another")


def _check_tied(source: Path, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse two values for what is one parameter by two names."""
    first: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        one = first.setdefault(parameter, name)
        # This rank's parts: they have the same layout, and comparing them sends nothing.
        parts = [getattr(tensors[n], "_local_tensor", tensors[n]) for n in (one, name)]
        if not torch.equal(*parts):
            text = f"{one} and {name} that differ"
            rule = "weights of this --model, in which these are one"
            raise _error(source, rule, text, "give the --model that they are of")


class _Checkpoint:
    """One of ours: each rank reads its own shards."""

    def __init__(self, source: Path) -> None:
        self._path = find(source)
        with loading.damage_is_users(f"--init-from {self._path}"):
            loading.verify(self._path)
            entries = loading.read_index(self._path).entries
        own = {name: entry for name, entry in entries.items() if name.startswith(MODEL)}
        self.shapes = {name.removeprefix(MODEL): shape for name, (shape, _) in own.items()}
        self.kinds = {name.removeprefix(MODEL): dtype for name, (_, dtype) in own.items()}

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Read each of `tensors`, laid out as this rank's, by its name."""
        with loading.damage_is_users(f"--init-from {self._path}"):
            loading.read_into(self._path, {MODEL + name: t for name, t in tensors.items()})


class _Folder:
    """A Llama in Hugging Face's layout, read one weight after the other."""

    def __init__(self, source: Path) -> None:
        self._stored = StoredWeights(source, read_shape(source))
        self.shapes = self._stored.shapes
        self.kinds = dict.fromkeys(self.shapes, torch.float32)

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            keep_own_part(self._stored(name), tensor)


class _File:
    """A state dict in safetensors' form or torch's; ours of `trainer.export` has it as `model`.

    One tensor after the other is read, so that no more than the largest is held besides.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self.shapes: dict[str, torch.Size] = {}
        self.kinds: dict[str, torch.dtype] = {}
        for name, tensor in self._tensors():
            if tensor.is_meta:
                raise _error(source, "a state dict with values", f"{name} without", "save them")
            self.shapes[name], self.kinds[name] = tensor.shape, tensor.dtype

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in self._tensors():
            if name in tensors:  # else it is of another stage of a pipeline
                keep_own_part(tensor, tensors[name])

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        try:
            if self._source.suffix == SAFETENSORS:
                with safe_open(self._source, "pt") as file:
                    for name in file.keys():  # noqa: SIM118 -- it is no mapping
                        yield name, file.get_tensor(name)
                return
            # A page is read when it is copied from; only tensors and plain values are let in.
            whole = torch.load(self._source, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # whatever a file of something else makes of its reader
            raise _error(
                self._source, "a state dict", short_line(error), "name another file"
            ) from error
        weights = whole.get("model", whole) if isinstance(whole, dict) else {}
        weights = weights if isinstance(weights, dict) else {}
        yield from ((k, v) for k, v in weights.items() if isinstance(v, torch.Tensor))


def _error(source: Path, rule: str, found: object, remedy: str) -> UserError:
    return UserError(f"--init-from {source}", rule=f"be {rule}", found=found, remedy=remedy)
