"""A command of the user's own: it must be there, and bring no launcher such as torchrun.

Each of our ranks would run that once, and unless it is told of the others, each would train alone
and nobody would notice.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jobs.messages import UsageError, info
from jobs.programs import which

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TELLS_OF_OTHERS = {
    "torchrun": "--nnodes",
    "accelerate": "--num_machines",
    "deepspeed": "--no_ssh",
}
"""The option by which a launcher learns that it is one of several."""
_OF_A_MODULE = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}


def launcher(command: Sequence[str]) -> str | None:
    """Name the launcher that a command is; None for any other command."""
    name, words = os.path.basename(command[0]), list(command[1:])
    if name in ("torchrun", "deepspeed", "mpirun", "mpiexec", "horovodrun"):
        return name
    if name == "accelerate":
        return name if words[:1] == ["launch"] else None
    if not name.startswith("python"):
        return None
    for word in words:
        if word in _OF_A_MODULE:
            return _OF_A_MODULE[word]
        if not word.startswith("-"):  # the script, or another module: what follows is theirs
            return None
    return None


def is_elastic(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether it is torchrun for a number of nodes that may change, as by --nnodes=1:4."""
    if launcher(command) != "torchrun":
        return False
    return ":" in (_option(command, "--nnodes") or environ.get("PET_NNODES", ""))


def check_launcher(
    command: Sequence[str], world_size: int, environ: Mapping[str, str], *, has_gpus: bool
) -> None:
    """Refuse a launcher that is not told of the other ranks. Raises UsageError."""
    name = launcher(command)
    if name is None or world_size == 1:
        return
    option = _TELLS_OF_OTHERS.get(name, "")
    if (option and _has_option(command, option)) or (
        name == "torchrun" and environ.get("PET_NNODES")
    ):
        return
    # Without GPUs accelerate starts nothing of its own.
    if name == "accelerate" and not has_gpus:
        info(
            f"warning: {name} starts ranks of its own, and each of {world_size} ranks runs it:"
            " leave it and its options away (-- python train.py)"
        )
        return
    remedy = f", or tell it of the others ({option})" if option else ""
    raise UsageError(
        "a command after -- is one rank",
        f"{name} in each of {world_size} ranks, where every one would train alone",
        f"leave {name} and its options away (-- python train.py){remedy}",
    )


def _has_option(command: Sequence[str], option: str) -> bool:
    return _option(command, option) is not None


def _option(command: Sequence[str], option: str) -> str | None:
    """Give an option's value; with _ or - within, as these programs take them."""
    wanted = option.replace("_", "-")
    for word, following in zip(command, [*command[1:], ""]):
        name, is_joined, value = word.partition("=")
        if name.replace("_", "-") == wanted:
            return value if is_joined else following
    return None


def check_program(program: str, node: str, environ: Mapping[str, str]) -> None:
    """The command's program must be one. Raises UsageError."""
    if which(program, environ):
        return
    rule = "the command after -- must begin with a program"
    if program.startswith("-"):
        found = f"the option '{program}'"
        raise UsageError(rule, found, "leave -- away for the trainer's own options")
    if "=" in program:
        name = program.partition("=")[0]
        remedy = f"write -- env {name}=…, or export it before"
        raise UsageError(rule, f"the setting '{name}=…'", remedy)
    if os.path.exists(program) and "/" in program:
        raise UsageError(
            "the command after -- must be a program that may be run",
            f"that '{program}' may not",
            f"chmod +x it, or name what runs it (-- python {program})",
        )
    raise UsageError(
        "the command after -- must be a program",
        f"none named '{program}' on {node}",
        "correct it, or extend PATH",
    )
