"""`python -m monitor preflight`: one report of this node's GPUs and host, for the supervisor."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from monitor.errors import UserError
from monitor.nvml.chosen import Named
from monitor.preflight import gpus, host
from monitor.watchdog.settings import number
from rundir import channel, events
from rundir.preflight import limits
from rundir.preflight.verdict import REPORT, Reading, Report

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_LONGEST_S = 600.0


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="such as out/slurm-123")
    parser.add_argument("--launch-id", default="", metavar="TOKEN", help="of this start of the job")


def run(options: Namespace) -> int:
    """Send the report; 0. What hangs longer than a stage may is reported as that."""
    if not os.path.isdir(options.run_dir):
        raise UserError(
            "a run directory must be there",
            f"none at '{options.run_dir}'",
            "name the directory of a run, such as out/slurm-123",
        )
    env = os.environ
    try:
        table = limits.parse(env.get(limits.VARIABLE, ""))
    except ValueError as error:
        raise UserError(*error.args) from error
    readings: list[Reading] = []
    node = env.get("DDP_NODE") or os.uname().nodename
    deliver = channel.reporter(options.run_dir, node)
    log = events.EventLog(deliver, "monitor", number(env, "DDP_ATTEMPT", 1), node)
    is_sent = threading.Lock()

    def send(*further: Reading) -> None:
        if is_sent.acquire(blocking=False):
            report = Report(node, "monitor", (*readings, *further))
            log.write(REPORT, **report.to_event(), clock_s=time.time())

    def give_up(stage_s: float) -> None:
        send(Reading("hung", 1, f"NVML or a disk, for {stage_s:g} s"))
        os._exit(0)

    stage_s = min(limits.limit_of(table, "stage_s"), _LONGEST_S)
    watchdog = threading.Timer(stage_s, give_up, (stage_s,))
    watchdog.daemon = True
    watchdog.start()
    named = Named(env.get("CUDA_VISIBLE_DEVICES"), number(env, "SLURM_GPUS_ON_NODE", 1))
    gpus.read(named, options.launch_id, readings.append)
    host.read(options.run_dir, node, options.launch_id, readings.append)
    send()
    os._exit(0)  # a call of NVML may hang in its thread
