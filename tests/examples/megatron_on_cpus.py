"""examples/megatron's part for a GPU, on CPUs over gloo: CUDA's devices, streams and generator.

Everything that is asked for on a GPU is on the CPU. Megatron's schedules, buffers, optimizer and
checkpoint writer are its own. Runs the train.py of the working directory.
"""
# ruff: noqa: SLF001, E402 -- the order matters

import runpy
import sys
from contextlib import nullcontext
from unittest.mock import MagicMock

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """Replaces a GPU in every call of torch's by the CPU."""

    def __torch_function__(self, function, _types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        """Call it, with the CPU for a GPU."""
        if function is torch.Tensor.cuda:
            return args[0]
        options = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        result = function(*map(_on_cpu, args), **options)
        if function is torch.Tensor.type and len(args) == 1:  # Megatron compares the type's name
            return result.replace("torch.", "torch.cuda.")
        return result


def _on_cpu(value: object) -> object:
    is_gpu = isinstance(value, str | torch.device) and str(value).startswith("cuda")
    return "cpu" if is_gpu else value


torch.nn.Module.cuda = lambda module: module
torch.cuda.current_device = lambda: "cpu"
torch.cuda.set_device = torch.cuda.manual_seed = lambda _value: None
torch.cuda.synchronize = torch.cuda.empty_cache = lambda: None
torch.cuda.Stream = torch.cuda.current_stream = torch.cuda.default_stream = MagicMock()
torch.cuda.get_rng_state = torch.get_rng_state
torch.cuda.stream = lambda _stream: nullcontext()
init_process_group = torch.distributed.init_process_group
torch.distributed.init_process_group = lambda _backend: init_process_group("gloo")

sys.path.insert(0, "")
torch.cuda.is_available = lambda: True
import gpt  # noqa: F401 -- the example asks only here

torch.cuda.is_available = lambda: False  # for torch's optimizers, which ask, too
from megatron.core.tensor_parallel import random

random._get_cuda_rng_state = lambda **_options: torch.get_rng_state()
random._set_cuda_rng_state = lambda state, **_options: torch.set_rng_state(state)

if __name__ == "__main__":  # Megatron starts processes that import this file
    with OnCpu():
        runpy.run_path("train.py", run_name="__main__")
