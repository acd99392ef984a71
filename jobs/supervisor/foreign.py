"""A command of the user's own: it must be there, and bring no launcher such as torchrun.

Each of our ranks would run that once, and without options for the others each would train alone
and nobody would notice.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from jobs.messages import UsageError, info
from jobs.programs import which
from rundir import secrets
from rundir.plain import tail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Launcher(NamedTuple):
    """A program that starts ranks of its own."""

    commands: tuple[str, ...]
    """What it is called by: a program, one with its subcommand, or `-m` and a module."""
    instead: str
    """What to write in its place."""
    options: tuple[str, ...] = ()
    """By which it learns that it is one of several, all of them; none: it cannot learn it."""
    variable: str = ""
    """Of the environment, in place of the options."""
    starts_none_without_gpus: bool = False
    """Without GPUs it becomes the program itself, and every rank trains as it should."""
    only_with: str = ""
    """The option, or variable, by which it starts ranks; without it, it is the program itself."""
    unless: tuple[str, str] = ("", "")
    """An option, and the value with which it is the program itself."""


_PROGRAM = "-- python train.py"
_MPI_PROGRAM = (
    "in a Slurm job DDP_MPI=pmix jobs/prelaunch.sh -- ./program, on one machine all processes in"
    " one rank by DDP_NPROC_PER_NODE=1"
)
LAUNCHERS = {
    "torchrun": Launcher(
        ("torchrun", "-m torch.distributed.run", "-m torch.distributed.launch"),
        _PROGRAM,
        ("--nnodes",),
        variable="PET_NNODES",
    ),
    "accelerate launch": Launcher(
        ("accelerate launch", "accelerate-launch", "-m accelerate.commands.launch"),
        _PROGRAM,
        ("--num_machines",),
        starts_none_without_gpus=True,
    ),
    # Without a file of hosts --no_ssh is of no effect.
    "deepspeed": Launcher(
        ("deepspeed", "ds", "-m deepspeed.launcher.runner"), _PROGRAM, ("--no_ssh", "--hostfile")
    ),
    "fabric run": Launcher(("fabric run", "lightning run"), _PROGRAM, ("--num_nodes",)),
    "composer": Launcher(("composer", "-m composer.cli"), _PROGRAM, ("--world_size",)),
    "torchx run": Launcher(("torchx run",), _PROGRAM),
    "tune run": Launcher(
        ("tune run",),
        "-- tune run RECIPE --config CONFIG",
        ("--nnodes",),
        only_with="--nproc-per-node",
    ),
    "llamafactory-cli train": Launcher(
        ("llamafactory-cli train", "lmf train"),
        "-- python -m llamafactory.launcher CONFIG",
        variable="NNODES",
        starts_none_without_gpus=True,
    ),
    "trl sft": Launcher(
        ("trl sft", "trl dpo", "trl grpo", "trl kto", "trl reward", "trl rloo"),
        "-- python -m trl.scripts.sft",
        ("--num_machines",),
        starts_none_without_gpus=True,
    ),
    "axolotl train": Launcher(
        ("axolotl train",),
        "-- axolotl train CONFIG --launcher python",
        ("--num_machines",),
        starts_none_without_gpus=True,
        unless=("--launcher", "python"),
    ),
    "swift sft": Launcher(
        ("swift sft", "swift pt", "swift rlhf", "megatron sft", "megatron pt", "megatron rlhf"),
        "-- swift sft",
        variable="NNODES",
        only_with="NPROC_PER_NODE",
    ),
    "mpirun": Launcher(("mpirun", "mpiexec", "prterun"), _MPI_PROGRAM),
    "horovodrun": Launcher(("horovodrun", "-m horovod.runner.launch"), _MPI_PROGRAM),
    "srun": Launcher(("srun",), _PROGRAM),
    "ray start": Launcher(("ray start",), _PROGRAM, ("--address",)),
}
"""All that is known of other launchers; docs/foreign-programs.md shows it, and a test compares."""

_BY_COMMAND = {
    tuple(command.split()): name for name, known in LAUNCHERS.items() for command in known.commands
}
_STARTERS = re.compile(
    r"catchsegv|conda|env|exec|hatch|ionice|mamba|micromamba|ncu|nice|nohup|nsys|numactl|pdm|perf"
    r"|pipenv|pixi|poetry|py-spy|rye|setsid|stdbuf|strace|taskset|time|timeout|uv|uvx"
)
"""Programs that start the one that is named behind their options."""
_CONTAINERS = re.compile(r"apptainer|ch-run|docker|enroot|podman|podman-hpc|shifter|singularity")
"""Programs that start another one in an image, which they name before it."""
_NAMES_PACKAGES = re.compile("--(with|extra|group)")
"""Options of uv and poetry, whose value may have a launcher's name."""
_SHELLS = re.compile(r"bash|dash|sh|zsh")
_PREPARE = re.compile(r"\.|cd|conda|echo|export|module|set|source|ulimit|umask|unset")
"""Commands of a shell that decide nothing about the one that comes last."""
_SHEBANG = re.compile(r"#!.*\b(ba|da|z)?sh\b")
_MAX_SCRIPT = 65_536
_MAX_DEPTH = 8
"""Of what starts another: a script may end with itself."""


def launcher(command: Sequence[str]) -> str | None:
    """Name the launcher that a command is; None for any other command."""
    return _name(_unwrap(list(command)))


def _name(words: list[str]) -> str | None:
    if words and _is_python(words[0]):
        words = words[1:]
        while words and words[0].startswith("-") and words[0] != "-m":
            words = words[2 if words[0] in {"-X", "-W"} else 1 :]
    if not words:
        return None
    first = os.path.basename(words[0])
    return _BY_COMMAND.get((first,)) or _BY_COMMAND.get((first, *words[1:2]))


