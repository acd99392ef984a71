"""The stub libnvidia-ml.so.1, built from nvml_standin.c."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_standin.c")


def build(directory: Path, *flags: str) -> Path:
    """Build it in a directory, with flags of the compiler; the directory."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: the stand-in driver library cannot be built")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-pthread", "-Wall", "-Werror", "-o"]
    command += [str(directory / "libnvidia-ml.so.1"), *flags, str(SOURCE)]
    subprocess.run(command, check=True)
    return directory
