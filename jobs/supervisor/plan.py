"""The plan of a job, made before anything is written: where it runs, its command, its settings."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from jobs import checks
from jobs.backends import registry, scontrol, slurm, surroundings
from jobs.backends.base import Step, Surroundings, tmp_dir
from jobs.backends.local import count_gpus
from jobs.backends.slurm import Slurm
from jobs.messages import UsageError, info, write
from jobs.supervisor import arguments as asked
from jobs.supervisor import check, foreign, history, layout, rendezvous, run, settings, show
from jobs.supervisor.ending import Job
from jobs.supervisor.settings import Settings
from jobs.supervisor.settings_table import Known
from rundir import procfs
from rundir.paths import RunDir

if TYPE_CHECKING:
    from jobs.backends.base import Backend, Layout
    from jobs.supervisor.arguments import Arguments


class Plan(NamedTuple):
    """All that is known before anything is written."""

    here: Surroundings
    arguments: Arguments
    backend: Backend
    layout: Layout
    nodes: list[str]
    settings: Settings
    job: Job
    files: RunDir
    temporary: str
    is_elastic: bool
    """Whether the ranks are one torchrun a node, of the user's own, that lets nodes come and go."""

    @property
    def wants_preflight(self) -> bool:
        """Whether this job's first attempt comes after a preflight."""
        is_several = len(self.nodes) > 1 and not self.backend.is_in_place
        return is_several and self.settings.is_on("DDP_PREFLIGHT")


def prepare(root: str, script: str, words: list[str], environ: dict[str, str]) -> Plan:
    """Check and resolve everything, and show it. Raises UsageError and Exit."""
    if environ.get("TORCHELASTIC_RUN_ID"):
        raise UsageError(
            "this script must run once a job",
            "that torchrun starts it once a rank",
            "run it without torchrun, or let torchrun start jobs/launcher.sh",
        )
    arguments = asked.parse(words, root, environ)

    client = Slurm(environ)
    surroundings.leave_to_task_zero(client, script)
    settings.forget_chosen(environ)
    if not client.job_id:
        checks.refuse_other_launchers(environ)
    surroundings.forget_hooks(environ)
    here, values = surroundings.look_around(root, script, words, environ), Settings(environ)
    here = here._replace(num_local_ranks=layout.num_local_ranks(here, arguments, values))
    here, backend = registry.choose(here)
    ranks = layout.count(here, backend, arguments)

    if arguments.is_own_command:
        _check_command(here, backend, arguments, ranks)
    files = _resolve_run(values, here, arguments, ranks)
    checking = check.start(here, backend, arguments, ranks, values["DDP_RUN_DIR"])
    nodes = _resolve_ranks(values, here, backend, arguments, ranks)
    job = _job_of(values, here, arguments, ranks)

    step = Step(
        arguments.words,
        values.environ(environ),
        ranks,
        nodes[: ranks.num_nodes],
        values["DDP_OUT"],
        is_restart=False,
    )
    is_elastic = _is_elastic(backend, arguments, ranks, environ)
    command = backend.command(step.of_node(0) if is_elastic else step)
    python = checking.python if backend.is_bare else None
    is_chosen = python is not None and not environ.get("DDP_PYTHON")
    write(2, show.table(values, step.environ, python if python and is_chosen else ""))
    write(2, f"step: {show.command_line(command)}\n")
    checking.finish()
    temporary = tmp_dir(environ, is_in_container=here.is_in_container)
    return Plan(here, arguments, backend, ranks, nodes, values, job, files, temporary, is_elastic)


def _is_elastic(
    backend: Backend, arguments: Arguments, ranks: Layout, environ: dict[str, str]
) -> bool:
    """Whether the command is an elastic torchrun, and each node gets one."""
    if backend.is_in_place or not arguments.is_own_command:
        return False
    is_one_a_node = 1 < ranks.num_nodes == ranks.world_size
    return is_one_a_node and foreign.is_elastic(arguments.words[1:], environ)


