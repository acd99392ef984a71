"""`python -m monitor record`: its settings come from options and from what a launcher exports."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from monitor.errors import emit
from monitor.logs import columns
from monitor.recorder import recording
from monitor.watchdog import settings

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_NUM_GPUS = ("LOCAL_WORLD_SIZE", "SLURM_GPUS_ON_NODE")
"""How many GPUs the job has on this node at least: one a rank, and what Slurm gave it."""


def add_options(parser: ArgumentParser) -> None:
    """Add its options."""
    parser.add_argument(
        "--out",
        required=True,
        help="the log; appended to if it is there; after SIGHUP a new one, if it was moved away",
    )
    parser.add_argument("--interval", type=float, default=15.0, metavar="S", help="default 15")
    parser.add_argument(
        "--columns",
        default=columns.letters(),
        help="pumt, then letters: c clocks, j energy, r throttle reasons, g SM, tensor and DRAM"
        " activity, h host, e errors of memory, v time throttled, x the driver's own samples,"
        " n NVLink, i InfiniBand, s step, q rank and its memory, d shared memory and disk,"
        f" k monotonic time (default: all, {columns.letters()})",
    )
    parser.add_argument(
        "--rotate-mib", type=int, metavar="N", help="at N MiB go on in a new file (default: never)"
    )
    parser.add_argument(
        "--rotate-keep", type=int, default=4, metavar="K", help="keep OUT.1 to OUT.K (default 4)"
    )
    parser.add_argument(
        "--parent-pid", type=int, metavar="PID", help="end with this process (default: the parent)"
    )
    parser.add_argument("--host", help="the node's name (default: DDP_NODE, else the host name)")
    parser.add_argument("--compose", metavar="RUN_DIR", help="write its run.json at the end")
    parser.add_argument(
        "--launch-id",
        metavar="TOKEN",
        help="when the parent dies, end the processes of this node that carry DDP_LAUNCH_ID=TOKEN",
    )
    parser.add_argument(
        "--hang-timeout",
        type=float,
        metavar="S",
        help="inactivity timeout of a rank (default: DDP_HANG_TIMEOUT, else learned from the ranks;"
        " 0: for ever); ranks are watched where DDP_BEAT_DIR, --launch-id and --compose are given",
    )


def run(options: Namespace) -> int:
    """Record until asked to end; 0."""
    env = dict(os.environ)
    settings.check_hang_timeout(options.hang_timeout)
    if options.hang_timeout is not None:
        env["DDP_HANG_TIMEOUT"] = str(options.hang_timeout)
    host = options.host or env.get("DDP_NODE") or os.uname().nodename
    node = env.get("DDP_NODE") or host
    return recording.record(
        recording.Settings(
            out=options.out,
            interval_s=options.interval,
            columns=options.columns,
            parent_pid=os.getppid() if options.parent_pid is None else options.parent_pid,
            host=host,
            node=env.get("DDP_NODE"),
            job_id=env.get("DDP_JOB_ID"),
            attempt=settings.number(env, "DDP_ATTEMPT", 0) or None,
            launch_id=options.launch_id,
            run_dir=options.compose,
            user=env.get("SLURM_JOB_USER") or env.get("USER") or env.get("LOGNAME"),
            heartbeat_dir=env.get("DDP_BEAT_DIR"),
            visible=env.get("CUDA_VISIBLE_DEVICES"),
            num_gpus=max(settings.number(env, name, 1) for name in _NUM_GPUS),
            rotate_mib=options.rotate_mib,
            num_kept=options.rotate_keep,
            watch=settings.from_environment(env, options.compose, options.launch_id, node),
        ),
        emit,
    )
