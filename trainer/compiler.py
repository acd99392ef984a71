"""Whether there is the compiler of C or C++ that --compile needs."""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING

from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.config import Config


def check_compiler(config: Config, device_type: str, env: Mapping[str, str]) -> None:
    """Raise UserError if there is no compiler where torch would look for one.

    On a GPU Triton builds the module that talks to the driver: CC, else gcc, else clang
    (triton/runtime/build.py). On a CPU the kernels are C++: CXX, else g++ and no other
    (torch/_inductor/cpp_builder.py), which with TORCH_INDUCTOR_INSTALL_GXX torch installs itself.
    """
    if not config.compile:
        return
    is_gpu = device_type == "cuda"
    if not is_gpu and env.get("TORCH_INDUCTOR_INSTALL_GXX"):
        return
    variable, usual = ("CC", ("gcc", "clang")) if is_gpu else ("CXX", ("g++",))
    own = env.get(variable)
    if any(_is_program(name, env) for name in (usual if own is None else (own,))):
        return
    where = "CC, gcc or clang" if is_gpu else "CXX or g++"
    raise UserError(
        "--compile",
        rule=f"with a {'C' if is_gpu else 'C++'} compiler ({where})",
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
