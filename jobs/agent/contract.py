"""The rank contract, from Slurm's variables: the only file that knows SLURM_PROCID and friends."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from jobs.checks import refuse_other_launchers, whole_number
from jobs.messages import UsageError
from rundir.paths import RunDir

if TYPE_CHECKING:
    from collections.abc import Mapping

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_INCOMPLETE = "is the step's environment complete?"
_MEET = "set it and MASTER_ADDR, by which ranks find rank 0, or start jobs/prelaunch.sh instead"
_MOST = 999_999_999
_LAST_PORT = 65535
_LAST_STEP = 0xFFFFFFFF


class Contract(NamedTuple):
    """What this agent starts: one rank, or one task of a node whose ranks torchrun starts."""

    environ: dict[str, str]
    """The given environment, with the contract in it."""
    is_node_task: bool = False
    num_nodes: int = 1


def resolve(environ: Mapping[str, str]) -> Contract:
    """Find a rank's place: from Slurm's task, torchrun or prelaunch.sh, or for a single process.

    Raises:
        UsageError: only part of it is set, or it is out of range, or disagrees with what is set.

    """
    env = dict(environ)
    env["DDP_NODE"] = env.get("DDP_NODE") or os.uname().nodename
    if env.get("DDP_TASK_RANK"):
        contract = _from_own_step(env)
    elif env.get("SLURM_PROCID") and env.get("SLURM_STEP_ID"):
        contract = _from_slurm(env)
    elif env.get("RANK"):
        contract = _from_contract(env)
    else:
        contract = _single(env)
    if not contract.is_node_task:
        _check(contract.environ)
    return contract


def with_torchrun_names(environ: Mapping[str, str]) -> dict[str, str]:
    """Add what else torchrun sets, for programs that are written for it; what is set stays.

    But for TORCHELASTIC_RUN_ID, which torchrun alone has: Lightning takes a rank that has it for
    torchrun's, and then neither knows Slurm nor requeues its job.
    """
    if environ.get("TORCHELASTIC_RUN_ID"):
        return dict(environ)
    attempt = int(environ["DDP_ATTEMPT"])
    num_nodes = -(-int(environ["WORLD_SIZE"]) // int(environ["LOCAL_WORLD_SIZE"]))
    names = {
        "GROUP_RANK": environ["NODE_RANK"],
        "GROUP_WORLD_SIZE": environ.get("DDP_NUM_NODES") or str(num_nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": environ["RANK"],
        "ROLE_WORLD_SIZE": environ["WORLD_SIZE"],
        "TORCHELASTIC_RESTART_COUNT": str(attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": environ.get("DDP_MAX_RESTARTS") or "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        ERROR_FILE: error_file(environ),
    }
    # One that is set is the job's own, as for torchrun: each rank has another.
    return _with_defaults({**environ, ERROR_FILE: ""}, names)


def _with_defaults(environ: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    added = {name: value for name, value in names.items() if not environ.get(name)}
    # A job that this rank submits is another one.
    chosen = [environ.get("DDP_CHOSEN", ""), *added]
    return {**environ, **added, "DDP_CHOSEN": " ".join(filter(None, chosen))}


def error_file(environ: Mapping[str, str]) -> str:
    """Name the file of a rank's error in its run directory."""
    files = RunDir(environ["DDP_RUN_DIR"])
    return files.error_file(int(environ["DDP_ATTEMPT"]), int(environ["RANK"]))


