"""A workload whose import lets this process take the CPU for a GPU.

All that the trainer asks torch.cuda is answered, and what is put on a GPU lies on the CPU. So every
line that a first run on GPUs executes is executed here, kernels and the driver aside; what mixes
devices is not seen. For processes of their own: nothing is put back.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils import data

from trainer.checkpoint import saving
from trainer.workloads.language import Language
from trainer.workloads.mnist import Mnist


def _is_gpu(value: object) -> bool:
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return isinstance(value, torch.device) and value.type == "cuda"


def _check_own_device() -> None:
    own = int(os.environ.get("LOCAL_RANK", "0"))
    assert torch.cuda.current_device() == own, "at work on another rank's GPU"


class _OnTheCpu(TorchFunctionMode):
    """Puts on the CPU what is to be put on a GPU; pins nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = {k: "cpu" if _is_gpu(v) else v for k, v in (kwargs or {}).items()}
        if named.get("pin_memory"):
            named["pin_memory"] = False
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is not torch.device:
            args = tuple("cpu" if _is_gpu(value) else value for value in args)
        return func(*args, **named)


class _Stream:
    """Of this process's own GPU, as one without an index means."""

    device_type = "cuda"

    def __init__(self) -> None:
        _check_own_device()
        assert threading.current_thread() is threading.main_thread(), "a stream of another thread"

    def synchronize(self) -> None:
        """Nothing runs behind."""

    def wait_stream(self, _other: _Stream) -> None:
        """The same."""

    def is_capturing(self) -> bool:
        """No graph is made."""
        return False


class _Event:
    def __init__(self, *, enable_timing: bool = False) -> None:
        self.can_time = enable_timing

    def record(self, stream: object = None) -> None:
        """Nothing runs behind."""

    def synchronize(self) -> None:
        """The same."""

    def elapsed_time(self, _end: _Event) -> float:
        """A millisecond."""
        assert self.can_time
        return 1.0


def _answers(num_gpus: int) -> dict[str, Any]:
    current = threading.local()  # a thread's own, as CUDA has it
    is_full = os.environ.get("FULL_RANK") == os.environ.get("RANK", "0")
    num_free_bytes = int(os.environ.get("FREE_BYTES", str(1 << 28))) if is_full else 1 << 30
    properties = {
        i: SimpleNamespace(
            uuid=uuid.UUID(int=i + 1),
            pci_domain_id=0,
            pci_bus_id=i,
            pci_device_id=0,
            total_memory=80 << 30,
            name="Pretended",
        )
        for i in range(num_gpus)
    }

    def place(device: Any = None) -> int:
        if device is None:
            return getattr(current, "index", 0)
        index: int | None = device if isinstance(device, int) else torch.device(device).index
        return place() if index is None else index

    def set_device(device: Any) -> None:
        assert place(device) < num_gpus
        current.index = place(device)

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: num_gpus,
        "set_device": set_device,
        "current_device": place,
        "get_device_properties": lambda device=None: properties[place(device)],
        "get_device_name": lambda device=None: properties[place(device)].name,
        "get_device_capability": lambda _device=None: (9, 0),
        "is_bf16_supported": lambda *_args, **_named: True,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda _device=None: None,
        "current_stream": lambda _device=None: _Stream(),
        "default_stream": lambda _device=None: _Stream(),
        "stream": lambda _stream: contextlib.nullcontext(),
        "device": lambda _device: contextlib.nullcontext(),
        "Stream": lambda *_args, **_named: _Stream(),
        "Event": _Event,
        "max_memory_allocated": lambda device=None: (1 << 20) + place(device),
        "memory_allocated": lambda device=None: (1 << 20) + place(device),
        "memory_reserved": lambda device=None: (1 << 21) + place(device),
        "mem_get_info": lambda _device=None: (num_free_bytes, 80 << 30),
        "get_rng_state": lambda _device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, _device=None: torch.set_rng_state(state),
        "manual_seed_all": lambda _seed: None,
        "manual_seed": lambda _seed: None,
    }


def pretend(num_gpus: int) -> None:
    """Have so many GPUs from now on."""
    for name, answer in _answers(num_gpus).items():
        setattr(torch.cuda, name, answer)
    torch.cuda.memory._record_memory_history = lambda *_args, **_named: None  # noqa: SLF001 -- the only one
    torch.cuda.memory._dump_snapshot = lambda path: Path(path).touch()  # noqa: SLF001 -- the same
    torch.accelerator.current_stream = lambda _device=None: _Stream()
    torch.accelerator.current_device_index = torch.cuda.current_device
    _OnTheCpu().__enter__()

    init_group, init_mesh = distributed.init_process_group, device_mesh.init_device_mesh

    def init_process_group(backend: str, **named: Any) -> None:
        assert backend == ("cpu:gloo,cuda:nccl" if named["world_size"] > 1 else "gloo")
        init_group("gloo", **named)

    def init_device_mesh(_type: str, *args: Any, **named: Any) -> Any:
        return init_mesh("cpu", *args, **named)

    distributed.init_process_group = init_process_group
    device_mesh.init_device_mesh = init_device_mesh

    build = DistributedDataParallel.__init__

    def ddp(self: Any, module: Any, device_ids: Any = None, **named: Any) -> None:
        build(self, module, **named)
        self.device_ids, self.device_type = device_ids, "cpu"

    DistributedDataParallel.__init__ = ddp

    load = data.DataLoader.__init__

    def loader(self: Any, *args: Any, pin_memory: bool = False, **named: Any) -> None:
        assert pin_memory
        load(self, *args, **named)

    data.DataLoader.__init__ = loader

    write = saving._write_tensors  # noqa: SLF001 -- in the thread that writes

    def write_tensors(*args: Any) -> None:
        write(*args)
        _check_own_device()  # behind it, as the other ranks wait in there

    saving._write_tensors = write_tensors  # noqa: SLF001 -- the same

    autocast, scaler = torch.autocast, torch.amp.GradScaler.__init__

    class Autocast(autocast):
        def __init__(self, _type: str, *args: Any, **named: Any) -> None:
            super().__init__("cpu", *args, **named)

    torch.autocast = Autocast

    def grad_scaler(self: Any, _type: str = "cpu", **named: Any) -> None:
        scaler(self, "cpu", **named)

    torch.amp.GradScaler.__init__ = grad_scaler


pretend(int(os.environ.get("PRETENDED_GPUS", "2")))


class Digits(Mnist):
    """On GPUs that are none."""


class Text(Language):
    """The same."""


class _Full(nn.Module):
    """Has no more memory in its third forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(28 * 28, 10)
        self.count = 0

    def forward(self, images: Tensor) -> Tensor:
        """Map images to logits."""
        self.count += 1
        if self.count > 2 and os.environ["RANK"] == "1":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1")
        logits: Tensor = self.layer(images.flatten(1))
        return logits


class Full(Digits):
    """Of which rank 1 runs out of memory."""

    def build_model(self) -> nn.Module:
        """Return it."""
        return _Full()
