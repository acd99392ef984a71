"""What a rank's memory goes to: expected before the first step, and measured in it.

Expected is arithmetic: a gradient is as large as its parameter, or this rank's shard of it; adam
keeps two numbers for each of a parameter's, sgd one. Measured are the storages behind the tensors,
each once. The largest of all ranks is told. Later steps are not looked at.
"""

from __future__ import annotations

import contextlib
import math
import re
import resource
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.beat import LOG
from trainer.errors import RunFailedError
from trainer.parallel.plan import ForwardPlan
from trainer.parallel.stages import num_stages, passes_kept
from trainer.saved_activations import SavedActivations, storages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from trainer.parts import Parts

_NUM_MOMENTS = {"adamw": 2, "adam": 2, "sgd": 1}
_SMALL_BYTES = 64 << 20
"""A run of which less is expected is told of in one line, and after its first step in the record
alone."""


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes on a rank; None: not known."""

    parameters_bytes: int
    """Buffers, such as tables, are none."""
    gradients_bytes: int
    """At the update: reduced, and with fully_shard this rank's part."""
    optimizer_bytes: int
    activations_bytes: int | None
    """The most that one rank's forwards keep at once."""

    @property
    def known_bytes(self) -> int:
        """All that is known."""
        kept = self.activations_bytes or 0
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes + kept

    def words(self) -> str:
        """Say it in a line."""
        kept = self.activations_bytes
        told = "not known" if kept is None else size_words(kept)
        return (
            f"parameters {size_words(self.parameters_bytes)}, "
            f"gradients {size_words(self.gradients_bytes)}, "
            f"optimizer {size_words(self.optimizer_bytes)}, activations {told}"
        )

    def largest(self, parts: Parts) -> MemoryUse:
        """Return the largest of all ranks, each number by itself. All of them call this."""
        own = [float(-1 if value is None else value) for value in vars(self).values()]
        if parts.mesh.is_distributed:
            parts.beat.meet(LOG)
        most = zip(vars(self), parts.mesh.max(own), strict=True)
        found: dict[str, Any] = {name: None if v < 0 else int(v) for name, v in most}
        return MemoryUse(**found)


class MemoryReport:
    """Tells of an attempt's first step."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._is_told = False
        self._is_small = False
        self._is_expected = False
        self._gradients_bytes = 0
        self._kept: SavedActivations | None = None

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Take the first step in here; what is expected is told before it."""
        if self._is_told:  # the run was rolled back
            yield
            return
        parts = self._parts
        self._tell_expected()
        parts.update.on_gradients = self._see_gradients
        with contextlib.ExitStack() as stack:
            if self._is_expected and self._can_measure_activations():
                self._kept = SavedActivations(parts.model)
                stack.enter_context(self._kept.measuring())
            yield

    def tell_measured(self) -> None:
        """Tell what the first step took. All ranks call this after it."""
        if self._is_told:
            return
        self._is_told = True
        parts = self._parts
        states = parts.update.optimizer.state.values()
        use = MemoryUse(
            parameters_bytes=_bytes_of(parts.model.parameters()),
            gradients_bytes=self._gradients_bytes,
            optimizer_bytes=_bytes_of(
                value for state in states for value in state.values() if _is_tensor(value)
            ),
            activations_bytes=None if self._kept is None else self._kept.peak_bytes,
        ).largest(parts)
        device, peak = parts.mesh.device, None
        if device.type == "cuda":
            peak = int(parts.mesh.max([peak_bytes(device)])[0])
        if parts.mesh.ranks.is_main:
            parts.events.write("memory", what="measured", **vars(use), peak_bytes=peak)
            if not self._is_small:
                told = (
                    "" if peak is None else f"; at most {size_words(peak)} were allocated at once"
                )
                print(f"trainer: memory of a rank, measured:  {use.words()}{told}", flush=True)

    def _tell_expected(self) -> None:
        parts, config = self._parts, self._parts.config
        use = expected(parts).largest(parts)
        self._is_small = use.known_bytes < _SMALL_BYTES
        # With no number to compare with, hooks are a risk for nothing: torch.func forbids them.
        self._is_expected = use.activations_bytes is not None
        if parts.mesh.ranks.is_main:
            where = " (all but activations on the host)" if config.cpu_offload else ""
            parts.events.write("memory", what="expected", **vars(use), on_host=config.cpu_offload)
            print(f"trainer: memory of a rank, expected{where}: {use.words()}", flush=True)

    def _can_measure_activations(self) -> bool:
        """Whether autograd's hooks see all that is kept. On a GPU its allocator tells more."""
        config = self._parts.config
        is_plain = not config.compile and config.activation_checkpointing == "none"
        return is_plain and self._parts.mesh.device.type == "cpu"

    def _see_gradients(self) -> None:
        gradients = (parameter.grad for parameter in self._parts.update.parameters)
        self._gradients_bytes = _bytes_of(g for g in gradients if g is not None)


