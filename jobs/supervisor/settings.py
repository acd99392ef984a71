"""The settings in force and where each came from.

Resolved once, by pure functions of the environment and of what is known of the job; the table of
them is settings_table.py.
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

from jobs.checks import check_no_tilde
from jobs.messages import UsageError
from jobs.programs import check_root
from jobs.supervisor import settings_table as table
from rundir import paths
from rundir.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.backends.base import Layout
    from jobs.checks import Check
    from jobs.supervisor.settings_table import Known, Row

THE_ENVIRONMENT = "the environment"


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
        self.apply(table.Row(name, value, origin, check))

    def apply(self, row: Row) -> None:
        """Put the user's value in force, or else the table's, if there is one."""
        given, origin = self._environ.get(row.name), THE_ENVIRONMENT
        if given is None or (row.is_empty_unset and not given):
            given, origin = row.default, row.origin
        if given is not None:
            self.note(row.name, row.check(row.name, given) if row.check else given, origin)

    @property
    def chosen(self) -> str:
        """The names whose values the user did not set, for a job started from within this one."""
        return " ".join(n for n, origin in self.origins.items() if origin != THE_ENVIRONMENT)

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of the ranks."""
        return {**base, **self.values, "DDP_CHOSEN": self.chosen, "DDP_SUPERVISED": "1"}


def cksum(text: str) -> int:
    """The checksum that POSIX's cksum prints: the same seed for the same name, by any script."""
    size, data = len(text.encode()), text.encode()
    while size:
        data += bytes([size & 0xFF])
        size >>= 8
    reversed_bits = bytes(int(f"{byte:08b}"[::-1], 2) for byte in data)
    crc = zlib.crc32(reversed_bits, 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{crc & 0xFFFFFFFF:032b}"[::-1], 2) ^ 0xFFFFFFFF


def resolve_run(settings: Settings, environ: Mapping[str, str], known: Known) -> None:
    """Resolve where the run is and how its job behaves. Raises UsageError."""
    _resolve_out(settings, known)
    settings.note("DDP_JOB_ID", known.job_id, known.job_id_origin)
    settings.apply(table.Row("DDP_RUN_NAME", None, check=table.RUN_NAME))
    # The directory is this job's own: what an outer job exported does not count.
    name = settings.get("DDP_RUN_NAME") or paths.run_name(known.job_id)
    settings.note("DDP_RUN_DIR", f"{settings['DDP_OUT']}/{name}", "DDP_OUT and the run's name")
    note_attempt(settings, 1, known.job_id)
    # The same after a requeue and in every link of a chain, because it comes from the name.
    settings.default("DDP_SEED", str(cksum(name)), "the run's name", table.SEED)
    is_elastic = bool(environ.get("DDP_ELASTIC"))
    sbatch_no_kill = environ.get("SBATCH_NO_KILL")
    for row in table.of_run(known, is_elastic=is_elastic, sbatch_no_kill=sbatch_no_kill):
        settings.apply(row)
    # For programs that plan a last checkpoint.
    end_origin = "Slurm's EndTime of the job" if known.end_time else "no time limit known"
    settings.note("DDP_END_TIME", known.end_time, end_origin)
    settings.note("DDP_NUM_NODES", str(known.num_nodes), "the nodes of this step")
    # A log is a file, and Python keeps the last 8 KiB for a file to itself: the words before a
    # SIGKILL, a crash or a hang would be lost. Our trainer flushes by itself.
    if known.is_own_command:
        settings.default("PYTHONUNBUFFERED", "1", table.OWN_COMMAND)
    _resolve_torch(settings)


def _resolve_out(settings: Settings, known: Known) -> None:
    settings.default("DDP_OUT", f"{known.submit_dir}/out", "out/ in the submit directory")
    out = settings["DDP_OUT"]
    if not out:
        raise UsageError(
            "DDP_OUT must name a directory",
            "an empty name",
            "correct it, or unset it for out/ in the submit directory",
        )
    check_no_tilde("DDP_OUT", out)
    if not out.startswith("/"):
        settings.values["DDP_OUT"] = f"{known.cwd}/{out}"
    if "\n" in known.root + out:
        raise UsageError(
            "the project's and the output's directory must have no line break in their names",
            f"{known.root}/jobs and {out}",
            "rename them",
        )
    check_root(known.root)


def _resolve_torch(settings: Settings) -> None:
    settings.apply(table.on_or_off("DEBUG", "0"))
    debugging = table.DEBUGGING if settings.is_on("DEBUG") else ()
    for row in (*debugging, *table.of_torch(settings["DDP_RUN_DIR"])):
        if row.name not in settings.values:
            settings.apply(row)


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
    # 22.05 and 23.02 do not take it from SLURM_CPUS_PER_TASK: every rank would be on one core.
    settings.apply(table.cpus_per_task(asked_cpus))
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
    """Remove what another job chose for itself, so that only what the user set counts as set.

    A rank of that job started this script, or submitted it as a job.
    """
    for name in environ.pop("DDP_CHOSEN", "").split():
        environ.pop(name, None)


# ---- names of the environment --------------------------------------------------------------------


def unknown(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """Names that look like settings: a mistyped one would be silently without effect."""
    return [
        name
        for name in sorted(environ)
        if name.startswith("DDP_")
        and environ[name]
        and name not in settings.origins
        and name not in table.OTHERS
        and not name.startswith(table.OF_TESTS)
    ]
