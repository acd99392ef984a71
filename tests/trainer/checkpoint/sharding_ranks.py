"""A rank that saves, by torch's functions, a model cut as FSDP and tensor parallelism cut it."""

import os
import sys

import torch
from torch import distributed
from torch.distributed.checkpoint import FileSystemWriter, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
rows = torch.arange(15.0).view(5, 3).bfloat16()
columns = torch.arange(10.0).view(2, 5)
model = {
    "layers.0.rows": distribute_tensor(rows, mesh, [Shard(0)]),  # of three and of two rows
    "layers.0.columns": distribute_tensor(columns, mesh, [Shard(1)]),
    "norm": torch.tensor(7, dtype=torch.int8),
}
optimizer = {"state": {"norm": {"exp_avg": torch.ones(1)}}, "param_groups": [{"lr": 0.1}]}
state = {"model": model, "optim": optimizer, "loader": {"epoch": 3}}
save(state, storage_writer=FileSystemWriter(sys.argv[1]))
distributed.destroy_process_group()
os._exit(0)  # torch's threads now and then abort a process that ends by itself
