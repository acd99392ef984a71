"""The device itself, and a process group of one rank over it."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.on_gpu.case import CaseError
from benchmarks.turns import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from benchmarks.on_gpu.case import Place, Values

_MATRIX, _COPIED_BYTES = 8192, 4 << 30
_SMALL = 256


def _device(place: Place) -> torch.device:
    import torch  # noqa: PLC0415 -- the table of cases needs none

    return torch.device("cpu") if place.is_rehearsal else torch.device("cuda", 0)


def machine(place: Place) -> Values:
    """Name the GPU and its software; measure a product of matrices and a copy of its memory."""
    import torch  # noqa: PLC0415 -- the same

    device = _device(place)
    facts: dict[str, object] = {"visible_gpus": torch.cuda.device_count()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call] # torch's gap
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call] # the same
            "driver": _driver(),
        }
    size = _SMALL if place.is_rehearsal else _MATRIX
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    product_s = _time(lambda: left @ right, device)
    source = torch.randn((_SMALL if place.is_rehearsal else _COPIED_BYTES // 4), device=device)
    target = torch.empty_like(source)
    copy_s = _time(lambda: target.copy_(source), device)
    return facts | {
        "bf16_tflop_per_s": round(2 * size**3 / product_s / 1e12, 3),
        "copy_gb_per_s": round(2 * 4 * source.numel() / copy_s / 1e9, 3),
    }


def _driver() -> str:
    import pynvml  # noqa: PLC0415 -- not on a machine without a driver

    pynvml.nvmlInit()
    return str(pynvml.nvmlSystemGetDriverVersion())


def _time(call: Callable[[], object], device: torch.device, num_calls: int = 20) -> float:
    """Return the seconds of one call, the mean of many behind each other."""
    import torch  # noqa: PLC0415 -- the same

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        call()
    wait()
    began_s = time.perf_counter()
    for _ in range(num_calls):
        call()
    wait()
    return (time.perf_counter() - began_s) / num_calls


def nccl(place: Place) -> Values:
    """Open a group as the trainer's ranks do, alone, and send each kind of message."""
    from torch import distributed as dist  # noqa: PLC0415 -- seconds

    from trainer.config import Config  # noqa: PLC0415 -- the same
    from trainer.distributed.rendezvous import open_process_group  # noqa: PLC0415 -- the same
    from trainer.environment import Ranks  # noqa: PLC0415 -- the same
    from trainer.telemetry.flight_recorder import FlightRecorder  # noqa: PLC0415 -- the same

    device = _device(place)
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    began_s = time.perf_counter()
    backend, _ = open_process_group(
        Ranks(master_addr="127.0.0.1", master_port=free_port()), device, os.environ, "here"
    )
    meet_s = time.perf_counter() - began_s
    wanted = "gloo" if place.is_rehearsal else "nccl"
    if backend != wanted:
        raise CaseError(f"the backend must be {wanted}; found {backend}")
    _send(device)
    _wrap(device)
    FlightRecorder(Config(flight_recorder=2000), place.folder, 0, backend).write()
    dumps = [path for path in place.folder.iterdir() if path.stat().st_size]
    if backend == "nccl" and not dumps:
        raise CaseError("the flight recorder must give a dump; found none")
    dist.destroy_process_group()
    return {
        "backend": backend,
        "meet_s": round(meet_s, 3),
        "dump_bytes": sum(path.stat().st_size for path in dumps),
    }


def _send(device: torch.device) -> None:
    """Each comes back as it went, from a group of one."""
    import torch  # noqa: PLC0415 -- the same
    from torch import distributed as dist  # noqa: PLC0415 -- the same

    for where in {device, torch.device("cpu")}:
        sent = torch.randn(1000, device=where)
        got = {name: sent.clone() for name in ("all_reduce", "broadcast", "all_gather")}
        dist.all_reduce(got["all_reduce"])
        dist.broadcast(got["broadcast"], src=0)
        dist.all_gather([got["all_gather"]], sent)
        if where.type == "cuda":
            got["reduce_scatter"] = torch.empty_like(sent)
            dist.reduce_scatter_tensor(got["reduce_scatter"], sent)
        wrong = [name for name, tensor in got.items() if not torch.equal(tensor, sent)]
        if wrong:
            raise CaseError(f"what one rank sends comes back; found otherwise on {where}: {wrong}")


def _wrap(device: torch.device) -> None:
    """DDP and fully_shard over one rank give the gradients that there are without them."""
    import torch  # noqa: PLC0415 -- the same
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 -- the same
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 -- the same
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415 -- the same

    mesh = init_device_mesh(device.type, (1,))
    inputs = torch.randn(8, 16, device=device)

    def gradient(wrap: Callable[..., Any]) -> Tensor:
        torch.manual_seed(1)
        layer = torch.nn.Linear(16, 4).to(device)
        wrap(layer)(inputs).square().mean().backward()
        grad = layer.weight.grad
        assert grad is not None
        return grad.full_tensor() if hasattr(grad, "full_tensor") else grad

    alone = gradient(lambda layer: layer)
    for wrap in (DistributedDataParallel, partial(fully_shard, mesh=mesh)):
        if not torch.allclose(gradient(wrap), alone):
            name = getattr(wrap, "__name__", "fully_shard")
            raise CaseError(f"{name} over one rank must change no gradient; found another one")
