"""Begins as one of many ranks with a model that this process could not hold whole.

Run as `python -m tests.trainer.large_start MODEL RANKS SPARE_MIB OPTIONS...`. The other ranks are
not there: torch's fake process group answers for them at once, and with nothing. That is enough for
what a rank builds before the first step.
"""

import re
import resource
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

from trainer.distributed.mesh import Mesh, _open_axes
from trainer.environment import Ranks
from trainer.loop.model import build_model
from trainer.options import parse
from trainer.parallel.layout import plan_layout
from trainer.workloads.registry import build_workload


def main(model: str, world_size: int, spare_mib: int, options: list[str]) -> None:
    """Build it under the limit; print how many bytes of parameters this rank has, and all have."""
    config = parse(["--workload", "lm", "--model", model, "--mock-tokens", "100000", *options])
    ranks = Ranks(world_size=world_size, local_world_size=world_size)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    workload = build_workload(config)
    layout = plan_layout(config, ranks)
    device = torch.device("cpu")
    mesh = Mesh(
        ranks=ranks,
        device=device,
        backend="gloo",
        num_threads=1,
        nodes=("",) * world_size,
        layout=layout,
        device_mesh=_open_axes(layout, device),
    )
    limit = _data_bytes() + (spare_mib << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    trained = build_model(config, workload, mesh, seed=1)
    own = sum(p.to_local().nbytes for p in trained.model.parameters())  # type: ignore[operator]
    print(own, 4 * trained.num_parameters)


def _data_bytes() -> int:
    """What the kernel counts for the limit: memory of this process that can be written."""
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
