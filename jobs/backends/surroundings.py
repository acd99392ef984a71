"""Where the batch script runs: the job, the container, the client, and what others left there."""

from __future__ import annotations

import os

from jobs.backends import slurm
from jobs.backends.base import Surroundings
from jobs.backends.slurm import Slurm
from jobs.messages import Exit, UsageError, info
from rundir import codes

_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
_OF_AN_AGENT = ("DDP_NODE", "DDP_PREFLIGHT_STEP", "DDP_STANDBY", "DDP_TASK_RANK")
_ENROOT = "/etc/rc"
"""By it Enroot starts every container, of any image; no machine of today has one."""


def look_around(root: str, script: str, words: list[str], environ: dict[str, str]) -> Surroundings:
    """See where the batch script runs. Raises UsageError."""
    slurm.forget_outer_job(environ, is_batch_script=_is_batch_script(script))
    client = Slurm(environ)
    if client.job_id:
        client.check()
    # Pyxis leaves the options of sbatch in the environment of a batch script in a container;
    # our image says where it keeps the project, as Docker starts it, too.
    home = environ.get("DDP_HOME")
    in_image = bool(home) and os.path.isdir(f"{home}/jobs")
    job = client.job_info() if client.job_id and client.is_installed() else None
    return Surroundings(
        root=root,
        script=script,
        words=words,
        environ=environ,
        slurm=client,
        # As Slurm names it, which may have dots.
        node=client.node or os.uname().nodename.partition(".")[0],
        submit_dir=client.submit_dir or os.getcwd(),
        is_under_slurm=bool(client.job_id),
        is_in_container=bool(environ.get(f"{slurm.PYXIS}image"))
        or in_image
        or os.path.exists(_ENROOT),
        is_interactive=client.is_interactive,
        has_client=job is not None,
        info=job or "",
        num_nodes=client.num_nodes,
    )


def leave_to_task_zero(client: Slurm, script: str) -> None:
    """Let one of several tasks that srun started do the work. Raises Exit and UsageError.

    srun --pty starts this script in each. In a batch job nobody should: the ranks would wait for
    the nodes that this step itself holds.
    """
    if not client.step:
        return
    if client.is_batch:
        # sbatch within a step hands on that step's number: only one that this job has counts.
        if _is_batch_script(script) or not client.has_step(client.step):
            return
        if client.task != "0":
            raise Exit(codes.USAGE)
        raise UsageError(
            "this script must run once in a batch job, because it starts the ranks itself",
            "that srun starts it",
            "leave srun away",
        )
    if client.task != "0":
        info(f"task 0 of this step starts the ranks; task {client.task} has nothing to do")
        raise Exit(codes.FINISHED)


def _is_batch_script(script: str) -> bool:
    """Whether this is the copy that slurmd made, and runs once a job."""
    return os.path.basename(script) == "slurm_script"


def forget_hooks(environ: dict[str, str]) -> None:
    """Take out what others have set for the batch script itself.

    In an image with PYTORCH_VERSION, as NVIDIA's are, Pyxis makes the batch script a rank, and
    Enroot's hook for it chooses a port that nobody has probed. A rank may submit this job, and
    what its supervisor sets for an agent would have every rank of this one do something else.
    """
    for name in (*_OF_A_RANK, *_OF_AN_AGENT):
        environ.pop(name, None)
    hooks = str(slurm.number(environ, "SLURM_JOB_ID") % 4536 + 61000)
    if environ.get("PYTORCH_VERSION") and environ.get("MASTER_PORT") == hooks:
        del environ["MASTER_PORT"]