def _check_command(
    here: Surroundings, backend: Backend, arguments: Arguments, ranks: Layout
) -> None:
    """Check a command of the user's own. Raises UsageError."""
    environ, command = here.environ, arguments.words[1:]
    has_gpus = bool(here.slurm.gpus_on_node) or count_gpus(environ) > 0
    foreign.check_launcher(command, ranks.world_size, environ, has_gpus=has_gpus)
    # Ranks that see the same files as this script need the program here. A login node, from which
    # salloc starts ranks elsewhere, need not have it.
    is_seen = backend.is_in_place or (not backend.has_own_image and here.slurm.is_batch)
    if is_seen:
        foreign.check_program(command[0], here.node, environ)


def _resolve_run(
    values: Settings, here: Surroundings, arguments: Arguments, ranks: Layout
) -> RunDir:
    """Resolve the settings of the run as a whole; return its directory. Raises UsageError."""
    job_id = here.slurm.name
    origin = "Slurm" if job_id else "no Slurm: time and process"
    job_id = job_id or time.strftime(f"local-%Y%m%dT%H%M%S-{os.getpid()}", time.gmtime())
    end_time = scontrol.local_time(scontrol.field(here.info, "EndTime"))
    known = Known(
        root=here.root,
        cwd=os.getcwd(),
        submit_dir=here.submit_dir,
        job_id=job_id,
        job_id_origin=origin,
        is_own_command=arguments.is_own_command,
        num_nodes=ranks.num_nodes,
        num_nodes_allocated=here.num_nodes,
        kill_wait=here.slurm.config("KillWait") if here.has_client else "",
        end_time="" if end_time is None else str(end_time),
    )
    settings.resolve_run(values, here.environ, known)
    here.slurm.is_traced = values.is_on("DEBUG")
    files = RunDir(values["DDP_RUN_DIR"])
    run.check_files(files)
    settings.note_attempt(values, history.num_starts(files) + 1, job_id)
    return files


def _resolve_ranks(
    values: Settings, here: Surroundings, backend: Backend, arguments: Arguments, ranks: Layout
) -> list[str]:
    """Resolve the settings of the ranks; return the allocation's nodes. Raises UsageError."""
    environ = here.environ
    nodes = layout.order(values, backend.nodes(), ranks.num_nodes)
    rendezvous.resolve(values, backend, here, nodes[: ranks.num_nodes], is_restart=False)
    asked_cpus = here.slurm.cpus_per_task
    num_cpus = here.slurm.cpus_on_node or procfs.num_cpus()
    settings.resolve_ranks(values, environ, ranks, num_cpus, asked_cpus)
    if not arguments.is_own_command:
        layout.warn_of_cpus(here, settings.cpus_of_a_rank(ranks, num_cpus, asked_cpus))
    for name in settings.unknown(values, environ):
        info(
            f"warning: there is no setting {name}; it has no effect (settings are listed in"
            " README.md)"
        )
    if here.is_in_container:
        run.check_output_survives(values["DDP_OUT"], environ)
    return nodes


def _job_of(values: Settings, here: Surroundings, arguments: Arguments, ranks: Layout) -> Job:
    """Collect what stays the same in all attempts."""
    return Job(
        id=values["DDP_JOB_ID"],
        run_dir=values["DDP_RUN_DIR"],
        image=here.environ.get("DDP_IMAGE") or here.environ.get(f"{slurm.PYXIS}image") or "",
        num_nodes_allocated=here.num_nodes,
        num_nodes_wanted=ranks.num_nodes,
        is_own_command=arguments.is_own_command,
        is_under_slurm=here.is_under_slurm,
        is_interactive=here.is_interactive,
        has_client=here.has_client,
        restart_count=here.slurm.restart_count,
        max_restarts=values.number("DDP_MAX_RESTARTS"),
        max_idle_restarts=values.number("DDP_MAX_IDLE_RESTARTS"),
        may_requeue=values.is_on("DDP_REQUEUE"),
        is_no_kill=values.is_on("DDP_NO_KILL"),
        min_nodes=checks.bounds(values.get("DDP_ELASTIC"))[0] or None,
    )
