"""The one table of checks: what is read, its limit, and what a reading beyond it suspects. Pure.

A site overrides limits by DDP_PREFLIGHT_LIMITS=name=value,name=value; `off` leaves a check out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

VARIABLE = "DDP_PREFLIGHT_LIMITS"

AT_MOST, AT_LEAST = "at most", "at least"
SHARE = "share"
"""At least this share of the median of the job's other nodes."""
APART = "apart"
"""At most so far from the median of the job's other nodes."""
SAME = "same"
"""As on most nodes of the job; the limit is 1, or off."""

HARDWARE, SITE, USER = "hardware", "site", "user"


class Check(NamedTuple):
    """A row of the table."""

    name: str
    unit: str
    limit: float
    how: str
    suspects: str
    """What is broken: `hardware`, how the `site` set the node up, or what the `user` asked for."""
    meaning: str
    remedy: str
    is_note: bool = False
    """A job runs in spite of it: it is reported, and no reason to leave the node out."""


_REPORT = "report the node to the administrators"
_RESET = "the GPU needs a reset: " + _REPORT
_CABLE = "a cable, switch or adapter: " + _REPORT
_BUSY = "see what else runs there"
_ADMINISTRATORS = "report it to the administrators"

TABLE = (
    # ---- every part
    Check("whole_s", "s", 240, AT_MOST, SITE, "all of it, on all nodes", "look for a slow disk"),
    Check("stage_s", "s", 45, AT_MOST, HARDWARE, "a stage; then it counts as hung", _REPORT),
    Check("missing", "", 0, AT_MOST, HARDWARE, "no report from the node", _REPORT),
    Check("incomplete", "", 0, AT_MOST, SITE, "no report from a part of it", _REPORT, True),
    Check("hung", "", 0, AT_MOST, HARDWARE, "a stage ran into its time limit", _REPORT),
    Check("failed", "", 0, AT_MOST, HARDWARE, "a stage ended with an error", _REPORT),
    Check("start_s", "s", 60, AT_MOST, SITE, "import of torch; then no check of it", _REPORT, True),
    Check("unreached", "", 0, AT_MOST, SITE, "rank 0's node not reached", _CABLE),
    # ---- each GPU, by a process of its own
    Check("gpus", "GPUs", 1, SHARE, HARDWARE, "GPUs that torch sees", _REPORT),
    Check("wrong_elements", "", 0, AT_MOST, HARDWARE, "wrong elements of a product", _REPORT),
    Check("tflops", "TFLOP/s", 0.8, SHARE, HARDWARE, "speed of a matrix product", _REPORT),
    Check("memory_gb_per_s", "GB/s", 0.8, SHARE, HARDWARE, "memory bandwidth", _REPORT),
    Check("node_gbit_per_s", "Gbit/s", 0.6, SHARE, HARDWARE, "all-reduce in the node", _REPORT),
    Check("cpu_gflops", "GFLOP/s", 0.3, SHARE, SITE, "matrix product, without GPU", _BUSY, True),
    Check("cpu_gb_per_s", "GB/s", 0.3, SHARE, SITE, "memory bandwidth, without GPU", _BUSY, True),
    Check("cpu_gbit_per_s", "Gbit/s", 0.3, SHARE, SITE, "all-reduce, without GPU", _BUSY, True),
    Check("pair_gbit_per_s", "Gbit/s", 0.5, SHARE, HARDWARE, "all-reduce of two nodes", _CABLE),
    # ---- each GPU, by NVML
    Check("nvml_gpus", "GPUs", 1, SHARE, HARDWARE, "GPUs that NVML finds", _REPORT),
    Check("ecc_uncorrected", "", 0, AT_MOST, HARDWARE, "ECC errors, not corrected", _RESET),
    Check("ecc_pending", "pages", 0, AT_MOST, HARDWARE, "memory pages to be retired", _RESET),
    Check("remap_pending", "rows", 0, AT_MOST, HARDWARE, "memory rows to be remapped", _RESET),
    Check("remap_failed", "rows", 0, AT_MOST, HARDWARE, "memory rows past repair", _REPORT),
    Check("xids", "errors", 0, AT_MOST, HARDWARE, "Xids of the last minutes", _REPORT),
    Check("held_clocks", "reasons", 0, AT_MOST, HARDWARE, "clocks held down", _REPORT),
    Check("foreign_processes", "", 0, AT_MOST, SITE, "processes of others on the GPU", _REPORT),
    Check("foreign_mib", "MiB", 1024, AT_MOST, SITE, "memory in use on the GPU", _REPORT),
    Check("pcie_width", "lanes", 1, SHARE, HARDWARE, "its PCIe link, at most so far", _CABLE),
    Check("nvlinks", "links", 1, SHARE, HARDWARE, "NVLinks that are up", _CABLE),
    # ---- the node
    Check("ib_ports", "ports", 1, SHARE, HARDWARE, "InfiniBand ports that are up", _CABLE),
    Check("ib_gbit_per_s", "Gbit/s", 1, SHARE, HARDWARE, "rate of an InfiniBand port", _CABLE),
    Check("shm_mib", "MiB", 64, AT_LEAST, SITE, "free in /dev/shm", "mount or empty it"),
    Check("tmp_mib", "MiB", 64, AT_LEAST, SITE, "free in TMPDIR or /tmp", "make or empty it"),
    Check("memlock_mib", "MiB", 64, AT_LEAST, SITE, "memory that may be locked", "raise memlock"),
    Check("run_dir_mib", "MiB", 64, AT_LEAST, USER, "free in the run directory", "free some"),
    Check("run_dir_s", "s", 5, AT_MOST, SITE, "a file there, write and rename", _ADMINISTRATORS),
    Check("run_dir_unseen", "", 0, AT_MOST, SITE, "not seen across nodes", "check the mount"),
    Check("clock_s", "s", 5, APART, SITE, "clock", "check the node's NTP or chrony", True),
    Check("driver", "", 1, SAME, SITE, "version of the GPU driver", _REPORT, True),
    Check("torch", "", 1, SAME, SITE, "version of torch", "use one image or environment"),
    Check("nccl", "", 1, SAME, SITE, "version of NCCL", "use one image or environment"),
    Check("image", "", 1, SAME, SITE, "identity of the image", "use one image", True),
)


