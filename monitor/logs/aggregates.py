"""From files to nodes, shared between processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from monitor.logs import files as log_files
from monitor.logs import reader, stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monitor.logs.log_events import Place
    from monitor.logs.stats import Node

    Counted = tuple[list[Node], list["File"]]

_WORTH_BYTES = 2**27
"""With less to read than this, starting further processes takes longer than it saves."""

_MAX_PROCESSES = 8
"""A report may run on a login node, which is not ours alone."""


@dataclass(frozen=True)
class File:
    """What is worth reporting of a log besides its rows, under the same names."""

    path: str
    num_rows: int
    num_unreadable: int
    torn: bool
    """The last line has no end: it is still growing, or its writer was killed."""
    hints: tuple[str, ...] = ()
    """In words, why some rows cannot be read."""
    is_foreign: bool = False
    """It is no log at all."""
    num_lost: int = 0
    """Samples that their recorder could not write, as on a full disk."""


def count(paths: Sequence[Sequence[str]]) -> tuple[list[Node], list[File]]:
    """Read and count logs, in several processes where that pays.

    Args:
        paths: of each log its files, the oldest first.

    Raises:
        UserError: a file cannot be read, or none of them is a log.

    """
    counted = _each([[log] for log in paths])
    files = [file for _, found in counted for file in found]
    if files and all(file.is_foreign for file in files):
        reader.refuse_foreign(files[0].path)
    groups = _together([[node.place for node in nodes] for nodes, _ in counted])
    several = _each([[paths[i] for i in group] for group in groups if len(group) > 1])
    alone = [counted[group[0]] for group in groups if len(group) == 1]
    return [node for nodes, _ in alone + several for node in nodes], files


def _each(groups: Sequence[Sequence[Sequence[str]]]) -> list[Counted]:
    num_processes = min(len(groups), len(os.sched_getaffinity(0)), _MAX_PROCESSES)
    num_bytes = sum(log_files.size_bytes(path) for logs in groups for log in logs for path in log)
    if num_processes < 2 or num_bytes < _WORTH_BYTES:  # noqa: PLR2004 - itself
        return [_count(group) for group in groups]
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # of each process: these are as many as cores
    # not forked: numpy and polars have threads of their own
    context = multiprocessing.get_context("spawn")
    # Ctrl-C is for this process: the others ignore it, and polars, which does not, is in a group
    # of its own. In the middle of starting them it would leave this one waiting for ever.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with context.Pool(num_processes, os.setpgrp) as pool:
        signal.signal(signal.SIGINT, handler)
        # killed at once, this process would leave them to end with a traceback each
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
        return list(pool.imap(_count, groups))


def _count(group: Sequence[Sequence[str]]) -> Counted:
    read = [file for log in group for file in reader.read_log(log, stats.COLUMNS)]
    files = [File(*(getattr(log, known.name) for known in fields(File))) for log in read]
    return stats.tally(read), files


def _together(places: Sequence[Sequence[Place]]) -> list[list[int]]:
    """Group the files, by number, that hold the same nodes."""
    groups: list[tuple[set[Place], list[int]]] = []
    for number, found in enumerate(places):
        mine, numbers, others = {*found}, [number], []
        for group in groups:
            if mine.isdisjoint(group[0]):
                others.append(group)
            else:
                mine |= group[0]
                numbers = group[1] + numbers
        groups = [*others, (mine, numbers)]
    return [sorted(numbers) for _, numbers in groups]
