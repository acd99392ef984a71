"""Names that a rank must see as the job sees them: those in forwarded.txt, for bash as well."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def job_names(environ: Iterable[str]) -> list[str]:
    """Pick those that ranks must see so."""
    prefixes = tuple(line for line in _lines() if line[0] not in "#!")
    return sorted(name for name in environ if name.startswith(prefixes))


def forwarded_names(environ: Iterable[str]) -> list[str]:
    """Pick those of them that mean something in an image."""
    of_the_host = {line[1:] for line in _lines() if line[0] == "!"}
    return [name for name in job_names(environ) if name not in of_the_host]


def _lines() -> list[str]:
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "forwarded.txt")) as file:
        return file.read().splitlines()
