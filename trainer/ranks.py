"""Who am I among the processes of this run? A pure function of the environment.

The names are torchrun's, and `jobs/launcher.sh` sets the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.environment import whole_number
from trainer.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """The place of this process in the run."""

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
                "rank variables",
                rule=f"all of {', '.join(_REQUIRED)} are set, or none",
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
                "rank variables",
                rule=f"{', '.join(_REQUIRED)} are set for each of several processes",
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
            rule=f"a whole number {limits}",
            found=repr(text),
            remedy="start with torchrun or jobs/launcher.sh, which set it",
        )
    return value
