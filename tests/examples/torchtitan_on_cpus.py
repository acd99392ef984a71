"""torchtitan.train on CPUs over gloo: what it takes from CUDA or NCCL is replaced, nothing else."""

# ruff: noqa: SLF001

import runpy
from types import SimpleNamespace

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention import flex_attention

torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.current_device = lambda: 0
torch.cpu.get_device_name = lambda _device: "CPU"
torch.cpu.get_device_properties = lambda _device: SimpleNamespace(total_memory=2**33)
torch.cpu.memory_stats = lambda _device: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None

barrier = torch.distributed.barrier
torch.distributed.barrier = lambda **_options: barrier()

divide_gradients = FSDPModule.set_gradient_divide_factor


def divide_after_the_sum(module: FSDPModule, factor: float) -> None:
    """Gloo cannot divide while it reduces."""
    divide_gradients(module, factor)
    module.set_force_sum_reduction_for_comms(True)


FSDPModule.set_gradient_divide_factor = divide_after_the_sum

# Flex attention has gradients on CPUs only where it is not compiled, and refuses that, too.
flex_attention._validate_device = lambda *_tensors: None
from torchtitan.models.common.attention import FlexAttention  # noqa: E402 -- it asks for the device

FlexAttention._compiled_flex_attn = staticmethod(flex_attention.flex_attention)

runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)
