"""The checks of one node that need torch, in their order: GPUs, links in the node, to others."""

from __future__ import annotations

import socket
import sys
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from rundir.preflight.pairs import Measured
from rundir.preflight.verdict import Reading
from trainer.distributed.rendezvous import name_interface
from trainer.environment import Ranks
from trainer.preflight import children, measures, rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.preflight.__main__ import Node
    from trainer.preflight.children import Outcome

NUM_PROCESSES = "DDP_PREFLIGHT_STEP"
"""How many ranks the node will have: so many processes where there is no GPU."""
_HERE = "127.0.0.1"
_CONNECT_S, _POLL_S = 2.0, 0.1


def check(node: Node) -> tuple[list[Reading], list[Measured]]:
    """Check this node, then its links to others: of all, on the node of rank 0."""
    ranks = Ranks.from_environment(node.environ)
    name_interface(ranks, node.environ)
    readings = [Reading("torch", str(torch.__version__))]
    version = measures.nccl_version()
    readings += [Reading("nccl", version)] if version else []
    (counted,) = children.call_all([measures.count_gpus], node.limit_s("stage_s"))
    num_gpus = int(counted.value or 0)
    found = _problems([counted]) or _examine(node, num_gpus)
    readings += [Reading("gpus", num_gpus), *found]
    if ranks.world_size == 1:
        return readings, []
    is_fit = not any(one.check in ("hung", "failed") for one in found)
    own = rounds.Member(ranks.rank, node.name, (num_gpus or 1) if is_fit else 0)
    measured, problem = list[Measured](), ""
    try:
        measured = _measure_pairs(node, ranks, own, has_gpus=num_gpus > 0)
    except (OSError, RuntimeError) as error:  # torch's DistError is one
        problem = f"{ranks.master_addr}:{ranks.master_port}: {str(error).splitlines()[0]}"
    if not ranks.is_main or problem:
        readings.append(Reading("unreached", int(bool(problem)), problem))
    return readings, measured


def _problems(outcomes: Sequence[Outcome]) -> list[Reading]:
    bad = [one for one in outcomes if one.problem]
    return [Reading("hung" if one.is_hung else "failed", 1, one.problem) for one in bad]


def _examine(node: Node, num_gpus: int) -> list[Reading]:
    """Check all GPUs at the same time; without one, the CPUs by as many processes as ranks."""
    limit_s = node.limit_s("stage_s")
    num_processes = num_gpus or int(node.environ[NUM_PROCESSES])
    store = _open_store(_HERE, 0, limit_s, is_master=True)
    calls = []
    for rank in range(num_processes):
        group = measures.Group(_HERE, store.port, "node", rank, num_processes, limit_s)
        gpu = rank if num_gpus else None
        calls.append(partial(measures.examine, gpu, group if num_processes > 1 else None))
    outcomes = children.call_all(calls, limit_s)
    found = [one for outcome in outcomes for one in outcome.value or ()]
    return found + _problems(outcomes)


def _measure_pairs(
    node: Node, ranks: Ranks, own: rounds.Member, *, has_gpus: bool
) -> list[Measured]:
    host, port, limit_s = ranks.master_addr, ranks.master_port, node.limit_s("stage_s")

    def measure(name: str, offset: int, world_size: int) -> float | None:
        calls = [
            partial(
                measures.measure_link,
                at if has_gpus else None,
                measures.Group(host, port, name, offset + at, world_size, limit_s),
            )
            for at in range(own.num_processes)
        ]
        outcomes = children.call_all(calls, limit_s)
        for one in outcomes:
            if one.problem:
                print(f"preflight: {node.name}: {one.problem}", file=sys.stderr, flush=True)
        speeds = [one.value for one in outcomes]
        return None if None in speeds else min(speeds)

    start_s = node.limit_s("start_s") + 2 * limit_s
    if not ranks.is_main:
        _wait_for(host, port, start_s)
    store = _open_store(host, port, start_s + rounds.LATE_S, is_master=ranks.is_main)
    return rounds.take_part(store, own, ranks.world_size, node.table, measure)


def _wait_for(host: str, port: int, limit_s: float) -> None:
    """Wait until rank 0 serves its store: torch's own waiting takes several times its limit.

    Raises OSError if it does not come.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            with socket.create_connection((host, port), timeout=_CONNECT_S):
                return
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_POLL_S)


def _open_store(host: str, port: int, timeout_s: float, *, is_master: bool) -> Any:  # noqa: ANN401 -- torch's Store
    timeout = timedelta(seconds=timeout_s)
    return dist.TCPStore(  # type: ignore[attr-defined] # public, though not in __all__
        host, port, is_master=is_master, timeout=timeout, wait_for_workers=False
    )
