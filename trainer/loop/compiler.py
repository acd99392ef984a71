"""Torch's compiler: whether --compile has the compiler and headers it needs; else its lazy import.

Building an optimizer or DistributedDataParallel imports all of torch._dynamo, 1.5 to 3 s on an
ordinary core, only to learn that nothing is being compiled. `without_compiler` and `plain_step` are
shortcuts past that import: where torch lacks the private names they need, they do nothing.
"""

from __future__ import annotations

import contextlib
import inspect
import shlex
import shutil
import sys
import sysconfig
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trainer.config import Config

_INCLUDE_PATHS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
"""Where a compiler may find headers, too."""


def check_compiler(config: Config, device_type: str, env: Mapping[str, str]) -> None:
    """Raise UserError if there is no compiler where torch would search for one.

    On a GPU Triton builds the module that talks to the driver: CC, else gcc, else clang
    (triton/runtime/build.py). On a CPU the kernels are C++: CXX, else g++ and no other
    (torch/_inductor/cpp_builder.py), which with TORCH_INDUCTOR_INSTALL_GXX torch installs itself.
    What either builds includes Python.h, which Debian has in a package of its own.
    """
    if not config.compile:
        return
    is_gpu = device_type == "cuda"
    if not is_gpu and env.get("TORCH_INDUCTOR_INSTALL_GXX"):
        return
    variable, usual = ("CC", ("gcc", "clang")) if is_gpu else ("CXX", ("g++",))
    own = env.get(variable)
    if any(_is_program(name, env) for name in (usual if own is None else (own,))):
        headers = Path(sysconfig.get_path("include", "posix_prefix"))
        if any(map(env.get, _INCLUDE_PATHS)) or (headers / "Python.h").exists():
            return
        raise UserError(
            "--compile",
            rule="have the headers of Python",
            found=f"no Python.h in {headers}",
            remedy="install python3-dev, or leave --compile out",
        )
    where = "CC, gcc or clang" if is_gpu else "CXX or g++"
    raise UserError(
        "--compile",
        rule=f"have a {'C' if is_gpu else 'C++'} compiler ({where})",
        found="none" if own is None else f"{variable}={own}, which is no program here",
        remedy=(f"install {usual[0]}" if own is None else f"correct {variable}")
        + ", or leave --compile out",
    )


def _is_program(command: str, env: Mapping[str, str]) -> bool:
    """Whether a command such as `ccache g++` begins with a program."""
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    return bool(words) and shutil.which(words[0], path=env.get("PATH")) is not None


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Build optimizers and DistributedDataParallel in here when nothing is to be compiled."""
    if "torch._dynamo" in sys.modules or "_dynamo" in vars(torch):
        yield
        return
    for cls in (Optimizer, DistributedDataParallel):
        _skip_disabling(cls)
    stub: Any = SimpleNamespace(
        utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    )
    torch._dynamo = stub  # noqa: SLF001 -- all that DistributedDataParallel asks of it
    try:
        yield
    finally:
        if vars(torch).get("_dynamo") is stub:
            del torch._dynamo  # noqa: SLF001 -- the real one may still be imported


def plain_step(optimizer: Optimizer) -> Callable[[], object]:
    """Return `optimizer.step` without its decorators, which import the compiler.

    They trace for the profiler and for compiled graphs, and switch gradients off: call the result
    under `torch.no_grad()`.
    """
    step = inspect.unwrap(type(optimizer).step)
    return partial(step, optimizer)


def _skip_disabling(cls: type) -> None:
    """Mark the methods of `cls` as done for torch's `_disable_dynamo`."""
    for member in vars(cls).values():
        inner = getattr(member, "__wrapped__", None)
        while inner is not None:
            if not hasattr(inner, "__dynamo_disable"):
                inner.__dynamo_disable = inner  # noqa: SLF001 -- torch's own mark
            inner = getattr(inner, "__wrapped__", None)
