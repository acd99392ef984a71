"""The table of settings: name, default, where that comes from, and what a value must be."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from jobs.checks import Check, integer, matching, node_range, switch
from jobs.messages import UsageError
from rundir import paths

THE_DEFAULT = "the default"
OWN_COMMAND = "a command of one's own"


class Known(NamedTuple):
    """What is known of the job before its settings are resolved."""

    root: str
    cwd: str
    submit_dir: str
    job_id: str
    job_id_origin: str
    is_own_command: bool
    num_nodes: int
    num_nodes_allocated: int
    kill_wait: str
    """Slurm's KillWait in seconds; empty if there is none."""
    end_time: str
    """When the time limit ends the job, seconds since the epoch; empty if unknown."""


# ---- values --------------------------------------------------------------------------------------


def preflight_limits(_name: str, value: str) -> str:
    """Limits of the preflight's table. Raises UsageError."""
    from rundir.preflight import limits  # noqa: PLC0415 -- seldom set

    try:
        limits.parse(value)
    except ValueError as error:
        raise UsageError(*error.args) from None
    return value


def shell_words(name: str, value: str) -> str:
    """Words as a shell takes them: refused now, not when the job is to go on. Raises UsageError."""
    try:
        shlex.split(value)
    except ValueError as error:
        rule, remedy = f"{name} must be options as a shell takes them", "close what is quoted"
        raise UsageError(rule, f"{error} in {value}", remedy) from None
    return value


_BUSY = matching("refuse|wait", "refuse or wait", "set one of them, or unset it")
SEED = matching("[0-9]{1,10}", "a whole number below 10^10", "correct it, or unset it")
RUN_NAME = matching(
    paths.RUN_NAME.pattern, "letters, digits, '.', '_' and '-'", "give the run such a name"
)

# ---- rows ----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A setting of the table."""

    name: str
    default: str | None
    """None: it is in force only where it is set."""
    origin: str = THE_DEFAULT
    check: Check | None = None
    is_empty_unset: bool = False


def on_or_off(name: str, default: str, origin: str = THE_DEFAULT) -> Row:
    """A setting that is 1 or 0."""
    return Row(name, default, origin, switch, is_empty_unset=True)


def of_run(known: Known, *, is_elastic: bool, sbatch_no_kill: str | None) -> tuple[Row, ...]:
    """How the job of a run behaves."""
    grace_s, grace_origin = "25", THE_DEFAULT
    # A rank must be gone before Slurm's own SIGKILL ends the scripts that report what happened.
    if known.kill_wait:
        grace_s = str(max(int(known.kill_wait) - 5, 1))
        grace_origin = f"Slurm's KillWait of {known.kill_wait} s, less 5"
    # What a command of the user's own does when it starts again, only the user knows.
    restarts = ("0", OWN_COMMAND) if known.is_own_command else ("3", THE_DEFAULT)
    # Slurm does not show whether a job has --no-kill.
    no_kill, no_kill_origin = "0", THE_DEFAULT
    if is_elastic:
        no_kill, no_kill_origin = "1", "DDP_ELASTIC"
    elif sbatch_no_kill is not None:
        no_kill, no_kill_origin = str(int(sbatch_no_kill != "off")), "SBATCH_NO_KILL"
    num_nodes = known.num_nodes_allocated
    return (
        on_or_off("DDP_MONITOR", "1"),
        Row("DDP_MONITOR_INTERVAL", "15", check=integer(1, 86400)),
        Row("DDP_TIMESTAMP_INTERVAL", "120", check=integer(1, 86400)),
        Row("DDP_GRACE", grace_s, grace_origin, integer(0, 86400)),
        Row("DDP_MAX_RESTARTS", *restarts, integer(0, 1000)),
        Row("DDP_MAX_IDLE_RESTARTS", "1", check=integer(0, 1000)),
        on_or_off("DDP_WARM", "1"),
        on_or_off("DDP_BIND", "1"),
        on_or_off("DDP_PREFLIGHT", "1"),
        on_or_off("DDP_STAGE_IMAGE", "0"),
        on_or_off("DDP_REQUEUE", "1"),
        Row("DDP_ON_BUSY", "refuse", check=_BUSY),
        on_or_off("DDP_BAD_NODES", "1"),
        Row("DDP_BAD_NODE_HOURS", "24", check=integer(0, 8760)),
        Row("DDP_ELASTIC", None, check=node_range(num_nodes), is_empty_unset=True),
        on_or_off("DDP_NO_KILL", no_kill, no_kill_origin),
        Row("DDP_SPARE_NODES", "0", check=integer(0, num_nodes - 1)),
        Row("DDP_PREFLIGHT_LIMITS", None, check=preflight_limits),
        Row("DDP_HANG_TIMEOUT", None, check=integer(0, 86400)),
        Row("DDP_ON_BAD_NODE", None, is_empty_unset=True),
        Row("DDP_SBATCH_ARGS", None, check=shell_words, is_empty_unset=True),
    )


DEBUGGING = (
    Row("NCCL_DEBUG", "INFO", "DEBUG=1"),
    Row("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "DEBUG=1"),
    Row("CUDA_LAUNCH_BLOCKING", "1", "DEBUG=1"),
)


def of_torch(run_dir: str) -> tuple[Row, ...]:
    """What torch and CUDA read."""
    return (
        Row("PYTHONFAULTHANDLER", "1"),
        Row("NCCL_DEBUG", "WARN"),
        # The flight recorder. Before torch 2.9 the buffer was on by default; its old name earns a
        # warning from every rank today.
        Row("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
        Row("TORCH_FR_BUFFER_SIZE", "2000"),
        # Where it is looked for. Its name before torch 2.9 earns a warning from every rank, too.
        Row("TORCH_FR_DUMP_TEMP_FILE", paths.RunDir(run_dir).traces, "the watchdog"),
        # The watchdog asks for a hung rank's dump: the backend that is new in torch 2.15 does not
        # listen. The trainer, which torchrun may start without us, sets the same.
        Row("TORCH_DIST_USE_NCCL2", "0", "the watchdog"),
        Row("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "as NVML and Slurm count"),
    )


def cpus_per_task(asked: int) -> Row:
    """What srun takes; `asked` is 0 if the job does not ask."""
    default, check = str(asked) if asked else None, integer(1, 65535)
    return Row("SRUN_CPUS_PER_TASK", default, "SLURM_CPUS_PER_TASK", check, is_empty_unset=True)


# ---- names ---------------------------------------------------------------------------------------

OTHERS = {
    "DDP_AGENT_SOCKET",
    "DDP_BEAT_DIR",
    "DDP_HOME",
    "DDP_IMAGE",
    "DDP_MOUNTS",
    "DDP_MPI",
    "DDP_NPROC_PER_NODE",
    "DDP_PYTHON",
    "DDP_PYXIS",
    "DDP_SUPERVISED",
    "DDP_SWEEP_FILE",
}
"""Those that are read elsewhere."""
OF_TESTS = ("DDP_CLUSTER_", "DDP_MATRIX_")
"""Those of the virtual cluster and of other Debians."""
