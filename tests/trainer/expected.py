"""Prints what runs expect of a GPU's memory that is not here, in bytes, a line each.

Run as `python -m tests.trainer.expected JSON`, a list of [number of ranks, options]. Models have no
values, and torch's fake process group answers for the other ranks.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

from trainer.__main__ import plan_shares
from trainer.distributed.mesh import Mesh, _open_axes
from trainer.environment import Ranks
from trainer.loop.expected_memory import Demand
from trainer.options import parse
from trainer.parallel.parallelize import parallelize, share_of_rank
from trainer.workloads.registry import build_workload


def expected(world_size: int, options: list[str]) -> int:
    """Build what rank 0 would have; return all that is known of what it needs."""
    config = parse(options)
    workload = build_workload(config)
    ranks = Ranks(world_size=world_size, local_world_size=min(world_size, 8))
    layout, batches = plan_shares(config, ranks, workload)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    axes = _open_axes(layout, torch.device("cpu")) if layout.is_sharded else None
    plan = workload.parallel_plan()
    share = share_of_rank(workload.build_empty() or workload.build_model(), plan, layout, 0, config)
    if layout.is_sharded:
        parallelize(share, plan, layout, axes, torch.device("cpu"), config)
    update = SimpleNamespace(parameters=list(share.model.parameters()))
    trained: Any = SimpleNamespace(model=share.model, stages=share.stages, update=update)
    mesh = Mesh(
        ranks=ranks, device=torch.device("cuda"), backend="nccl", num_threads=1, layout=layout
    )
    demand = Demand(
        config=config,
        mesh=mesh,
        plan=batches,
        workload=workload,
        trained=trained,
    )
    use, least = demand.use(), demand.least_bytes()
    assert least <= use.known_bytes
    distributed.destroy_process_group()
    return use.known_bytes


if __name__ == "__main__":
    for world_size, options in json.loads(sys.argv[1]):
        print(expected(world_size, options), flush=True)
