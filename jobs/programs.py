"""Programs on PATH, and the Python that runs trainer and monitor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jobs.messages import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


def which(name: str, environ: Mapping[str, str]) -> str | None:
    """Find a program as a shell does: a path as it is, a name on PATH."""
    if "/" in name:
        return name if _is_program(name) else None
    for folder in environ.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder or ".", name)
        if _is_program(path):
            return path
    return None


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def find_python(root: str, environ: Mapping[str, str]) -> str | None:
    """Find the interpreter that runs trainer and monitor; none is not an error here.

    In the image its own comes first: a .venv in a mounted directory was made for the host.
    """
    home = environ.get("DDP_HOME")
    candidates = (
        environ.get("DDP_PYTHON"),
        home and _of_project(home),
        _of_project(root),
        "python3",
        "/opt/conda/bin/python3",
    )
    found = (which(name, environ) for name in candidates if name)
    return next((path for path in found if path), None)


def _of_project(home: str) -> str | None:
    """Name the project's own Python; not where its packages are another version's.

    A .venv that was made for the host, and is mounted into an image, means the image's Python.
    """
    python = f"{home}/.venv/bin/python"
    name = os.path.basename(os.path.realpath(python))
    is_other = name.startswith("python3.") and not os.path.isdir(f"{home}/.venv/lib/{name}")
    return None if is_other else python


def is_new(python: str, environ: Mapping[str, str]) -> bool:
    """Whether it is 3.11 or later."""
    return can_import(python, "tomllib", environ)


def can_import(python: str, modules: str, environ: Mapping[str, str]) -> bool:
    """Whether it has these modules, with commas between. Ours has all, and need not be asked."""
    if python.endswith("/.venv/bin/python"):
        return True
    return _run(environ, python, "-c", f"import {modules}")[0] == 0


def version(python: str, environ: Mapping[str, str]) -> str:
    """Say which Python it is; ? if it is none."""
    lines = _run(environ, python, "-V")[1]
    return next((line for line in lines if line.startswith("Python ")), "?")


def _run(environ: Mapping[str, str], *words: str) -> tuple[int, list[str]]:
    """Run a program; its code and the lines that it printed."""
    import subprocess  # noqa: PLC0415 -- a megabyte that a rank's agent seldom needs

    out, err = subprocess.PIPE, subprocess.STDOUT
    try:
        done = subprocess.run(words, env=environ, stdout=out, stderr=err, check=False)
    except OSError as error:  # such as a text without a first line that names its interpreter
        return -1, [str(error)]
    return done.returncode, done.stdout.decode(errors="replace").splitlines()


def check_wanted(environ: Mapping[str, str], *, is_bare: bool) -> None:
    """Check the Python that the user set. Raises UsageError."""
    wanted = environ.get("DDP_PYTHON")
    path = which(wanted, environ) if wanted else None
    if wanted and is_bare and path is None:  # in a container it may be the host's
        raise UsageError(
            "DDP_PYTHON must be a program", f"none at '{wanted}'", "correct it, or unset it"
        )
    if path and version(path, environ) == "?":
        raise UsageError(
            "DDP_PYTHON must be a Python",
            f"that '{wanted} -V' shows no version of one",
            "correct it, or unset it",
        )


def check_python(part: str, python: str, environ: Mapping[str, str], remedy: str) -> None:
    """Check that a Python can run a part of ours; `remedy` is for an old one. Raises UsageError."""
    code, lines = _run(environ, python, "-c", "")
    error = next((line for line in reversed(lines) if "rror" in line), "") if code else ""
    if error:
        remedy = "correct the variables that begin with PYTHON, or set DDP_PYTHON"
        raise UsageError(f"{part} needs a Python that starts", f"'{error}' from {python}", remedy)
    if not is_new(python, environ):
        found = f"{version(python, environ)} at {python}"
        raise UsageError(f"{part} needs Python 3.11 or later", found, remedy)


def check_root(root: str) -> None:
    """Check that our modules can be found. Raises UsageError."""
    if ":" in root:
        raise UsageError(
            "the project's directory must have no ':' in its name, at which PYTHONPATH ends it",
            root,
            "rename it",
        )


def module_command(root: str, python: str, module: str, environ: Mapping[str, str]) -> list[str]:
    """Say how one of our modules is run.

    -P keeps a trainer.py in the working directory from being taken for ours.
    """
    path = python_path(root, environ)
    return ["env", f"PYTHONPATH={path}", python, "-P", "-m", module]


def python_path(root: str, environ: Mapping[str, str]) -> str:
    """Put our modules before what the job has there."""
    inherited = environ.get("PYTHONPATH")
    return f"{root}:{inherited}" if inherited else root
