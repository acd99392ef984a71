"""What a rank's memory goes to: expected before the first step, and measured in it.

Expected is arithmetic (expected_memory.py). Measured are the storages behind the tensors, each
once. The largest of all ranks is reported. Later steps are not measured.
"""

from __future__ import annotations

import contextlib
import re
import resource
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import saved_tensors_hooks

from trainer.errors import RunFailedError
from trainer.loop.expected_memory import MemoryUse, size_text
from trainer.telemetry.heartbeat import LOG

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn

    from trainer.loop.components import Components

_SMALL_BYTES = 64 << 20
"""A run of which less is expected gets one line, and its measurement goes to the record alone."""


class MemoryReport:
    """Reports the memory of an attempt's first step."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._is_small = False
        self._gradients_bytes = 0
        self._kept: SavedActivations | None = None

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Take the first step in here; what is expected is reported before it."""
        components, config = self._components, self._components.config
        is_expected = self._report_expected().activations_bytes is not None
        components.trained.update.on_gradients = self._see_gradients
        # Autograd's hooks see all that a plain forward keeps; on a GPU its allocator knows more.
        # With no number to compare with, they are a risk for nothing: torch.func forbids them.
        is_plain = not config.compile and config.activation_checkpointing == "none"
        if is_expected and is_plain and components.mesh.device.type == "cpu":
            self._kept = SavedActivations(components.trained.model)
        with self._kept.measuring() if self._kept else contextlib.nullcontext():
            yield

    def report_measured(self) -> None:
        """Report what the first step took. All ranks call this after it."""
        components = self._components
        states = components.trained.update.optimizer.state.values()
        use = MemoryUse(
            parameters_bytes=_bytes_of(components.trained.model.parameters()),
            gradients_bytes=self._gradients_bytes,
            optimizer_bytes=_bytes_of(
                v for state in states for v in state.values() if isinstance(v, torch.Tensor)
            ),
            activations_bytes=None if self._kept is None else self._kept.peak_bytes,
        )
        use = self._largest(use)
        device, peak = components.mesh.device, None
        if device.type == "cuda":
            peak = int(components.mesh.max([peak_bytes(device)])[0])
        if components.mesh.ranks.is_main:
            components.events.write("memory", what="measured", **vars(use), peak_bytes=peak)
            if not self._is_small:
                peak_text = (
                    "" if peak is None else f"; at most {size_text(peak)} were allocated at once"
                )
                print(f"trainer: memory of a rank, measured:  {use.text()}{peak_text}", flush=True)

    def _report_expected(self) -> MemoryUse:
        components, config = self._components, self._components.config
        use = self._largest(components.demand.use())
        self._is_small = use.known_bytes < _SMALL_BYTES
        if components.mesh.ranks.is_main:
            where = " (all but activations on the host)" if config.cpu_offload else ""
            components.events.write(
                "memory", what="expected", **vars(use), on_host=config.cpu_offload
            )
            print(f"trainer: memory of a rank, expected{where}: {use.text()}", flush=True)
        return use

    def _largest(self, use: MemoryUse) -> MemoryUse:
        if self._components.mesh.is_distributed:
            self._components.heartbeat.collective(LOG)
        return use.largest(self._components.mesh)

    def _see_gradients(self) -> None:
        gradients = (parameter.grad for parameter in self._components.trained.update.parameters)
        self._gradients_bytes = _bytes_of(g for g in gradients if g is not None)


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(storages(tensors).values())


def peak_bytes(device: torch.device) -> int:
    """Return the most that this rank has had at once: allocated on its GPU, or resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts KiB


def out_of_memory(error: torch.OutOfMemoryError, rank: int, device: torch.device) -> RunFailedError:
    """Name in a line the GPU that is full, what fills it, and the code that asked for more."""
    free, total = torch.cuda.mem_get_info(device)
    allocated, reserved = (
        torch.cuda.memory_allocated(device),
        torch.cuda.memory_reserved(device),
    )
    asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    more = asked[1] if asked else "more"
    return RunFailedError.of(
        f"rank {rank}",
        rule="fit in its GPU's memory",
        found=f"no room for {more} (out of memory){_asking(error)}, "
        f"with {size_text(allocated)} allocated, "
        f"{size_text(reserved)} reserved and {size_text(free)} free of {size_text(total)}",
        remedy="lower --micro-batch-size, or take --activation-checkpointing full, "
        "--precision bf16 or --strategy fsdp",
    )


def _asking(error: BaseException) -> str:
    """Name the last line of code that is not torch's."""
    torch_itself = str(Path(torch.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(torch_itself)]
    return f" in {own[-1].filename}:{own[-1].lineno}" if own else ""


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