def parse(text: str) -> tuple[Check, ...]:
    """Return the table with a site's limits: `name=value`, `name=off`, separated by commas.

    Raises:
        ValueError: a name that no check has, or a value that is no number; its arguments are the
            rule, what was found, and the remedy.

    """
    limits: dict[str, float | None] = {check.name: check.limit for check in TABLE}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = entry.partition("=")
        limits[name.strip()] = _limit(name.strip(), value.strip())
    changed = ((check, limits[check.name]) for check in TABLE)
    return tuple(check._replace(limit=limit) for check, limit in changed if limit is not None)


def _limit(name: str, value: str) -> float | None:
    names = [check.name for check in TABLE]
    if name not in names:
        rule = f"{VARIABLE} must name checks of the table"
        raise ValueError(rule, f"'{name}'", "the names are " + ", ".join(names))
    if value == "off":
        return None
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not (number >= 0 and math.isfinite(number)):
        rule = f"{VARIABLE} must give {name} a number from 0, or off"
        raise ValueError(rule, f"'{value}'", "correct it, or unset it")
    return number


def limit_of(table: tuple[Check, ...], name: str) -> float:
    """Return a check's limit; infinity for one that is left out."""
    return next((check.limit for check in table if check.name == name), math.inf)


def without_counts(table: tuple[Check, ...]) -> tuple[Check, ...]:
    """Leave out how many GPUs a node has: Slurm may give one node more than another."""
    return tuple(check for check in table if check.unit != "GPUs")
