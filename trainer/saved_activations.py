"""How much memory a forward keeps for its backward, measured as it is kept and let go."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from torch.autograd.graph import saved_tensors_hooks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn


def storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the bytes of each storage behind `tensors`, by its identity: views count once.

    Of a DTensor this rank's part is meant.
    """
    found: dict[int, int] = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        try:
            storage = local.untyped_storage()
        except NotImplementedError:  # sparse, and others without one
            continue
        found[storage._cdata] = storage.nbytes()  # noqa: SLF001 -- an address would be used again
    return found


class SavedActivations:
    """What autograd keeps in here, the model's own parameters and buffers left out."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._own: set[int] = set()
        self._num_holders: dict[int, int] = {}
        self._bytes = 0
        self.peak_bytes = 0
        """The most that was kept at once."""

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Watch this thread's forwards and backwards."""
        # When a module begins, as fully_shard gathers its parameters just before that.
        hooks = [
            module.register_forward_pre_hook(self._leave_out)
            for module in self._model.modules()
            if any(True for _ in (*module.parameters(False), *module.buffers(False)))
        ]
        try:
            with saved_tensors_hooks(lambda t: _Saved(t, self), lambda saved: saved.tensor):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _leave_out(self, module: nn.Module, _inputs: object) -> None:
        self._own.update(storages((*module.parameters(False), *module.buffers(False))))

    def add(self, key: int, num_bytes: int) -> None:
        """A storage is kept, perhaps once more."""
        self._num_holders[key] = self._num_holders.get(key, 0) + 1
        if self._num_holders[key] == 1 and key not in self._own:
            self._bytes += num_bytes
            self.peak_bytes = max(self.peak_bytes, self._bytes)

    def remove(self, key: int, num_bytes: int) -> None:
        """One holder has let go."""
        self._num_holders[key] -= 1
        if self._num_holders[key] == 0 and key not in self._own:
            self._bytes -= num_bytes


class _Saved:
    """A tensor as autograd holds it; when that lets go, this ends."""

    def __init__(self, tensor: Tensor, kept: SavedActivations) -> None:
        self.tensor = tensor
        self._kept = kept
        self._storages = storages([tensor])
        for key, num_bytes in self._storages.items():
            kept.add(key, num_bytes)

    def __del__(self) -> None:
        for key, num_bytes in self._storages.items():
            self._kept.remove(key, num_bytes)
