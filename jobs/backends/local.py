"""In place: the ranks are children of the batch script, on this machine or in this container."""

from __future__ import annotations

import glob
import subprocess
from shlex import quote
from typing import TYPE_CHECKING, NoReturn

from jobs.backends import slurm
from jobs.backends.base import Backend, Layout, Step, Surroundings, before_exec
from jobs.messages import Exit, UsageError, info
from rundir import codes, gpus

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_THE_SCRIPT = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS")
"""Pyxis and Slurm describe the batch script's own task so: not these ranks."""


class Local(Backend):
    """Starts a launcher a rank, and is what srun is elsewhere."""

    is_in_place = True
    has_standby = True

    def __init__(self, here: Surroundings) -> None:
        """Check that no rank would have to start elsewhere. Raises UsageError and Exit."""
        super().__init__(here)
        self.place = "container-local" if here.is_in_container else "bare-local"
        if not here.is_under_slurm and here.environ.get("DDP_IMAGE"):
            raise UsageError(
                "DDP_IMAGE needs Slurm with Pyxis to start ranks in containers",
                "no Slurm job",
                "submit with sbatch, or use docker run, or unset DDP_IMAGE",
            )
        if here.num_nodes > 1:
            _refuse(here)

    @classmethod
    def fits(cls, here: Surroundings) -> bool:
        """It does wherever nothing else does."""
        del here
        return True

    def layout(self) -> Layout:
        """A rank per task that Slurm gave, or per GPU."""
        here, num = self._here, self._here.num_local_ranks
        if not num:
            tasks = here.slurm.num_tasks_in_place
            num = tasks if here.is_under_slurm else count_gpus(here.environ) or 1
        return Layout(num_nodes=1, num_tasks=num, num_local_tasks=num, num_local_ranks=num)

    def nodes(self) -> list[str]:
        """All nodes of a job whose client works here, though ranks start on one."""
        listed = self._here.environ.get("SLURM_JOB_NODELIST", "")
        names = self._here.slurm.hostnames(listed) if self._here.has_client else []
        return names or [self._here.node]

    def command(self, step: Step) -> list[str]:
        """The launcher, which is started once a rank. Raises UsageError."""
        size = step.layout.world_size
        if self._here.environ.get("DDP_MPI") and step.is_own_command and size > 1:
            raise UsageError(
                "DDP_MPI needs srun to start the ranks",
                f"{size} ranks in place, each of which MPI would take for the only one",
                "let MPI start them in one rank: DDP_NPROC_PER_NODE=1 jobs/prelaunch.sh --"
                f" mpirun -n {size} …",
            )
        return [self._here.launcher, *step.arguments]

    def start(self, step: Step, stdout: int) -> list[subprocess.Popen[bytes]]:
        """Start the ranks; a launcher ends with this script."""
        environ = {n: value for n, value in step.environ.items() if n not in _OF_THE_SCRIPT}
        size = str(step.layout.world_size)
        environ |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "NODE_RANK": "0"}
        environ["DDP_NODE"] = self._here.node  # a host may name itself otherwise, with its domain
        prepare = before_exec()
        return [
            subprocess.Popen(
                self.command(step),
                env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=step.stdin,
                stdout=stdout,
                preexec_fn=prepare,  # noqa: PLW1509 -- it calls prctl and signal alone
            )
            for rank in range(step.layout.num_local_ranks)
        ]


def count_gpus(environ: Mapping[str, str]) -> int:
    """Count the GPUs that this script sees."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len(gpus.visible(visible))
    return len(glob.glob("/dev/nvidia[0-9]*"))


def _refuse(here: Surroundings) -> NoReturn:
    if here.is_in_container and here.has_client:
        raise UsageError(
            f"the ranks of {here.num_nodes} nodes must start in the image",
            "that srun in this container does not know it (sbatch hands it on, srun does not)",
            "start the shell with DDP_IMAGE=./ddp.sqsh jobs/interactive.sh",
        )
    num, image = here.num_nodes, quote(here.environ.get(f"{slurm.PYXIS}image") or "./ddp.sqsh")
    why = "none is mounted"
    if here.slurm.is_installed():  # such as an image whose C library is older than the client's
        why = here.slurm.try_to("scontrol", "show", "job", here.slurm.name).partition("\n")[0]
    info(
        f"the ranks of {num} nodes need srun, and no Slurm client works here ({why});"
        " paste one of these:"
    )
    info(
        f'    eval "$(container/pyxis_env.sh)" && sbatch --nodes={num}'
        f" --container-image={image} jobs/prelaunch.sh   # on the submit host: mounts the client"
    )
    info(
        f"    DDP_IMAGE={image} sbatch --nodes={num} jobs/prelaunch.sh"
        "   # the script on the host, the ranks in containers"
    )
    raise Exit(codes.USAGE)
