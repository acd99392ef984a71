"""The names in a run directory, and of a run in the memory of its nodes, written down once.

$DDP_OUT (default `out/` in the submit directory) holds `slurm-<job>.<host>.gutil`, one a node, and
the run directory itself, `slurm-<job>/` or the name in DDP_RUN_NAME.
"""

from __future__ import annotations

import os
import re

EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
RECORD = "run.json"
CHECKPOINTS = "checkpoints"
LATEST = "latest"
BEST = "best"
LOGS = "logs"
DEBUG = "debug"
TRACES = "nccl-trace-rank-"
"""How the names of the flight recorder's dumps in DEBUG begin: the rank follows."""
PREFLIGHT = ".preflight"
TRAINER_LOCK = ".trainer"
"""Locked by the rank 0 of a trainer that no job started."""

JOB_PREFIX = "slurm-"
"""How the names of a job's run directory and logs begin: its id follows."""
SAMPLES_SUFFIX = ".gutil"

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
JOB_LOCK = re.compile(r"lock\.([0-9]+)")
STEP = re.compile("step-([0-9]{1,18})")
"""A complete checkpoint's name."""
NODE_EVENTS = re.compile(r"events\.(.+)\.jsonl")


def run_name(job_id: str) -> str:
    """Return the name of a job's run directory, unless DDP_RUN_NAME gives one."""
    return f"{JOB_PREFIX}{job_id}"


def step_name(step: int) -> str:
    """Return the name of a step's checkpoint."""
    return f"step-{step}"


def step_of(name: str) -> int | None:
    """Return n of `step-<n>`, None for any other name."""
    match = STEP.fullmatch(name)
    return int(match[1]) if match else None


MEMORY = "/dev/shm"  # noqa: S108 -- names in it are a job's own, and checked to be this user's
"""Where a node's memory is a file system."""
HEARTBEATS = "ddp."
"""How the names of directories begin in which a node's ranks leave their heartbeats."""
SNAPSHOTS = "ddp-snapshots."
"""How the names in a node's memory begin under which trainers keep snapshots."""


def heartbeats_prefix(launch_id: str) -> str:
    """Return how the names of an attempt's directories of heartbeats begin: the node follows."""
    return f"{HEARTBEATS}{launch_id}."


def snapshots_prefix(launch_id: str) -> str:
    """Return how a job's snapshots begin; `launch_id` is JOB.ATTEMPT.PID of its supervisor."""
    job, _, pid = launch_id.rsplit(".", 2) if launch_id.count(".") > 1 else (launch_id, "", "")
    return f"{SNAPSHOTS}{job}.{pid}."


def gutil_path(out: str, job_id: str, node: str) -> str:
    """Where a node's samples are written."""
    return os.path.join(out, f"{run_name(job_id)}.{node}{SAMPLES_SUFFIX}")


def nodes_path(out: str) -> str:
    """Where jobs leave to later ones which nodes are bad."""
    return os.path.join(out, "nodes.jsonl")


class RunDir:
    """A run directory's files. The path is absolute; nothing here touches the disk."""

    def __init__(self, path: str) -> None:
        """Name the files of the run directory at `path`."""
        self.path = os.fspath(path)
        self.name = os.path.basename(self.path)
        self.events = self._at(EVENTS)
        self.metrics = self._at(METRICS)
        self.record = self._at(RECORD)
        self.checkpoints = self._at(CHECKPOINTS)
        self.latest = self._at(CHECKPOINTS, LATEST)
        self.logs = self._at(LOGS)
        self.debug = self._at(DEBUG)
        self.traces = self._at(DEBUG, TRACES)

    def rank_log(self, rank: int) -> str:
        """Where a rank's own output is."""
        return self._at(LOGS, f"rank-{rank}.log")

    def monitor_log(self, node: str) -> str:
        """Where a node's monitor writes its messages."""
        return self._at(LOGS, f"monitor-{node}.log")

    def torchrun_log(self, node: str) -> str:
        """Where torchrun writes its messages, if it starts the ranks of a node."""
        return self._at(LOGS, f"torchrun-{node}.log")

    def stack(self, attempt: int, rank: int) -> str:
        """Where a rank writes its own stacks on request."""
        return self._at(DEBUG, f"stack-{attempt}-rank-{rank}.txt")

    def preflight_log(self, node: str) -> str:
        """Where the preflight's process of a node writes its messages."""
        return self._at(LOGS, f"preflight-{node}.log")

    def preflight(self, name: str) -> str:
        """Where a node, or the `supervisor`, leaves a file that the others are to see."""
        return self._at(PREFLIGHT, name)

    def node_events(self, node: str) -> str:
        """Where a node keeps the events that it could not deliver."""
        return self._at(f"events.{node}.jsonl")

    def error_file(self, attempt: int, rank: int) -> str:
        """Where a rank's program writes its error, if it uses torch's `@record`."""
        return self._at(DEBUG, f"error-{attempt}-rank-{rank}.json")

    def _at(self, *names: str) -> str:
        return os.path.join(self.path, *names)
