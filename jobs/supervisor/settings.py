"""The settings in force and where each came from: tables of name, default, origin and check.

Parsed once, by pure functions of the environment and of what is known of the job.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import TYPE_CHECKING, Callable, NamedTuple, Union

from jobs.checks import switch, whole_number
from jobs.messages import UsageError
from rundir import paths
from rundir.preflight import limits
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jobs.backends.base import Layout

_OTHERS = {
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
_OF_TESTS = ("DDP_CLUSTER_", "DDP_MATRIX_")
"""Those of the virtual cluster and of other Debians."""

THE_ENVIRONMENT, THE_DEFAULT = "the environment", "the default"
OWN_COMMAND = "a command of one's own"

Check = Callable[[str, str], str]
"""Takes a setting's name and value, returns the value as it counts. Raises UsageError."""


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


class Settings:
    """Values and origins, in the order in which they were resolved.

    Args:
        environ: What the user set; it is not changed.

    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.values: dict[str, str] = {}
        self.origins: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def get(self, name: str) -> str:
        """A setting that need not be there; empty if it is not."""
        return self.values.get(name, "")

    def number(self, name: str) -> int:
        """A setting that is a whole number."""
        return int(self.values[name])

    def is_on(self, name: str) -> bool:
        """A setting that is 1 or 0."""
        return self.values[name] == "1"

    def note(self, name: str, value: str, origin: str) -> None:
        """Put a value in force, whatever the user set."""
        self.values[name], self.origins[name] = value, origin

    def default(self, name: str, value: str, origin: str, check: Check | None = None) -> None:
        """Put the user's value in force, or else this one."""
        if name in self._environ:
            value, origin = self._environ[name], THE_ENVIRONMENT
        self.note(name, check(name, value) if check else value, origin)

    @property
    def chosen(self) -> str:
        """Names that are no wish of the user's, for who starts another job from within this one."""
        return " ".join(n for n, origin in self.origins.items() if origin != THE_ENVIRONMENT)

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of the ranks."""
        return {**base, **self.values, "DDP_CHOSEN": self.chosen, "DDP_SUPERVISED": "1"}


# ---- checks --------------------------------------------------------------------------------------


def integer(least: int, most: int) -> Check:
    """A whole number in these bounds, without leading zeros."""
    return lambda name, value: str(whole_number(name, value, least, most))


def matching(pattern: str, rule: str, remedy: str) -> Check:
    """A text of this form."""

    def check(name: str, value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise UsageError(f"{name} must be {rule}", f"'{value}'", remedy)
        return value

    return check


def node_range(num_nodes: int) -> Check:
    """MIN:MAX, the fewest and the most nodes of a run, in an allocation of so many."""

    def check(name: str, value: str) -> str:
        least, most = bounds(value)
        if not 0 < least <= most:
            raise UsageError(
                f"{name} must be MIN:MAX, the fewest and the most nodes",
                f"'{value}'",
                f"write for example {name}=2:4, or unset it",
            )
        if least > num_nodes:
            raise UsageError(
                f"the job must have the {least} nodes that {name}={value} needs",
                counted(num_nodes, "node"),
                f"give sbatch --nodes={least}-{most}, or lower the first number",
            )
        return value

    return check


def bounds(value: str) -> tuple[int, int]:
    """Read MIN:MAX; both 0 for anything else."""
    found = re.fullmatch("([0-9]{1,6}):([0-9]{1,6})", value)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _preflight_limits(_name: str, value: str) -> str:
    """Limits of the preflight's table. Raises UsageError."""
    try:
        limits.parse(value)
    except ValueError as error:
        raise UsageError(*error.args) from None
    return value


_BUSY = matching("refuse|wait", "refuse or wait", "set one of them, or unset it")
_SEED = matching("[0-9]{1,10}", "a whole number below 10^10", "correct it, or unset it")
_RUN_NAME = matching(
    paths.RUN_NAME.pattern, "letters, digits, '.', '_' and '-'", "give the run such a name"
)


