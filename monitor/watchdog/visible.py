"""Which GPU a rank computes on, by what its environment names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.nvml.chosen import bare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitor.logs.sample import Reading

VISIBLE = "CUDA_VISIBLE_DEVICES"
NO_GPU = "no GPU"
UNKNOWN = "GPU unknown"


def word_of(visible: str | None, local_rank: int | None, num_gpus: int) -> str | None:
    """Tell the word that names a rank's GPU: "" without one, None where nobody can tell.

    Args:
        visible: CUDA_VISIBLE_DEVICES, as this rank has it; None: it is not set.
        local_rank: which takes the nth word, beginning again where there are fewer.
        num_gpus: that the monitor sees. It began with local rank 0: where a cgroup gives each rank
            a GPU of its own it sees but one, and the `0` of any other rank is not that one.

    """
    if visible is None:
        return "" if local_rank is None or not num_gpus else str(local_rank)
    words = [word.strip() for word in visible.split(",") if word.strip()]
    if not words:
        return ""
    if len(words) == 1:
        is_told = local_rank == 0 or num_gpus > 1 or not words[0].isdecimal()
        return words[0] if is_told else None
    return None if local_rank is None else words[local_rank % len(words)]


def gpu_of(
    env: Mapping[str, str], local_rank: int | None, reading: Reading | None
) -> tuple[str, int | None]:
    """Name the GPU of a rank, and its index in `reading`, if it is known there."""
    gpus = reading.gpus if reading else ()
    found = {str(gpu.index) for gpu in gpus if gpu.index is not None}
    word = word_of(env.get(VISIBLE), local_rank, len(found))
    if not word:
        return UNKNOWN if word is None else NO_GPU, None
    return f"GPU {word}", int(word) if word in found else _index_of(word, reading)


def _index_of(uuid: str, reading: Reading | None) -> int | None:
    """Find the index of a GPU that (the beginning of) its UUID or a MIG device's names."""
    wanted = bare(uuid)
    for key, value in reading.facts if reading else ():
        word, _, number = key.partition(" ")
        index = number.partition(".")[0]  # `mig 0.1` is a device of GPU 0
        if word in ("gpu", "mig") and index.isdecimal() and value.startswith(wanted):
            return int(index)
    return None
