"""A rank of test_shares.py: an asynchronous save of tensors that ranks have in common."""

import json
import traceback
from pathlib import Path

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from tests.trainer.saved import CPU, open_folder, state_at
from trainer.checkpoint.host_copies import HostCopies
from trainer.checkpoint.shards import num_local_bytes
from trainer.distributed.mesh import Mesh
from trainer.environment import Ranks
from trainer.parallel.layout import Layout

NUM_RANKS = 4
WHOLE = {f"model/{i}": torch.full((256,), float(i)) for i in range(8)}
SPLIT = {f"model/split/{i}": torch.arange(512.0) + i for i in range(4)}


def save(rank: int, port: int, folder: Path) -> None:
    """Save twice; write down how much was copied to the host each time, or what went wrong."""
    try:
        address = f"tcp://127.0.0.1:{port}"
        distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=NUM_RANKS)
        copied = _record_copies()
        checkpoints = open_folder(folder, mesh=_mesh(rank))
        for step in (1, 2):
            checkpoints.save(_tensors(rank, step), state_at(step), is_best=False)
            assert checkpoints.wait(), checkpoints.failure
        (folder / f"{rank}.json").write_text(json.dumps(copied))
        distributed.barrier()
    except Exception:
        (folder / f"{rank}.txt").write_text(traceback.format_exc())
        raise


def _tensors(rank: int, step: int) -> dict[str, Tensor]:
    """Copies on all ranks, shards on half of them, one of this rank alone, a buffer of rank 0's."""
    axes = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    tensors = {name: tensor * step for name, tensor in WHOLE.items()}
    for name, tensor in SPLIT.items():
        tensors[name] = distribute_tensor(tensor * step, axes, [Replicate(), Shard(0)])
    if rank == 0:
        tensors = {"model/buffer": torch.ones(3)} | tensors
    return tensors | {f"rank/{rank}/loss_sum": torch.tensor(float(rank))}


def _mesh(rank: int) -> Mesh:
    return Mesh(
        ranks=Ranks(rank=rank, local_rank=rank, world_size=NUM_RANKS, local_world_size=NUM_RANKS),
        device=CPU,
        backend="gloo",
        num_threads=1,
        nodes=("node",) * NUM_RANKS,
        layout=Layout(dp_replicate=2, dp_shard=2),
    )


def _record_copies() -> list[int]:
    sizes: list[int] = []
    take = HostCopies.take

    def taking(self: HostCopies, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes.append(sum(map(num_local_bytes, tensors.values())))
        return take(self, tensors)

    HostCopies.take = taking
    return sizes
