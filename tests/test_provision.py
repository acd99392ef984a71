"""`tests/provision.sh` says what it would do where it may not, and does nothing twice."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "provision.sh"
TOOLS = ("bash", "sort", "uname", "grep", "timeout")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has nothing of what the tests need."""
    for tool in TOOLS:
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/missing")
    return {"PATH": str(tmp_path)}


def provision(*args: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """Run a copy that any user can read, from standard input."""
    return subprocess.run(
        ["bash", "-s", "--", *args], input=SCRIPT.read_text(), capture_output=True, text=True,
        check=False, timeout=60, **kwargs,
    )  # fmt: skip


def test_without_root_it_names_what_is_missing_and_succeeds(bare: dict[str, str]) -> None:
    """An ordinary user gets the list of packages, and nothing is installed."""
    if os.geteuid() == 0:
        Path(bare["PATH"]).chmod(0o755)
        for parent in Path(bare["PATH"]).parents:
            parent.chmod(parent.stat().st_mode | 0o055)
    user = {"user": 65534} if os.geteuid() == 0 else {}
    result = provision(env=bare, cwd="/", **user)
    assert result.returncode == 0, result.stderr
    assert "nothing done" in result.stderr
    packages = {"slurm-wlm", "docker.io", "libc6-dev", "g++", "python3-dev"}
    assert packages <= set(result.stderr.split())


def test_a_machine_that_has_everything_is_left_alone() -> None:
    """A second run installs nothing."""
    if os.geteuid() != 0 or not shutil.which("mmdebstrap") or not shutil.which("slurmd"):
        pytest.skip("needs root and a provisioned machine: run tests/provision.sh")
    result = provision("--install-only")
    assert (result.returncode, result.stderr) == (0, "provision: nothing is missing\n")


def test_an_unknown_option_is_refused() -> None:
    """One line, code 64."""
    result = provision("--instal")
    assert (result.returncode, result.stderr.count("\n")) == (64, 1)
