"""The machine, in words that name no path."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGES = ("torch", "torchvision", "lightning", "accelerate")
_VERSIONS = (
    "from importlib.metadata import version; import sys; "
    "print(', '.join(f'{name} {version(name)}' for name in sys.argv[1:]))"
)


def describe(python: str, packages: Sequence[str] = _PACKAGES) -> str:
    """Return a line: CPU, cores, memory, system, and the versions that `python` imports."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = subprocess.run(
        [python, "-c", _VERSIONS, *packages], check=True, capture_output=True, text=True
    ).stdout.strip()
    return (
        f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB, "
        f"Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, {versions}"
    )


def load() -> float:
    """Return the mean number of running processes over the last minute."""
    return os.getloadavg()[0]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
