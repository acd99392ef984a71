"""Which GPUs of a node are the job's, where NVML shows it those of other jobs, too.

A device cgroup hides the others from NVML; without one (Slurm's `ConstrainDevices=no`) only
CUDA_VISIBLE_DEVICES says. Rows of a neighbour's GPU would be idle time, energy and errors of
somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rundir.gpus import UUIDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from monitor.nvml.gpu import Gpu


@dataclass(frozen=True, slots=True)
class Named:
    """What names the job's GPUs, as one of its ranks has it."""

    visible: str | None = None
    """CUDA_VISIBLE_DEVICES."""
    num_least: int = 1
    """How many GPUs the job has on this node at least: fewer words are one rank's own."""

    def among(self, num_gpus: int) -> frozenset[str] | None:
        """Return the words that name the job's GPUs; None where nothing does: all of them."""
        words = [word.strip() for word in (self.visible or "").split(",") if word.strip()]
        is_all = len(words) >= max(1, self.num_least)
        if not is_all or not all(_is_name(word, num_gpus) for word in words):
            return None
        return frozenset(words)


ALL = Named()
"""Nothing names any: all that NVML shows."""


def _is_name(word: str, num_gpus: int) -> bool:
    """Whether it is a UUID, or an index that there is: any other is of another numbering."""
    return int(word) < num_gpus if word.isdecimal() else word.startswith(UUIDS)


def keep(gpus: Sequence[Gpu], wanted: Collection[str]) -> list[Gpu]:
    """Keep the GPUs that are named; all, if none is.

    A lost one reports no UUID: it is kept where a name is left over.
    """
    found = {gpu.index: _matches(gpu, wanted) for gpu in gpus}
    is_missing = len(set().union(*found.values())) < len(wanted)
    kept = [gpu for gpu in gpus if found[gpu.index] or (is_missing and gpu.uuid is None)]
    return kept if any(found.values()) else list(gpus)


def _matches(gpu: Gpu, wanted: Iterable[str]) -> set[str]:
    """Return which words name this GPU: its index, its UUID, or one of its MIG devices."""
    uuids = [gpu.uuid] if gpu.uuid else []
    if gpu.mig is not None:
        uuids += [uuid for _, uuid in gpu.mig.facts()]
    return {
        word
        for word in wanted
        if word == str(gpu.index) or any(uuid.startswith(bare(word)) for uuid in uuids)
    }


def bare(word: str) -> str:
    """Before driver 470 a MIG device was MIG-GPU-<its GPU's UUID>/<instance>/<instance>."""
    return word.removeprefix("MIG-").partition("/")[0] if word.startswith("MIG-GPU-") else word
