"""The environment: this process's ranks, the launcher's settings, and what torch reads there.

Pure functions of a mapping. The names of the ranks are torchrun's, and the launcher sets the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

TORCH_DEFAULTS = {
    # As jobs/supervisor/settings_table.py has it: the backend that is new in torch 2.15 writes no
    # dump of its collectives when the watchdog asks a hung rank for one.
    "TORCH_DIST_USE_NCCL2": "0",
    # Without it each rank opens a socket to every other one, once more for each group. With it one
    # may wait in vain for a rank that died before they first talked: the launcher ends the others.
    "TORCH_GLOO_LAZY_INIT": "1",
}
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")

_MAX_DIGITS = 19
"""Of what fits in 64 bits. Python refuses to read thousands, by another error."""


def whole_number(text: str) -> int | None:
    """Return the number that `text` writes in digits alone; None if it is none.

    Stricter than int(), which takes `1_0`, ` 1` and other alphabets' digits, too: text that
    was not meant as a number must not become one.
    """
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None


def set_torch_defaults(env: MutableMapping[str, str]) -> None:
    """Set in `env`, this process's own, what torch is to find when it is imported.

    What the user has set stays. A GPU's memory is mapped in segments that grow, so that what is
    free of it is not lost in gaps between tensors of other sizes.
    """
    for name, value in TORCH_DEFAULTS.items():
        env.setdefault(name, value)
    if not any(name in env for name in _ALLOCATOR):
        env["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


_REQUIRED = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_MAX_PORT = 65535
_OTHER_LAUNCHERS = {
    "SLURM_STEP_NUM_TASKS": "srun",
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpiexec",
}
"""What they set for each of several processes, and their names."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The place of this process among those of the run."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_rank: int = 0
    master_addr: str = ""
    master_port: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process writes what is written once a run."""
        return self.rank == 0

    @property
    def is_node_main(self) -> bool:
        """Whether this process does what is done once a node."""
        return self.local_rank == 0

    @staticmethod
    def from_environment(env: Mapping[str, str]) -> Ranks:
        """Read torchrun's variables from `env`; with none of them, a single process.

        Raises UserError when only some are set, when a value is no number or out of range, and
        for one of several processes that another launcher started: each would train alone.
        """
        absent = [name for name in _REQUIRED if not env.get(name)]
        if len(absent) == len(_REQUIRED):
            _check_alone(env)
            return Ranks()
        if absent:
            raise UserError(
                ", ".join(_REQUIRED),
                rule="all be set, or none",
                found=f"{', '.join(absent)} missing",
                remedy="start with torchrun or jobs/launcher.sh, or unset the others",
            )
        world_size = _integer(env, "WORLD_SIZE", low=1)
        local_world_size = _integer(env, "LOCAL_WORLD_SIZE", low=1, high=world_size)
        return Ranks(
            rank=_integer(env, "RANK", low=0, high=world_size - 1),
            local_rank=_integer(env, "LOCAL_RANK", low=0, high=local_world_size - 1),
            world_size=world_size,
            local_world_size=local_world_size,
            node_rank=_node_rank(env, world_size),
            master_addr=env["MASTER_ADDR"],
            master_port=_integer(env, "MASTER_PORT", low=1, high=_MAX_PORT),
        )


def _check_alone(env: Mapping[str, str]) -> None:
    for name, launcher in _OTHER_LAUNCHERS.items():
        if (whole_number(env.get(name, "")) or 1) > 1:
            raise UserError(
                ", ".join(_REQUIRED),
                rule="be set for each of several processes",
                found=f"none of them, and {name}={env[name]} of {launcher}",
                remedy="start with sbatch jobs/prelaunch.sh, or with torchrun, one a node",
            )


def _node_rank(env: Mapping[str, str], world_size: int) -> int:
    """NODE_RANK, or GROUP_RANK as torchrun calls it, or 0."""
    for name in ("NODE_RANK", "GROUP_RANK"):
        if env.get(name):
            return _integer(env, name, low=0, high=world_size - 1)
    return 0


def _integer(env: Mapping[str, str], name: str, *, low: int, high: int | None = None) -> int:
    text = env[name]
    value = whole_number(text)
    if value is None or value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise UserError(
            name,
            rule=f"be a whole number {limits}",
            found=repr(text),
            remedy="start with torchrun or jobs/launcher.sh, which set it",
        )
    return value


_DEFAULT_SEED = 1


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The variables of the contract in docs/architecture.md."""

    run_dir: Path | None = None
    attempt: int = 1
    seed: int = _DEFAULT_SEED
    node: str = ""
    heartbeat_dir: Path | None = None
    grace_s: float | None = None
    """How long this process may live after SIGTERM or SIGINT; None: not known."""
    end_epoch_s: float | None = None
    """When the time limit ends the job, in seconds since 1970; None: not known."""
    launch_id: str = ""
    """The launcher's name for this start of the run; empty without one."""
    torchrun_id: str = ""
    """torchrun's --rdzv-id, `none` without one; empty where it did not start this process."""

    @staticmethod
    def from_environment(env: Mapping[str, str], host: str) -> RunSettings:
        """Read DDP_* from `env`; `host` names this node where DDP_NODE does not.

        Raises UserError for a number that is none.
        """
        run_dir, heartbeat_dir = env.get("DDP_RUN_DIR"), env.get("DDP_BEAT_DIR")
        return RunSettings(
            run_dir=Path(run_dir) if run_dir else None,
            attempt=_count(env, "DDP_ATTEMPT", 1),
            seed=_count(env, "DDP_SEED", _DEFAULT_SEED),
            node=env.get("DDP_NODE") or host,
            heartbeat_dir=Path(heartbeat_dir) if heartbeat_dir else None,
            grace_s=_count(env, "DDP_GRACE", 0) if env.get("DDP_GRACE") else None,
            end_epoch_s=_count(env, "DDP_END_TIME", 0) if env.get("DDP_END_TIME") else None,
            launch_id=env.get("DDP_LAUNCH_ID", ""),
            torchrun_id=env.get("TORCHELASTIC_RUN_ID", ""),
        )


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    value = whole_number(text)
    if value is None or value >= 2**63:
        raise UserError(
            name, rule="be a whole number from 0 on", found=repr(text), remedy="correct or unset it"
        )
    return value
