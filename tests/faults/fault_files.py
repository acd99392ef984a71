"""A data set of small files, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NUM_FILES = 4000


def write_files(folder: Path) -> None:
    """Write samples of one byte each: 0.sample, 1.sample, …."""
    folder.mkdir()
    for number in range(NUM_FILES):
        (folder / f"{number}.sample").write_bytes(bytes([number % 251]))
