"""Paths that the host has, and a container may not."""

from __future__ import annotations

import os


def or_mount(remedy: str) -> str:
    """Add to what to do about a path that is not there: in our image it may be the host's."""
    if "DDP_HOME" not in os.environ:
        return remedy
    mounts = "sbatch --container-mounts, DDP_MOUNTS beside DDP_IMAGE, or docker run -v"
    return f"{remedy}, or mount it, as this is a container ({mounts})"
