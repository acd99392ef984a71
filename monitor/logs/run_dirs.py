"""Which directories are runs, and in which order nodes are listed."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from monitor.errors import UserError
from rundir import events as event_log
from rundir import paths
from rundir.plain import open_plain

_RUN_FILES = (paths.EVENTS, paths.METRICS)
_NUM_HOSTS = 2**14  # whose names are kept taken apart: a live view sorts them twice a second


def is_run(path: str) -> bool:
    """Whether a directory is a run's; False where it may not be read."""
    return any(os.path.isfile(os.path.join(path, name)) for name in _RUN_FILES)  # noqa: PTH113, PTH118 - hundreds


def lines_of(run_dir: str, name: str) -> list[event_log.Event]:
    """Read a run's file of JSON lines; none where there is no such file.

    Raises:
        UserError: it cannot be read.

    """
    path = Path(run_dir, name)
    try:
        with open_plain(str(path)) as file:
            return event_log.read(file.read())[0]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"a run's {name} must be a file that can be read",
            f"{path}: {error.strerror}",
            "name a run directory such as out/slurm-123",
        ) from error


def written_s(run_dir: str) -> float:
    """When the run last reported anything, in seconds since 1970; 0 if never."""
    times = [0.0]
    for name in _RUN_FILES:
        with suppress(OSError):
            times.append(os.stat(os.path.join(run_dir, name)).st_mtime)  # noqa: PTH116, PTH118 - as above
    return max(times)


@lru_cache(_NUM_HOSTS)
def natural(host: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that puts node2 before node10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", host)
    return tuple(
        (0, int(p)) if p.isascii() and p.isdigit() and len(p) < 19 else (1, p)  # noqa: PLR2004
        for p in parts
    )
