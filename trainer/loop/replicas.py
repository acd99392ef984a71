"""Whether the copies of a model are still copies, to the bit.

Data-parallel copies get the same gradients and make the same updates, so a copy whose weights
differ was hit by a fault of its GPU, its memory or its network card, which nothing else reports.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trainer.checkpoint.shards import hash_of
from trainer.distributed.device import uuid_of
from trainer.errors import RunFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from trainer.distributed.mesh import Mesh
    from trainer.parallel.layout import Layout
    from trainer.telemetry.events import EventLog


def check_replicas(model: nn.Module, mesh: Mesh, events: EventLog, step: int) -> None:
    """Compare the weights of each copy with its peers'; all ranks call it together.

    Raises RunFailedError on the ranks that differ; the others wait for them, and lose them.
    """
    own = hash_of([parameter.data for parameter in model.parameters()])
    different = odd_ranks(mesh.gather(own), mesh.layout)
    if not different:
        return
    rank = mesh.ranks.rank
    if rank not in different:
        mesh.barrier()  # ends with the ranks that raise: the run's failure is theirs
    node, gpu = mesh.nodes[rank], uuid_of(mesh.device)
    events.write("replica_differs", step=step, rank=rank, node=node, gpu=gpu)
    place = f"rank {rank}" + (f" on {node}" if node else "") + (f", GPU {gpu}" if gpu else "")
    raise RunFailedError.of(
        "the weights of data-parallel copies",
        rule="be the same to the bit",
        found=f"others on {place} at step {step}",
        remedy="test the memory and the GPU there; nothing was saved from this step",
    )


def odd_ranks(hashes: Sequence[object], layout: Layout) -> list[int]:
    """Return the ranks whose hash is not that of most copies of the same part; of two, both."""
    copies: dict[tuple[int, ...], list[int]] = {}
    for rank in range(layout.world_size):
        at = layout.coordinates(rank) | {"dp_replicate": 0}
        copies.setdefault(tuple(at.values()), []).append(rank)
    odd = []
    for ranks in copies.values():
        (common, count), *_ = Counter(hashes[rank] for rank in ranks).most_common()
        has_majority = 2 * count > len(ranks)
        odd += [rank for rank in ranks if not has_majority or hashes[rank] != common]
    return sorted(odd)
