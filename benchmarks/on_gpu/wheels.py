"""Packages for a machine without a network: collected here, installed there."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[2]
THERE = Path(__file__).parent / "there.txt"
"""What such a machine has, a name a line."""
_MOST_BYTES = 64 << 20
_NEWEST_GLIBC = 39
"""Of the platforms that wheels are tagged for: pip takes those that are named, and no older."""


class WheelsError(Exception):
    """Some package cannot be carried; one line says which, and what to do."""


def collect(folder: Path, python: str, there: Path) -> list[Path]:
    """Download what pyproject.toml asks for and `there` does not name, with all that this needs."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = {canonicalize_name(name) for name in there.read_text(encoding="utf-8").split()}
    wanted = [Requirement(text) for text in project["dependencies"]]
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in known:
            continue
        known.add(name)
        wanted += _needs(_download(requirement, folder, python), python)
    wheels = sorted(folder.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels) + _tree_bytes()
    if size > _MOST_BYTES:
        raise WheelsError(
            f"wheels and work tree: must be {_MOST_BYTES >> 20} MiB together at most; "
            f"found {size / 2**20:.1f}; name what is already there in {there}"
        )
    return wheels


def _download(requirement: Requirement, folder: Path, python: str) -> Path:
    before = set(folder.glob("*.whl"))
    tags = [f"manylinux_2_{minor}_x86_64" for minor in range(5, _NEWEST_GLIBC + 1)]
    tags += ["manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", python, "--dest", str(folder)]
    command += [f"--platform={tag}" for tag in tags]
    done = subprocess.run([*command, str(requirement)], check=False)
    new = set(folder.glob("*.whl")) - before
    if done.returncode or len(new) != 1:
        raise WheelsError(
            f"{requirement}: must be a wheel that pip can download; found none (see above); "
            f"is a package index in reach, and has it one for Python {python}?"
        )
    return new.pop()


def _needs(wheel: Path, python: str) -> Iterator[Requirement]:
    """Read a wheel's requirements, as they hold on that machine."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(name).decode())
    place = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    place |= {"platform_machine": "x86_64", "sys_platform": "linux", "platform_system": "Linux"}
    for text in headers.get_all("Requires-Dist", []):
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(place):
            requirement.marker = None
            yield requirement


def _tree_bytes() -> int:
    listed = subprocess.run(
        ["git", "-C", str(_ROOT), "ls-files", "-z"], check=False, capture_output=True, text=True
    )
    paths = [_ROOT / name for name in listed.stdout.split("\0") if name]
    return sum(path.stat().st_size for path in paths if path.is_file())


def install(folder: Path, site: Path) -> None:
    """Unpack the wheels of `folder` into `site`, without a network."""
    wheels = [str(path) for path in sorted(folder.glob("*.whl"))]
    if not wheels:
        raise WheelsError(
            f"--wheels {folder}: must hold wheels; found none; "
            f"first run: benchmarks/gpu.sh --collect {folder}"
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-compile", "--no-cache-dir", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--target", str(site), *wheels], check=False)
    if done.returncode:
        raise WheelsError(f"--wheels {folder}: must install with {sys.executable}; see above")