def _is_python(word: str) -> bool:
    return os.path.basename(word).startswith("python")


def _unwrap(words: list[str]) -> list[str]:
    """Leave away what only starts another program: `timeout 10`, `bash -c`, a shell's script."""
    for _ in range(_MAX_DEPTH):
        name = os.path.basename(words[0]) if words else ""
        if _STARTERS.fullmatch(name):
            words = _behind_options(words)
        elif _CONTAINERS.fullmatch(name):
            words = _in_image(words)
        elif _SHELLS.fullmatch(name):
            words = _last_command(_shell_text(words))
        elif name and "/" in words[0] and _SHEBANG.match(text := tail(words[0], _MAX_SCRIPT)):
            words = _last_command(text)
        else:
            break
    return words


def _behind_options(words: list[str]) -> list[str]:
    """Skip options and their values, settings, numbers."""
    for i in range(1, len(words)):
        is_option = re.match(r"(run|profile|record)$|[-\d]|\w+=", words[i])
        if not is_option and not _is_value(words[i], words[i - 1]):
            return words[i:]
    return []


def _in_image(words: list[str]) -> list[str]:
    """Skip an image and the options before it: up to a known program that is no option's value."""
    for i in range(2, len(words)):
        if _is_known(words[i]) and not re.fullmatch(r"--?\w[\w-]*", words[i - 1]):
            return words[i:]
    return []


def _is_value(word: str, before: str) -> bool:
    """Whether a word belongs to the option before it, of which we only know what it looks like."""
    if _NAMES_PACKAGES.fullmatch(before):
        return True
    is_short = re.fullmatch("-[A-Za-z]", before)
    is_long = re.fullmatch("--[a-z-]+", before) and "/" not in word
    return bool(is_short or is_long) and not _is_known(word)


def _is_known(word: str) -> bool:
    name = os.path.basename(word)
    if _is_python(name) or any(name == first for first, *_ in _BY_COMMAND):
        return True
    return bool(_STARTERS.fullmatch(name) or _SHELLS.fullmatch(name))


def _shell_text(words: list[str]) -> str:
    """Return what stands behind a shell's -c, or in its script."""
    for i in range(1, len(words)):
        if re.fullmatch("-[a-z]*c", words[i]):
            return "".join(words[i + 1 : i + 2])
        if not words[i].startswith("-"):
            return tail(words[i], _MAX_SCRIPT)
    return ""


def _last_command(text: str) -> list[str]:
    """Find a shell's last command, unless it depends on those before: [] then."""
    text = re.sub(r"(?m)^\s*#.*", "", text).replace("\\\n", " ").replace("\n", ";")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word == "&&" or set(word) == {";"}:
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError:  # a quote without its end, which the shell will report
        return []
    commands = [words for words in commands if words]
    if all(_PREPARE.fullmatch(words[0]) or "=" in words[0] for words in commands[:-1]):
        return ["env", *commands[-1]] if commands else []
    return []


def is_elastic(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether it is torchrun for a number of nodes that may change, as by --nnodes=1:4."""
    words = _unwrap(list(command))
    if _name(words) != "torchrun":
        return False
    return ":" in (_option(words, "--nnodes") or environ.get("PET_NNODES", ""))


def check_launcher(
    command: Sequence[str], world_size: int, environ: Mapping[str, str], *, has_gpus: bool
) -> None:
    """Refuse a launcher without options for the other ranks. Raises UsageError."""
    words = _unwrap(list(command))
    name = _name(words)
    if name is None or world_size == 1:
        return
    known = LAUNCHERS[name]
    if _is_program(words, known, environ) or _knows_others(words, known, environ):
        return
    superfluous = known.only_with or f"{name} and its options"
    remedy = f"leave {superfluous} away ({known.instead})"
    if known.starts_none_without_gpus and not has_gpus:
        info(
            f"warning: {name} starts ranks of its own, and each of {world_size} ranks runs it:"
            f" {remedy}"
        )
        return
    if known.options:
        remedy += f", or tell it of the others ({' '.join(known.options)})"
    raise UsageError(
        "a command after -- is one rank",
        f"{name} in each of {world_size} ranks, where every one would train alone",
        remedy,
    )


def _is_program(words: list[str], known: Launcher, environ: Mapping[str, str]) -> bool:
    """Whether it starts no ranks of its own."""
    option, value = known.unless
    if value and _option(words, option) == value:
        return True
    is_named = _option(words, known.only_with) is not None or known.only_with in environ
    return bool(known.only_with) and not is_named


def _knows_others(words: list[str], known: Launcher, environ: Mapping[str, str]) -> bool:
    """Whether all its options are there, and none says that it is the only one."""
    told = [_option(words, option) or environ.get(known.variable) for option in known.options]
    values = told or [environ.get(known.variable)]
    return not {None, "", "1", "1:1"}.intersection(values)


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
        found = f"the option '{secrets.hide_words([program])[0]}'"
        raise UsageError(rule, found, "leave -- away for the trainer's own options")
    if "=" in program:
        name = program.partition("=")[0]
        remedy = f"write -- env {name}=…, or export it before"
        raise UsageError(rule, f"the setting '{name}=…'", remedy)
    if os.path.isdir(program):
        raise UsageError(rule, f"the directory '{program}'", "name a program in it")
    if os.path.exists(program) and "/" in program:
        raise UsageError(
            "the command after -- must be a program that may be run",
            f"that '{program}' may not",
            f"chmod +x it, or name what runs it (-- python {program})",
        )
    raise UsageError(
        "the command after -- must be a program",
        f"none named '{program}' on {node}",
        "correct the path" if "/" in program else "correct it, or extend PATH",
    )
