"""Back to Slurm's queue: the requeue of this job, or a successor that is like it."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from jobs.backends.scontrol import fate, field, path_field
from jobs.messages import info

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jobs.backends.slurm import Slurm

_FIELDS = """
    NumTasks=--ntasks Partition=--partition Account=--account QOS=--qos TimeLimit=--time
    Features=--constraint Reservation=--reservation Licenses=--licenses
    MinMemoryNode=--mem MinMemoryCPU=--mem-per-cpu TresPerNode=--gres TresPerJob=--gpus
    TresPerTask=--gpus-per-task TresPerSocket=--gpus-per-socket CpusPerTres=--cpus-per-gpu
    MemPerTres=--mem-per-gpu Nice=--nice Network=--network TresBind=--gpu-bind TresFreq=--gpu-freq
    MinTmpDiskNode=--tmp Switches=--switches WCKey=--wckey MailType=--mail-type MailUser=--mail-user
"""
_PATHS = "WorkDir=--chdir StdOut=--output StdErr=--error Comment=--comment"
_VARIABLES = (
    "SLURM_NTASKS_PER_NODE=--ntasks-per-node SLURM_CPUS_PER_TASK=--cpus-per-task"
    " SLURM_ARRAY_TASK_ID=--array"
)
"""What a successor inherits: from fields of `scontrol show job`, from its paths and words, and from
variables; and the option of sbatch for each."""


_OURS = "ddp: "
_MAX_COMMENT = 400


class Successor(NamedTuple):
    """What a job like this one is submitted with."""

    script: str
    words: Sequence[str]
    environ: Mapping[str, str]
    """The user's own."""
    run: Mapping[str, str]
    """The run's name, place and seed."""
    num_nodes: int
    """Slurm shows how many are left."""
    exclude: Sequence[str]
    is_no_kill: bool
    comment: str = ""
    """Why nodes are excluded; empty: for no reason that the comment should have."""


def requeue(slurm: Slurm, exclude: Sequence[str], comment: str, *, is_done: bool) -> bool:
    """Have Slurm requeue this job, and give it other nodes; Slurm ends this script soon after.

    Args:
        slurm: The job.
        exclude: Nodes that it must not get again.
        comment: Why, for the job's comment; may be empty.
        is_done: Slurm has requeued it already.

    Returns:
        Whether it is requeued; a refusal is reported.

    """
    if not is_done:
        complaint = slurm.try_to("scontrol", "requeue", slurm.name)
        # Where a node died, Slurm may requeue the job in this very second and refuse ours.
        if complaint and fate(slurm.job_info() or "", slurm.restart_count) != "requeued":
            info(
                f"the requeue of job {slurm.name} was refused ({complaint}): submitting a successor"
            )
            return False
    if exclude:
        _exclude(slurm, exclude)
    if comment:
        text = with_reason(path_field(slurm.job_info() or "", "Comment"), comment)
        complaint = slurm.try_to("scontrol", "update", f"JobId={slurm.name}", f"Comment={text}")
        if complaint:
            info(f"job {slurm.name} keeps its comment ({complaint}): {comment}")
    return True


def with_reason(comment: str, reason: str) -> str:
    """Write a reason into a job's comment, behind what the user has there."""
    users = comment.partition(_OURS)[0].rstrip("; ")
    users = "" if users == "(null)" else users
    return f"{users}{'; ' if users else ''}{_OURS}{reason}"[:_MAX_COMMENT]


def _exclude(slurm: Slurm, nodes: Sequence[str]) -> None:
    """Only a pending job takes it.

    A node that the user asked for by name stays: without it the job would never start.
    """
    job, shown = slurm.job_info() or "", " ".join(nodes)
    if field(job, "ReqNodeList"):
        info(f"job {slurm.name} may get {shown} again: it asks for nodes by name")
        return
    listed = ",".join(filter(None, [field(job, "ExcNodeList"), *nodes]))
    words = ("scontrol", "update", f"JobId={slurm.name}", f"ExcNodeList={listed}")
    if slurm.try_to(*words):
        info(f"job {slurm.name} may get {shown} again: Slurm does not take it out")


