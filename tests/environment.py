"""A virtual environment for requirements.txt files, made once and kept, which sees this torch.

    environment.py REQUIREMENTS.TXT...     prints the path of its Python

Each set of files has an environment of its own: one example's packages change what another's do.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from rundir import codes
from rundir.text import problem

FIXED = ("torch", "torchvision", "numpy")
"""What is here already and may not be replaced."""
TRIED = Path(__file__).with_name("examples") / "constraints.txt"
UNREACHABLE = "no package index in reach"


def python_with(*requirements: Path) -> Path:
    """Return the Python of an environment with these packages; `ValueError` if there is none."""
    torch = find_spec("torch")
    assert torch
    assert torch.origin
    seen = str(Path(torch.origin).parents[1])
    constraints = "".join(f"{name}=={version(name)}\n" for name in FIXED) + TRIED.read_text()
    parts = (sys.version, seen, constraints, *(path.read_text() for path in requirements))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddp"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / "-".join((*(path.resolve().parent.name for path in requirements), key))
    complete = folder / "complete"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _build(folder, seen, constraints, requirements)
            complete.touch()
    return folder / "bin" / "python"


def _build(folder: Path, seen: str, constraints: str, requirements: tuple[Path, ...]) -> None:
    venv.create(folder, clear=True, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "project.pth").write_text(f"{seen}\n")
    kept = folder / "constraints.txt"
    kept.write_text(constraints)
    names = " ".join(map(str, requirements))
    print(f"installing Python packages into {folder}: {names}", file=sys.stderr)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", f"--python={folder / 'bin' / 'python'}", "install"),
            *("--quiet", "--disable-pip-version-check", "--retries=2", "--timeout=20"),
            f"--constraint={kept}",
            *(f"--requirement={path}" for path in requirements),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        cause = (
            UNREACHABLE
            if "connection broken" in done.stderr
            else (done.stderr.strip().splitlines() or ["no word of pip's"])[-1]
        )
        rule = f"the packages of {names} must be installable"
        raise ValueError(problem(rule, cause, "run it once where pip can install them"))


if __name__ == "__main__":
    try:
        print(python_with(*map(Path, sys.argv[1:])))
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(codes.USAGE)