def cksum(text: str) -> int:
    """The checksum that POSIX's cksum prints: the same seed for the same name, by any script."""
    size, data = len(text.encode()), text.encode()
    while size:
        data += bytes([size & 0xFF])
        size >>= 8
    reversed_bits = bytes(int(f"{byte:08b}"[::-1], 2) for byte in data)
    crc = zlib.crc32(reversed_bits, 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{crc & 0xFFFFFFFF:032b}"[::-1], 2) ^ 0xFFFFFFFF


# ---- tables --------------------------------------------------------------------------------------

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


def _apply(settings: Settings, environ: Mapping[str, str], row: Row, known: Known) -> None:
    default = row.default if isinstance(row.default, str) else row.default(known)
    origin = row.origin if isinstance(row.origin, str) else row.origin(known)
    if row.is_switch and not environ.get(row.name):
        settings.note(row.name, switch(row.name, default), origin)
    else:
        settings.default(row.name, default, origin, switch if row.is_switch else row.check)


def resolve_run(settings: Settings, environ: Mapping[str, str], known: Known) -> None:
    """Resolve where the run is and how its job behaves. Raises UsageError."""
    _resolve_out(settings, known)
    settings.note("DDP_JOB_ID", known.job_id, known.job_id_origin)
    if "DDP_RUN_NAME" in environ:
        value = _RUN_NAME("DDP_RUN_NAME", environ["DDP_RUN_NAME"])
        settings.note("DDP_RUN_NAME", value, THE_ENVIRONMENT)
    # The directory is this job's own: what an outer job exported does not count.
    name = environ.get("DDP_RUN_NAME") or f"slurm-{known.job_id}"
    settings.note("DDP_RUN_DIR", f"{settings['DDP_OUT']}/{name}", "DDP_OUT and the run's name")
    note_attempt(settings, 1, known.job_id)
    # The same after a requeue and in every link of a chain, because it comes from the name.
    settings.default("DDP_SEED", str(cksum(name)), "the run's name", _SEED)
    for row in RUN:
        _apply(settings, environ, row, known)
    is_elastic = bool(environ.get("DDP_ELASTIC"))
    if is_elastic:
        settings.default("DDP_ELASTIC", "", "", node_range(known.num_nodes_allocated))
    # Slurm does not show whether a job has --no-kill.
    is_kept = is_elastic or environ.get("SBATCH_NO_KILL", "off") != "off"
    origin = "DDP_ELASTIC" if is_elastic else "SBATCH_NO_KILL"
    row = Row("DDP_NO_KILL", "1" if is_kept else "0", origin, is_switch=True)
    _apply(settings, environ, row, known)
    settings.default("DDP_SPARE_NODES", "0", THE_DEFAULT, integer(0, known.num_nodes_allocated - 1))
    if limits.VARIABLE in environ:
        settings.default(limits.VARIABLE, "", "", _preflight_limits)
    if "DDP_HANG_TIMEOUT" in environ:
        settings.default("DDP_HANG_TIMEOUT", "", "", integer(0, 86400))
    if environ.get("DDP_ON_BAD_NODE"):
        settings.default("DDP_ON_BAD_NODE", "", "")
    # For whoever has to plan a last checkpoint.
    settings.note("DDP_END_TIME", known.end_time, "Slurm's EndTime of the job")
    settings.note("DDP_NUM_NODES", str(known.num_nodes), "the nodes of this step")
    # A log is a file, and Python keeps the last 8 KiB for a file to itself: the words before a
    # SIGKILL, a crash or a hang would be lost. Our trainer flushes by itself.
    if known.is_own_command:
        settings.default("PYTHONUNBUFFERED", "1", OWN_COMMAND)
    _resolve_torch(settings, environ, known)


def _resolve_out(settings: Settings, known: Known) -> None:
    settings.default("DDP_OUT", f"{known.submit_dir}/out", "out/ in the submit directory")
    out = settings["DDP_OUT"]
    if not out:
        raise UsageError(
            "DDP_OUT must name a directory",
            "an empty name",
            "correct it, or unset it for out/ in the submit directory",
        )
    if not out.startswith("/"):
        settings.values["DDP_OUT"] = f"{known.cwd}/{out}"
    if "\n" in known.root + out:
        raise UsageError(
            "the project's and the output's directory must have no line break in their names",
            f"{known.root}/jobs and {out}",
            "rename them",
        )


def _resolve_torch(settings: Settings, environ: Mapping[str, str], known: Known) -> None:
    _apply(settings, environ, Row("DEBUG", "0", is_switch=True), known)
    debugging = DEBUGGING if settings.is_on("DEBUG") else ()
    given = {row.name for row in debugging}
    for row in (*debugging, *(row for row in TORCH if row.name not in given)):
        if row.name == "TORCH_FR_DUMP_TEMP_FILE":
            default = f"{settings['DDP_RUN_DIR']}/debug/nccl-trace-rank-"
            row = row._replace(default=default)  # noqa: PLW2901 -- its place in the table counts
        _apply(settings, environ, row, known)


def note_attempt(settings: Settings, attempt: int, job_id: str) -> None:
    """Number an attempt, and give it a token of its own."""
    settings.note("DDP_ATTEMPT", str(attempt), "starts in events.jsonl")
    settings.note("DDP_LAUNCH_ID", f"{job_id}.{attempt}.{os.getpid()}", "this start")


def resolve_ranks(
    settings: Settings, environ: Mapping[str, str], layout: Layout, cpus: int, asked_cpus: int
) -> None:
    """Resolve what ranks share: the CPUs of their node, and the network.

    Args:
        settings: Are added to.
        environ: What the user set.
        layout: The ranks.
        cpus: Of a node; Slurm says how many a task has, else ranks divide them.
        asked_cpus: Of a task; 0 if the job does not ask.

    """
    if asked_cpus:
        # 22.05 and 23.02 do not take it from SLURM_CPUS_PER_TASK: every rank would be on one core.
        settings.default("SRUN_CPUS_PER_TASK", str(asked_cpus), "SLURM_CPUS_PER_TASK")
    num_threads = max(cpus_of_a_rank(layout, cpus, asked_cpus), 1)
    settings.default("OMP_NUM_THREADS", str(num_threads), "CPUs of a rank")
    if environ.get("DDP_IFACE"):
        interface = environ["DDP_IFACE"]
        settings.note("DDP_IFACE", interface, THE_ENVIRONMENT)
        # Without =, eth1 is eth10, too.
        settings.default("NCCL_SOCKET_IFNAME", f"={interface}", "DDP_IFACE")
        settings.default("GLOO_SOCKET_IFNAME", interface, "DDP_IFACE")
    note_world(settings, layout)


def cpus_of_a_rank(layout: Layout, cpus: int, asked_cpus: int) -> int:
    """Ranks of one task share its CPUs, or those of one node the node's."""
    if asked_cpus:
        return asked_cpus // (layout.num_local_ranks // layout.num_local_tasks)
    return cpus // layout.num_local_ranks


def note_world(settings: Settings, layout: Layout) -> None:
    """Put the number of ranks in force."""
    each = " on each" if layout.num_nodes > 1 else ""
    words = f"{counted(layout.num_nodes, 'node')}, {counted(layout.num_local_ranks, 'rank')}{each}"
    settings.note("WORLD_SIZE", str(layout.world_size), words)


def forget_chosen(environ: dict[str, str]) -> None:
    """Take out what is no wish of the user's.

    This script was started by a rank of another job, or by a job that such a rank submitted, and
    the other one had chosen that for itself.
    """
    for name in environ.pop("DDP_CHOSEN", "").split():
        environ.pop(name, None)


# ---- names of the environment --------------------------------------------------------------------


def unknown(settings: Settings, environ: Iterable[str]) -> list[str]:
    """Names that look like settings: a mistyped one would be silently without effect."""
    return [
        name
        for name in sorted(environ)
        if name.startswith("DDP_")
        and name not in settings.origins
        and name not in _OTHERS
        and not name.startswith(_OF_TESTS)
    ]
