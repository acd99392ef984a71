"""--version of every command of ours, and the one number behind it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from monitor.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [
    *(f"jobs/{name}.sh" for name in ("prelaunch", "interactive", "sweep", "chain")),
    *(f"container/{name}.sh" for name in ("to_squashfs", "pyxis_env", "slurm_mounts")),
    "tests/cluster/cluster.sh",
]
ENTRIES = re.findall(
    r"\b(trainer/\w+)\.py\b",
    " ".join(
        str(path.relative_to(ROOT))
        for path in (ROOT / "trainer").glob("*.py")
        if "__main__" in path.read_text("utf-8") and path.stem != "standby"  # an agent starts it
    ),
)
MODULES = [
    ["monitor"],
    *(["monitor", command] for command in COMMANDS),
    *([entry.replace("/", ".").removesuffix(".__main__")] for entry in ENTRIES),
]


def version() -> str:
    """As the project has it."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def test_the_version_stands_in_several_files_alike() -> None:
    """Packages, image and project."""
    for name in ("trainer/__init__.py", "monitor/__init__.py"):
        assert f'__version__ = "{version()}"\n' in (ROOT / name).read_text("utf-8")
    assert f"ARG VERSION={version()}\n" in (ROOT / "Dockerfile").read_text("utf-8")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_tells_its_version(script: str, tmp_path: Path) -> None:
    """From anywhere, and does nothing else; so for --help."""
    for word in ("--version", "--help"):
        command = [ROOT / script, word]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert (done.stdout == f"ddp {version()}\n") == (word == "--version")
        assert len(done.stdout + done.stderr) > 5
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("words", MODULES, ids=" ".join)
def test_a_module_tells_its_version(words: list[str]) -> None:
    """Subcommands, too; before anything that is missing is asked for."""
    command = [sys.executable, "-m", *words, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == (f"ddp {version()}\n", "")
