"""The life of a job, from its arguments to its exit code.

jobs/prelaunch.sh execs this, in a Python that may be as old as 3.9 and has nothing installed.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from jobs import processes
from jobs.backends import requeue
from jobs.checks import Made, working_directory
from jobs.loop import Loop
from jobs.messages import Exit, UsageError, info
from jobs.programs import which
from jobs.supervisor import decide, history, plan, run, settings
from jobs.supervisor.attempts import Attempts
from jobs.supervisor.current import Current
from jobs.supervisor.lock import RENEW_S, Lock
from jobs.supervisor.signals import Requests
from rundir import codes

if TYPE_CHECKING:
    from jobs.supervisor.decide import Decision
    from jobs.supervisor.plan import Plan

_LEAST_FILES = 32
"""Files that a supervisor must be able to open; one with two ranks in place has 12."""


def main() -> NoReturn:
    """Run the job, and exit with its code."""
    processes.open_standard_files()
    root, script, *words = sys.argv[1:]
    try:
        code = supervise(root, script, words, processes.initial_environment())
    except UsageError as error:
        info(str(error))
        code = codes.USAGE
    except Exit as end:
        code = end.code
    os._exit(code)  # threads that still write, or ask Slurm, are not waited for


def supervise(root: str, script: str, words: list[str], environ: dict[str, str]) -> int:
    """Run the job that these arguments ask for; return its code. Raises UsageError and Exit."""
    try:
        now, lock = _begin(root, script, words, environ)
    except (OSError, RecursionError) as error:
        raise UsageError(
            "nothing may fail before the ranks start", str(error), "correct what this names"
        ) from error
    if now.plan.arguments.is_preflight:
        return _check_nodes(now, lock)
    try:
        decision = _run_attempts(now)
    finally:
        now.requests.ignore()
    return _end(now, lock, decision)


def _begin(
    root: str, script: str, words: list[str], environ: dict[str, str]
) -> tuple[Current, Lock]:
    """Do all that comes before the ranks. Raises UsageError and Exit."""
    _check_open_files()
    working_directory()
    job = plan.prepare(root, script, words, environ)
    if job.arguments.is_dry_run:
        raise Exit(codes.FINISHED)
    loop = Loop()
    requests = Requests(loop)
    lock = _open_run(job, requests)
    _start_timers(job, loop, lock)
    return Current(job, loop, requests), lock


def _check_open_files() -> None:
    num = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= num < _LEAST_FILES:
        raise UsageError(
            f"a job must be able to have {_LEAST_FILES} open files",
            f"a limit of {num}",
            "raise it (ulimit -n 1024)",
        )


def _open_run(job: Plan, requests: Requests) -> Lock:
    """Make the run directory and own it. Raises UsageError and Exit."""
    here, values, made = job.here, job.settings, Made()
    lock = Lock(
        job.files.path,
        values["DDP_LAUNCH_ID"],
        here.slurm if here.has_client else None,
        job=here.slurm.name if here.is_under_slurm else "",
        restarts=str(here.slurm.restart_count),
        grace_s=values.number("DDP_GRACE"),
    )
    try:
        run.make(job.files, made, here, job.temporary)
        requests.listen()
        lock.take(
            requests.pause,
            requests.is_stopped,
            may_wait=values["DDP_ON_BUSY"] == "wait",
            report_every_s=values.number("DDP_TIMESTAMP_INTERVAL"),
        )
        # While this job waited for the lock, its owner may have made further attempts.
        settings.note_attempt(values, history.num_starts(job.files) + 1, job.job.id)
        run.fill(job.files, made)
    except BaseException:  # whatever it is: remove what this start made, and nothing else
        lock.undo()
        made.remove()
        raise
    return lock


def _start_timers(job: Plan, loop: Loop, lock: Lock) -> None:
    """Renew the lock now and then, for jobs that cannot ask Slurm; print that the job runs."""
    here = job.here
    loop.every(RENEW_S, lambda: loop.in_background(lock.renew))
    if here.is_under_slurm and not here.is_interactive:  # an interactive job has a person watching
        loop.every(
            job.settings.number("DDP_TIMESTAMP_INTERVAL"),
            lambda: info(f"{time.strftime('%Y-%m-%d %H:%M:%S %z')} job {job.job.id} is running"),
        )
    elif not here.is_under_slurm and which("sbatch", here.environ):
        info(
            f"no Slurm job: the ranks run on this machine, {here.node}; to submit one: sbatch"
            " jobs/prelaunch.sh"
        )


def _check_nodes(now: Current, lock: Lock) -> int:
    """Run the preflight alone, as --preflight asks; return 0 if it found no bad node."""
    from jobs.supervisor.preflight import Preflight  # noqa: PLC0415 -- seldom needed

    found = Preflight(now).run()
    now.flush()
    now.journal.flush()
    lock.release()
    return codes.FINISHED if found and not found.bad else codes.FAILED


def _run_attempts(now: Current) -> Decision:
    """Run the attempts; should this script itself fail, end what it started."""
    attempts = Attempts(now)
    try:
        return attempts.run()
    except Exception:  # noqa: BLE001 -- whatever it is: no rank may stay behind
        import traceback  # noqa: PLC0415 -- rarely needed

        traceback.print_exc()
        now.requests.ignore()
        attempts.break_off()
        text = f"prelaunch.sh itself failed ({codes.describe(codes.FAILED)}); see the lines above"
        return decide.Decision(decide.FAIL, text, text, codes.FAILED)


def _end(now: Current, lock: Lock, decision: Decision) -> int:
    """Report what happened, and carry the decision out; return the exit code."""
    info(decision.message)
    now.remove_snapshots()
    slurm = now.plan.here.slurm
    is_done = decision.fate == decide.REQUEUED
    if decision.kind == decide.REQUEUE and requeue.requeue(
        slurm, decision.exclude, decision.comment, is_done=is_done
    ):
        return decision.code  # the requeued job keeps the lock
    if decision.kind in (decide.REQUEUE, decide.SUCCESSOR):
        _submit_successor(now, lock, decision)
    lock.release()
    return decision.code


def _submit_successor(now: Current, lock: Lock, decision: Decision) -> None:
    job, values = now.plan, now.settings
    here, name = job.here, job.files.name
    successor = requeue.Successor(
        f"{here.root}/jobs/prelaunch.sh",
        job.arguments.submitted,
        here.environ,
        {"DDP_RUN_NAME": name, "DDP_OUT": values["DDP_OUT"], "DDP_SEED": values["DDP_SEED"]},
        here.num_nodes,
        decision.exclude,
        job.job.is_no_kill,
        decision.comment,
    )
    submitted = requeue.submit(here.slurm, successor)
    if submitted:
        task = here.slurm.array_task
        # The successor owns the run from now on, though it still waits in the queue.
        lock.release(f"{submitted}_{task}" if task else submitted)
        info(
            f"job {submitted} is submitted and carries on with {name} when job {job.job.id} has"
            " ended"
        )
        return
    now.journal.write(
        "decision",
        decision=decide.FAIL,
        reason="the successor could not be submitted",
        restarts=decision.counters.restarts,
        idle=decision.counters.idle,
        exclude=None,
    )
    now.journal.flush()
    info(f"no successor could be submitted; {job.job.go_on}")
