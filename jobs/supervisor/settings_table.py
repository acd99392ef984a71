"""The table of settings: name, default, where that comes from, and what a value must be."""

from __future__ import annotations

from typing import Callable, NamedTuple, Union

from jobs.checks import Check, integer, matching
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


_BUSY = matching("refuse|wait", "refuse or wait", "set one of them, or unset it")
SEED = matching("[0-9]{1,10}", "a whole number below 10^10", "correct it, or unset it")
RUN_NAME = matching(
    paths.RUN_NAME.pattern, "letters, digits, '.', '_' and '-'", "give the run such a name"
)

# ---- rows ----------------------------------------------------------------------------------------

Value = Union[str, Callable[[Known], str]]
"""A default or its origin, or what computes it."""


class Row(NamedTuple):
    """A setting of the table."""

    name: str
    default: Value
    origin: Value = THE_DEFAULT
    check: Check | None = None
    is_switch: bool = False
    """Empty is unset."""


def _grace(known: Known) -> str:
    """A rank must be gone before Slurm's own SIGKILL ends the scripts that tell what happened."""
    if not known.kill_wait:
        return "25"
    return str(max(int(known.kill_wait) - 5, 1))


def _grace_origin(known: Known) -> str:
    return f"Slurm's KillWait of {known.kill_wait} s, less 5" if known.kill_wait else THE_DEFAULT


RUN = (
    Row("DDP_MONITOR", "1", is_switch=True),
    Row("DDP_MONITOR_INTERVAL", "15", check=integer(1, 86400)),
    Row("DDP_TIMESTAMP_INTERVAL", "120", check=integer(1, 86400)),
    Row("DDP_GRACE", _grace, _grace_origin, integer(0, 86400)),
    # What a command of the user's own does when it starts again, only the user knows.
    Row(
        "DDP_MAX_RESTARTS",
        lambda known: "0" if known.is_own_command else "3",
        lambda known: OWN_COMMAND if known.is_own_command else THE_DEFAULT,
        integer(0, 1000),
    ),
    Row("DDP_MAX_IDLE_RESTARTS", "1", check=integer(0, 1000)),
    Row("DDP_WARM", "1", is_switch=True),
    Row("DDP_BIND", "1", is_switch=True),
    Row("DDP_PREFLIGHT", "1", is_switch=True),
    Row("DDP_STAGE_IMAGE", "0", is_switch=True),
    Row("DDP_REQUEUE", "1", is_switch=True),
    Row("DDP_ON_BUSY", "refuse", check=_BUSY),
    Row("DDP_BAD_NODES", "1", is_switch=True),
    Row("DDP_BAD_NODE_HOURS", "24", check=integer(0, 8760)),
)

DEBUGGING = (
    Row("NCCL_DEBUG", "INFO", "DEBUG=1"),
    Row("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "DEBUG=1"),
    Row("CUDA_LAUNCH_BLOCKING", "1", "DEBUG=1"),
)

TORCH = (
    Row("PYTHONFAULTHANDLER", "1"),
    Row("NCCL_DEBUG", "WARN"),
    # The flight recorder. Before torch 2.9 the buffer was on by default; its old name earns a
    # warning from every rank today.
    Row("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
    Row("TORCH_FR_BUFFER_SIZE", "2000"),
    # Where it is looked for. Its name before torch 2.9 earns a warning from every rank, too.
    Row("TORCH_FR_DUMP_TEMP_FILE", "", "the watchdog"),
    # The watchdog asks for a hung rank's dump: the backend that is new in torch 2.15 does not
    # listen. The trainer, which torchrun may start without us, sets the same.
    Row("TORCH_DIST_USE_NCCL2", "0", "the watchdog"),
    Row("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "as NVML and Slurm count"),
)

# ---- names ---------------------------------------------------------------------------------------

OTHERS = {
    "DDP_AGENT_SOCKET",
    "DDP_BEAT_DIR",
    "DDP_HOME",
    "DDP_IFACE",
    "DDP_IMAGE",
    "DDP_MOUNTS",
    "DDP_MPI",
    "DDP_NODE",
    "DDP_NPROC_PER_NODE",
    "DDP_PYTHON",
    "DDP_PYXIS",
    "DDP_RUN_NAME",
    "DDP_SBATCH_ARGS",
    "DDP_SUPERVISED",
    "DDP_SWEEP_FILE",
    "DDP_TASK_RANK",
}
"""Those that are read elsewhere."""
OF_TESTS = ("DDP_CLUSTER_", "DDP_MATRIX_")
"""Those of the virtual cluster and of other Debians."""
