"""An agent from its beginning to its end."""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from jobs import processes, programs
from jobs.agent import command, contract, defaults
from jobs.agent.rank import run_rank
from jobs.agent.reports import report_refusal
from jobs.agent.standby import VARIABLE, Standby
from jobs.loop import Loop
from jobs.messages import UsageError, info
from rundir import channel, codes
from rundir.paths import RunDir

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_MOST_FILES = 1_048_576
"""Programs that close every descriptor there may be take seconds with more."""


def main(words: list[str]) -> int:
    """Run `launcher.sh WORDS...`; return its exit code."""
    processes.open_standard_files()
    try:
        return _run(words)
    except UsageError as error:
        info(str(error), "launcher")
        return codes.USAGE


def _run(words: list[str]) -> int:
    environ = defaults.read_switches(processes.initial_environment())
    standby = None
    if session := environ.pop(VARIABLE, ""):
        standby = Standby(environ, _ROOT, session)
        words, environ = standby.wait(environ)
    if environ.get(channel.SUPERVISED) != "1":  # else the supervisor has
        programs.check_root(_ROOT)
        programs.check_wanted(environ, is_bare=False)
    place = contract.resolve(environ)
    place = place._replace(environ=defaults.complete(place.environ))
    try:
        return _start(words, place, standby)
    except UsageError as error:
        report_refusal(place.environ, str(error))
        raise


def _start(words: list[str], place: contract.Contract, standby: Standby | None) -> int:
    rank = None if place.is_node_task else command.build(words, place.environ, _ROOT)
    files = RunDir(place.environ["DDP_RUN_DIR"])
    defaults.make_writable((files.logs, files.debug), place.environ)
    _raise_limits()
    loop = Loop()
    if rank is None:
        from jobs.agent.node import run_node  # noqa: PLC0415 -- a megabyte, seldom needed

        return run_node(words, place, _ROOT, loop)
    return run_rank(rank, contract.with_torchrun_names(place.environ), _ROOT, loop, standby)


def _raise_limits() -> None:
    """Raise each limit as far as this process may.

    Slurm hands on the soft limits of the shell that submitted: RDMA pins memory, ranks that all
    talk to each other and data loaders need descriptors and threads.
    """
    infinity = resource.RLIM_INFINITY
    _set_limit(resource.RLIMIT_MEMLOCK, infinity, infinity)
    for limit in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        hard = resource.getrlimit(limit)[1]
        soft = hard
        if limit == resource.RLIMIT_NOFILE and (hard == infinity or hard > _MOST_FILES):
            soft = _MOST_FILES
        _set_limit(limit, soft, hard)


def _set_limit(limit: int, soft: int, hard: int) -> None:
    with suppress(ValueError, OSError):
        resource.setrlimit(limit, (soft, hard))
