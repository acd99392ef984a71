"""The source of Python's standard library at hand: text that is there wherever we run."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path
from typing import Literal

from trainer.errors import UserError
from trainer.workloads.tokens import TokenRow, join_documents

Split = Literal["train", "test"]
_LEFT_OUT = {
    *("test", "tests", "idle_test"),  # which many distributions leave out
    *("site-packages", "dist-packages", "__pycache__"),
    *("encodings", "pydoc_data"),  # tables, one like the other: what is held out would be known
}
"""Folders that are not read."""
_ONE_HELD_OUT_OF = 40


def files(folder: Path | None = None) -> list[Path]:
    """Return the library's files, relative to its folder, in the order of their names."""
    root = folder or stdlib_folder()
    found = (path.relative_to(root) for path in root.rglob("*.py"))
    return sorted(path for path in found if not _LEFT_OUT.intersection(path.parts))


def is_held_out(file: Path) -> bool:
    """Whether a file is for validation: by a hash of its name, so that others change nothing."""
    digest = hashlib.sha256(file.as_posix().encode()).digest()
    return int.from_bytes(digest[:4], "big") % _ONE_HELD_OUT_OF == 0


def read(split: Split, folder: Path | None = None) -> TokenRow:
    """Return the files of a split as bytes. Raises UserError where there are none."""
    root = folder or stdlib_folder()
    chosen = [file for file in files(root) if is_held_out(file) == (split == "test")]
    if not chosen:
        raise UserError(
            f"the standard library in {root}",
            rule="have Python files to train on",
            found="none",
            remedy="give --data-dir",
        )
    # What is not UTF-8 (a few old files) is read as well as it can be.
    texts = [(root / file).read_text("utf-8", errors="replace") for file in chosen]
    return join_documents([text.encode() for text in texts])


def stdlib_folder() -> Path:
    """Return where the standard library lies."""
    return Path(sysconfig.get_path("stdlib"))
