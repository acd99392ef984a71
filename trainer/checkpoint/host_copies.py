"""What a rank writes of a checkpoint: its share of the tensors, and copies of it in host memory.

The copies are made while the training waits, and written while it goes on. Of what several ranks
hold, one writes it: torch's writer has the same rule, but applies it after all of it is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trainer.checkpoint.shards import divide, num_local_bytes, part_of
from trainer.distributed import host_memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Size, Tensor

    from trainer.checkpoint.process_group import ProcessGroup
    from trainer.distributed.mesh import Mesh

_NO_MEMORY = ("out of memory", "allocate memory")
"""In messages of CUDA's, for pinned memory and the GPU's, and of torch's own allocator on the
CPU."""

_USABLE_SHARE = 0.9
"""Of the memory that is free, which is an estimate of the system's."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is that there is no memory, after which all else goes on.

    Not so one of the GPU itself, such as a failed assertion in a kernel: nothing works after it.
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _NO_MEMORY)


def num_host_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return what copies on the host take; torch pins blocks of powers of two."""
    sizes = {name: num_local_bytes(tensor) for name, tensor in tensors.items()}
    return sum(
        1 << (size - 1).bit_length() if size and tensors[name].device.type == "cuda" else size
        for name, size in sizes.items()
    )


def missing_memory(
    nodes: Sequence[str],
    needed: Sequence[int],
    free: Sequence[int],
    *,
    remedy: str = "give the job more, as by --mem, or take --checkpoint-mode sync",
) -> str:
    """Name the first node on which the copies do not fit, or return nothing.

    Of every rank: its node, the bytes of its copies, and those that its host or cgroup has left.
    The system kills a process that takes too much, and lets it take that first.
    """
    for node in dict.fromkeys(nodes):
        ranks = [rank for rank, name in enumerate(nodes) if name == node]
        wanted, left = sum(needed[r] for r in ranks), min(free[r] for r in ranks)
        if wanted > left * _USABLE_SHARE:
            return (
                f"no memory for copies on {node or 'this host'} ({wanted / 2**30:.1f} GiB needed, "
                f"ranks: {len(ranks)}; {left / 2**30:.1f} GiB free; {remedy})"
            )
    return ""


class HostCopies:
    """Buffers that are allocated once and used again.

    A first touch of memory costs a page fault for every 4 KiB, which takes longer than the copy.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] | None = None

    def take_together(
        self, tensors: Mapping[str, Tensor], group: ProcessGroup, nodes: Sequence[str]
    ) -> tuple[dict[str, Tensor] | None, str]:
        """Copy; return None, on all ranks, and why, if one of them has no room.

        Any other error is raised, such as a kernel that has failed on the GPU.
        """
        copies, problem = None, ""
        if self._buffers is None:  # all is allocated now
            needed_free = group.gather((num_host_bytes(tensors), host_memory.num_free_bytes()))
            problem = missing_memory(nodes, *zip(*needed_free, strict=True))
        if not problem:
            try:
                copies = self.take(tensors)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                first = next(iter(str(error).splitlines()), type(error).__name__)
                problem = f"no memory for copies on the host of rank {group.rank} ({first})"
            problem = group.first_problem(problem)
        if problem:
            copies = self._buffers = None  # what there was room for is free again
        return copies, problem

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy `tensors`, and return the copies. They are overwritten by the next call.

        Raises what `is_out_of_memory` knows where the host has no room for them.
        """
        with torch.no_grad():
            copies = {name: self._copy(name, tensor) for name, tensor in tensors.items()}
        self._buffers = copies  # what is no longer asked for is freed
        if any(tensor.device.type == "cuda" for tensor in tensors.values()):
            torch.cuda.current_stream().synchronize()  # the copies to pinned memory run behind
        return copies

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        buffer = (self._buffers or {}).get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = _like(tensor)
        return buffer.copy_(tensor, non_blocking=True)


def _like(tensor: Tensor) -> Tensor:
    """Return memory on the host, of the same strides, so that a copy is one sweep.

    Pinned, so that a GPU can write it by itself, where as much can be pinned.
    """
    if tensor.device.type == "cuda":
        try:
            return torch.empty_like(tensor, device="cpu", pin_memory=True)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
    return torch.empty_like(tensor, device="cpu")


class SavePlan:
    """This rank's part of the checkpoints; all ranks hold the same kind."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._shapes: dict[str, Size] = {}
        """What the plan was made for."""
        self._own: set[str] = set()
        self.num_bytes = 0
        """Of a whole checkpoint, all ranks' parts together."""

    def own(self, tensors: Mapping[str, Tensor], group: ProcessGroup) -> dict[str, Tensor]:
        """Return those of `tensors` that this rank writes.

        All ranks call this. They exchange what they hold the first time, and when it changes.
        """
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        (has_changed,) = self._mesh.max([shapes != self._shapes])
        if has_changed:
            held = group.gather(
                {part_of(name, t): num_local_bytes(t) for name, t in tensors.items()}
            )
            shares = divide(held)
            self._shapes = shapes
            self._own = {name for name, _ in shares[group.rank]}
            self.num_bytes = sum(held[rank][p] for rank, own in enumerate(shares) for p in own)
        return {name: tensor for name, tensor in tensors.items() if name in self._own}