def expected(parts: Parts) -> MemoryUse:
    """Return what this rank will need, by arithmetic."""
    trained = {id(parameter) for parameter in parts.update.parameters}
    own = {id(p): _own_bytes(p) for p in parts.model.parameters()}
    gradients = sum(num_bytes for key, num_bytes in own.items() if key in trained)
    return MemoryUse(
        parameters_bytes=sum(own.values()),
        gradients_bytes=gradients,
        optimizer_bytes=_NUM_MOMENTS[parts.config.optimizer] * gradients,
        activations_bytes=_expected_activations(parts),
    )


def _expected_activations(parts: Parts) -> int | None:
    layout, config = parts.mesh.layout, parts.config
    pp_rank = layout.coordinates(parts.mesh.ranks.rank)["pp"]
    num_passes = passes_kept(config, layout, pp_rank, parts.plan.num_microbatches)
    # But for gpipe a head's backward follows its forward.
    num_heads = num_passes if config.pp_schedule == "gpipe" or layout.pp == 1 else 1
    return parts.workload.activation_bytes(
        ForwardPlan(
            micro_batch_size=parts.plan.micro_batch_size,
            precision=config.precision,
            recompute=config.activation_checkpointing,
            gathers_half=layout.is_sharded and (layout.dp_size > 1 or config.cpu_offload),
            is_on_gpu=parts.mesh.device.type == "cuda",
            tp=layout.tp,
            cp=layout.cp,
            gathers_keys=config.cp_comm_type == "all_gather",
            sequence_parallel=layout.sequence_parallel,
            num_stages=num_stages(config, layout) if layout.pp > 1 else 1,
            num_passes=num_passes,
            num_heads=num_heads if pp_rank == layout.pp - 1 else 0,
        )
    )


def _own_bytes(parameter: Tensor) -> int:
    """Return the bytes of this rank's share, by the parameter's shape and how it is split.

    Split evenly along each axis and rounded up, as the first rank has it.
    """
    numbers = list(parameter.shape)
    for axis, placed in enumerate(getattr(parameter, "placements", ())):
        if not placed.is_replicate():
            ranks = parameter.device_mesh.size(axis)  # type: ignore[attr-defined] # a DTensor
            numbers[placed.dim] = -(-numbers[placed.dim] // ranks)
    return math.prod(numbers) * parameter.element_size()


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(storages(tensors).values())


def peak_bytes(device: torch.device) -> int:
    """Return the most that this rank has had at once: allocated on its GPU, or resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts KiB


def out_of_memory(error: torch.OutOfMemoryError, rank: int, device: torch.device) -> RunFailedError:
    """Say in a line whose GPU is full, of what, and where it was asked for more."""
    free, total = torch.cuda.mem_get_info(device)
    allocated, reserved = (
        torch.cuda.memory_allocated(device),
        torch.cuda.memory_reserved(device),
    )
    asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    more = f" for {asked[1]}" if asked else ""
    return RunFailedError(
        f"GPU memory of rank {rank}: enough for all that a step needs; "
        f"found out of memory{more}{_asking(error)}, with {size_words(allocated)} allocated, "
        f"{size_words(reserved)} reserved and {size_words(free)} free of {size_words(total)}; "
        "lower --micro-batch-size, or take --activation-checkpointing full, --precision bf16 or "
        "--strategy fsdp"
    )


def _asking(error: BaseException) -> str:
    """Name the last line of code that is not torch's."""
    torch_itself = str(Path(torch.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(torch_itself)]
    return f" in {own[-1].filename}:{own[-1].lineno}" if own else ""


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def size_words(num_bytes: float) -> str:
    """Say a size, such as 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1000:  # noqa: PLR2004 -- three digits at most
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} GiB" if num_bytes < 1000 else f"{num_bytes:,.0f} GiB"  # noqa: PLR2004 -- the same
