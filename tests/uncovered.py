"""Programs that measure no coverage: it takes time, and it writes a file."""

from __future__ import annotations

import os


def environment() -> dict[str, str]:
    """This process's own, without what has a child measure."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COV")}
