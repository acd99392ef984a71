"""nodes.jsonl: what earlier jobs found of this one's nodes, and what it leaves to later ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobs.messages import info
from rundir import nodes as node_file
from rundir import paths, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.supervisor.settings import Settings
    from rundir.nodes import BadNode

_HOUR_S = 3600


def order(settings: Settings, nodes: list[str], num_used: int) -> list[str]:
    """Order the nodes so that those found bad before become spare, and say so of each."""
    if not settings.is_on("DDP_BAD_NODES"):
        return nodes
    known = node_file.remembered(_read(paths.nodes_path(settings["DDP_OUT"])), time.time())
    known = {node: known[node] for node in nodes if node in known}
    ordered = node_file.spare_last(nodes, list(known), num_used)
    for node, one in known.items():
        found = f"node {node} was found bad by job {one.job} ({one.reason}), until {one.until}"
        if node in ordered[:num_used]:
            remedy = f"starting on it; sbatch --exclude={node} avoids it"
            info(f"warning: {found}, and no spare node can take its place: {remedy}")
        else:
            info(f"{found}: it stays spare")
    return ordered


def _read(path: str) -> bytes:
    try:
        with plain.open_plain(path) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        info(f"warning: {path} cannot be read ({error.strerror}): no node is avoided by it")
        return b""


def until(settings: Settings, now_s: float) -> float:
    """Say until when a node that is found bad now is to be avoided."""
    return now_s + settings.number("DDP_BAD_NODE_HOURS") * _HOUR_S


def remember(settings: Settings, bad: Sequence[BadNode], now_s: float) -> None:
    """Leave nodes to later jobs, if that is wanted. It may take a while."""
    if not settings.number("DDP_BAD_NODE_HOURS"):
        return
    path, for_s = paths.nodes_path(settings["DDP_OUT"]), until(settings, now_s) - now_s
    try:
        node_file.append(path, bad, job=settings["DDP_JOB_ID"], now_s=now_s, for_s=for_s)
    except OSError as error:
        info(f"could not append to {path} ({error.strerror}); later jobs do not learn of it")
