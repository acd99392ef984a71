"""Writing a picture or a page: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


def check(out: str, suffixes: Sequence[str]) -> str:
    """Give the suffix of a file to be written.

    Raises:
        UserError: it is none of `suffixes`, or its directory is not there.

    """
    suffix = Path(out).suffix.lower()
    if suffix not in suffixes:
        raise UserError(
            f"--out must end in {' or '.join(suffixes)}",
            out,
            f"write for example --out run{suffixes[0]}",
        )
    if not Path(out).parent.is_dir():
        raise UserError(
            "the directory of --out must be there",
            f"none at {Path(out).parent}",
            "make it first, or name another",
        )
    return suffix


def write(out: str, data: bytes) -> None:
    """Write beside the file and rename, so that no reader sees half of it.

    Raises:
        UserError: it cannot be written; nothing is left behind.

    """
    beside = f"{out}.{os.getpid()}.tmp"
    try:
        Path(beside).write_bytes(data)
        os.replace(beside, out)  # noqa: PTH105
    except OSError as error:
        Path(beside).unlink(missing_ok=True)
        raise UserError(
            "--out must be a file that can be written",
            f"{out}: {error.strerror or error}",
            "make room or name another file",
        ) from error