def submit(slurm: Slurm, successor: Successor) -> str | None:
    """Submit a job like this one; its id, None if Slurm does not take it."""
    options = successor_options(slurm, slurm.job_info() or "", successor)
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", "--export=ALL", *options, successor.script, *successor.words],
            env=successor_environ(successor),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
        )
    except OSError as error:  # in a container there may be no sbatch
        info(f"sbatch cannot be run: {error.strerror}")
        return None
    if done.returncode != 0:
        return None
    return done.stdout.decode().strip().partition(";")[0]  # with several clusters: id;cluster


def successor_environ(successor: Successor) -> dict[str, str]:
    """It starts as this job did, without Slurm's variables of this one."""
    ours = re.compile("(SLURM_(?!CONF$|SPANK_)|SLURMD_|ENVIRONMENT$)")
    kept = {name: value for name, value in successor.environ.items() if not ours.match(name)}
    return {**kept, **successor.run}


def successor_options(slurm: Slurm, job: str, successor: Successor) -> list[str]:
    """The options of sbatch for a job like the one that `scontrol show job` shows."""
    environ, name = slurm.environ, slurm.environ.get("SLURM_JOB_NAME") or "ddp"
    options = [f"--dependency=afterany:{slurm.name}", f"--job-name={name}", "--open-mode=append"]
    options.append(f"--nodes={successor.num_nodes}")
    if field(job, "Requeue") == "0":
        options.append("--no-requeue")
    options += _resources(job)
    for variable, option in _pairs(_VARIABLES):
        if environ.get(variable):
            options.append(f"{option}={environ[variable]}")
    options += _nodes(job, successor)
    for key, option in _pairs(_PATHS):
        value = path_field(job, key)
        if key == "Comment" and successor.comment:
            value = with_reason(value, successor.comment)
        if value and value != "(null)":
            options.append(f"{option}={value}")
    return options + shlex.split(successor.environ.get("DDP_SBATCH_ARGS", ""))


def _pairs(table: str) -> list[tuple[str, str]]:
    pairs = (pair.partition("=") for pair in table.split())
    return [(name, option) for name, _, option in pairs]


def _resources(job: str) -> Iterator[str]:
    for name, option in _pairs(_FIELDS):
        value = field(job, name)
        if "Tres" in name:
            value = tres(name, value)
        if name == "WCKey":  # an asterisk marks a key that Slurm chose itself
            value = value.lstrip("*")
        if value and value != "0":
            yield f"{option}={value}"
    # 0 is all memory of a node; beside --mem-per-gpu it stands for nothing.
    if field(job, "MinMemoryNode") == "0" and not field(job, "MemPerTres"):
        yield "--mem=0"


def _nodes(job: str, successor: Successor) -> Iterator[str]:
    exclusive = field(job, "Exclusive")
    # From 26.05 on OverSubscribe=NO holds for every job.
    if exclusive == "NODE" or (not exclusive and field(job, "OverSubscribe") == "NO"):
        yield "--exclusive"
    if successor.is_no_kill:
        yield "--no-kill"
    wanted = field(job, "ReqNodeList")
    if wanted and not successor.exclude:
        yield f"--nodelist={wanted}"
    excluded = ",".join(filter(None, [field(job, "ExcNodeList"), *successor.exclude]))
    if excluded:
        yield f"--exclude={excluded}"


def tres(name: str, listed: str) -> str:
    """Give what a field's option takes of gpu:8, gres:gpu:8, gres/gpu:8 or gres/gpu=8.

    So Slurm writes it by version; what came from other options (cpu=7) stands there, too.
    """
    kept = []
    for item in filter(None, listed.split(",")):
        if item.startswith(("cpu=", "mem=", "license")):
            continue
        word = re.sub("^gres[:/]", "", item).replace("=", ":")
        kept.append(word if name == "TresPerNode" else re.sub("^gpu:", "", word))
    return ",".join(kept)
