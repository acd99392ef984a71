"""Which GPU a rank computes on: by the UUID in its heartbeat, else by its environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.nvml.chosen import bare
from rundir import gpus
from rundir.hang.reports import NO_GPU

if TYPE_CHECKING:
    from collections.abc import Mapping

    from monitor.logs.sample import Reading

VISIBLE = "CUDA_VISIBLE_DEVICES"
UNKNOWN = "GPU unknown"


def gpu_of(
    env: Mapping[str, str], local_rank: int | None, reading: Reading | None, uuid: str | None = None
) -> tuple[str, int | None]:
    """Name the GPU of a rank, and its index in `reading`, if it is known there.

    Args:
        env: the rank's variables.
        local_rank: by which it takes its GPU of those that are visible to it.
        reading: what the monitor sees.
        uuid: of the GPU, in 32 digits, as the rank itself reports it; None: it does not.

    """
    if uuid is not None:
        index = _index_of_uuid(uuid, reading)
        return f"GPU {uuid if index is None else index}", index
    num_gpus = sum(gpu.index is not None for gpu in reading.gpus) if reading else 0
    word = _word_of(env.get(VISIBLE), local_rank, num_gpus)
    if not word:
        return UNKNOWN if word is None else NO_GPU, None
    if not word.isdecimal():
        return f"GPU {word}", _index_of_word(word, reading)
    if reading is None or not num_gpus:
        return f"GPU {word}", None
    if not _counts_as_nvml(env, reading):
        return UNKNOWN, None
    index = _index_of_ordinal(int(word), reading)
    return f"GPU {word if index is None else index}", index


def _word_of(visible: str | None, local_rank: int | None, num_gpus: int) -> str | None:
    """Return the word that names a rank's GPU: "" without one, None where it is unknown.

    The nth word is that of local rank n, beginning again where there are fewer. The monitor began
    with local rank 0: where a cgroup gives each rank a GPU of its own it sees but one, and the `0`
    of any other rank is not that one.
    """
    if visible is None:
        return "" if local_rank is None or not num_gpus else str(local_rank)
    words = gpus.visible(visible)
    if not words:
        return ""
    if len(words) == 1:
        is_known = local_rank == 0 or num_gpus > 1 or not words[0].isdecimal()
        return words[0] if is_known else None
    return None if local_rank is None else words[local_rank % len(words)]


def _counts_as_nvml(env: Mapping[str, str], reading: Reading) -> bool:
    """Whether CUDA's order is NVML's: by bus. By itself it has the fastest first."""
    names = {value.partition(" ")[2] for key, value in reading.facts if key.startswith("gpu ")}
    return len(names) < 2 or env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"  # noqa: PLR2004


def _index_of_ordinal(ordinal: int, reading: Reading) -> int | None:
    """Find NVML's index of CUDA's nth GPU: another one where a cgroup hides those before it."""
    here = sorted(gpu.index for gpu in reading.gpus if gpu.index is not None)
    if reading.is_renumbered:
        return here[ordinal] if ordinal < len(here) else None
    return ordinal if ordinal in here else None


def _index_of_word(word: str, reading: Reading | None) -> int | None:
    """Find the index of a GPU that (the beginning of) its UUID or a MIG device's names."""
    wanted = bare(word)
    return next((i for i, uuid in _uuids(reading) if uuid.startswith(wanted)), None)


def _index_of_uuid(uuid: str, reading: Reading | None) -> int | None:
    for index, word in _uuids(reading):
        wanted = word.removeprefix("MIG-").removeprefix("GPU-").partition("/")[0]
        if wanted.replace("-", "").lower() == uuid:
            return index
    return None


def _uuids(reading: Reading | None) -> list[tuple[int, str]]:
    """Return the UUIDs of all GPUs and MIG devices, with the index of the GPU."""
    found = []
    for key, value in reading.facts if reading else ():
        kind, _, number = key.partition(" ")
        index = number.partition(".")[0]  # `mig 0.1` is a device of GPU 0
        if kind in ("gpu", "mig") and index.isdecimal():
            found.append((int(index), value.partition(" ")[0]))
    return found