def _from_own_step(env: dict[str, str]) -> Contract:
    """Take the number that the supervisor of an elastic run gave to one of its torchruns.

    Each is a step of its own. They find each other where ranks would.
    """
    rank = env.pop("DDP_TASK_RANK")
    if not env.get("DDP_LAUNCH_ID"):
        raise UsageError(
            "DDP_TASK_RANK must come from prelaunch.sh, with DDP_LAUNCH_ID",
            f"DDP_TASK_RANK={rank} alone",
            "unset it",
        )
    env["DDP_NODE"] = env.get("SLURMD_NODENAME") or env["DDP_NODE"]
    env.update(RANK=rank, NODE_RANK=rank, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    names = {
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{env.get('MASTER_ADDR')}:{env.get('MASTER_PORT')}",
        "PET_RDZV_ID": env["DDP_LAUNCH_ID"],
        # torchrun announces a shared store in the first round only: with torch 2.13 an agent that
        # joins later waits for its address until all give up.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    # A host may not recognise MASTER_ADDR as itself, such as the address of one interface.
    conf = env.get("PET_RDZV_CONF", "")
    if "is_host" not in conf:
        is_host = f"is_host={int(rank == '0')}"
        env["PET_RDZV_CONF"] = f"{conf},{is_host}" if conf else is_host
    return Contract(_with_defaults(env, names))


def _from_slurm(env: dict[str, str]) -> Contract:
    node_rank = _of_step(env, "SLURM_NODEID")
    env["DDP_NODE"] = env.get("SLURMD_NODENAME") or env["DDP_NODE"]
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE", "")
    num_local_tasks = tasks_of_node(tasks, int(node_rank))
    is_task_a_node = set(re.sub(r"\(x\d+\)", "", tasks).split(",")) == {"1"}
    name = "DDP_NPROC_PER_NODE"
    if is_task_a_node and whole_number(name, env.get(name) or "1", 1, _MOST) > 1:
        # As jobs/backends/srun.py has it: torchrun numbers the ranks; Pyxis numbered the task.
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            env.pop(name, None)
        env["NODE_RANK"] = node_rank
        num_nodes = _of_step(env, "SLURM_STEP_NUM_NODES", "SLURM_NNODES")
        return Contract(env, is_node_task=True, num_nodes=int(num_nodes))
    _agree(env, "RANK", env["SLURM_PROCID"])
    _agree(env, "LOCAL_RANK", _of_step(env, "SLURM_LOCALID"))
    _agree(env, "WORLD_SIZE", _of_step(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    _agree(env, "LOCAL_WORLD_SIZE", str(num_local_tasks))
    _agree(env, "NODE_RANK", node_rank)
    return Contract(env)


def _of_step(env: Mapping[str, str], *names: str) -> str:
    """Read a number of Slurm's step: the first of these variables that is set."""
    name = next((name for name in names if env.get(name)), names[-1])
    return str(whole_number(name, env.get(name, ""), 0, _MOST, _INCOMPLETE))


def _from_contract(env: dict[str, str]) -> Contract:
    env["NODE_RANK"] = env.get("NODE_RANK") or env.get("GROUP_RANK") or "0"  # torchrun's name
    for name in ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if not env.get(name):
            raise UsageError(
                "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
                " go together",
                f"RANK={env['RANK']} without {name}",
                "set all, or none",
            )
    return Contract(env)


def _single(env: dict[str, str]) -> Contract:
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK"):
        _agree(env, name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        _agree(env, name, "1")
    refuse_other_launchers(env)
    env["MASTER_ADDR"] = env.get("MASTER_ADDR") or "127.0.0.1"
    env["MASTER_PORT"] = env.get("MASTER_PORT") or _free_port()
    return Contract(env)


def _free_port() -> str:
    """Return a free port, chosen as a supervisor has it chosen."""
    import subprocess  # noqa: PLC0415 -- a megabyte that a rank's agent seldom needs

    words = ["bash", os.path.join(os.path.dirname(os.path.dirname(__file__)), "probe.sh")]
    done = subprocess.run([*words, str(os.getpid()), "", ""], stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().split()[1]


def _agree(env: dict[str, str], name: str, value: str) -> None:
    """Set what is unset; what is set must agree."""
    if env.get(name, "") not in {"", value}:
        raise UsageError(
            f"{name} must agree with the launcher's own",
            f"{name}={env[name]} and expected {value}",
            "unset it in the job, or leave it out of the image",
        )
    env[name] = value


def _check(env: Mapping[str, str]) -> None:
    world_size = whole_number("WORLD_SIZE", env.get("WORLD_SIZE", ""), 1, _MOST)
    whole_number("RANK", env["RANK"], 0, world_size - 1)
    local_world_size = whole_number("LOCAL_WORLD_SIZE", env["LOCAL_WORLD_SIZE"], 1, world_size)
    whole_number("LOCAL_RANK", env["LOCAL_RANK"], 0, local_world_size - 1)
    whole_number("NODE_RANK", env["NODE_RANK"], 0, world_size - 1)
    whole_number("MASTER_PORT", env.get("MASTER_PORT", ""), 1, _LAST_PORT, _MEET)
    whole_number("SLURM_STEP_ID", env.get("SLURM_STEP_ID") or "0", 0, _LAST_STEP, _INCOMPLETE)


def tasks_of_node(tasks: str, node_rank: int) -> int:
    """Read how many tasks a node has, from Slurm's list such as `2(x3),1`."""
    index = node_rank
    for group in tasks.split(","):
        found = _TASKS.fullmatch(group)
        if not found:
            break
        num_nodes = int(found[2] or 1)
        if index < num_nodes:
            return int(found[1])
        index -= num_nodes
    raise UsageError(
        f"SLURM_STEP_TASKS_PER_NODE must cover node {node_rank}", f"'{tasks}'", _INCOMPLETE
    )
