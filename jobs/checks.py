"""What supervisor and agent check alike: a switch's words, a number, a directory to write to."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from jobs.messages import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

DENIED = "Permission denied"
_ON = ("1", "on", "y", "yes", "t", "true")
_OFF = ("0", "off", "n", "no", "f", "false")
_WHOLE = re.compile(r"0|[1-9][0-9]{0,8}")  # int() would take more: 1_0, ' 1', other scripts' digits


def switch(name: str, value: str) -> str:
    """Write a setting that is on or off, in whatever words, as 1 or 0. Raises UsageError."""
    word = value.lower()
    if word in _ON or word in _OFF:
        return "1" if word in _ON else "0"
    raise UsageError(
        f"{name} must be 1/0, on/off, yes/no or true/false",
        f"'{value}'",
        "set one of these, or unset it",
    )


def whole_number(name: str, value: str, least: int, most: int) -> int:
    """Parse a whole number within bounds, without a leading zero. Raises UsageError."""
    if not _WHOLE.fullmatch(value) or not least <= int(value) <= most:
        raise UsageError(
            f"{name} must be a whole number from {least} to {most}",
            f"'{value}'",
            "correct it, or unset it for the default",
        )
    return int(value)


def make_writable(directory: str, node: str, remedy: Callable[[str, os.stat_result], str]) -> None:
    """Make a directory of the run, or say who may not write where.

    Args:
        directory: is made with its parents.
        node: this node's name.
        remedy: given why it failed, and the status of what is there: what to do in this place.

    Raises:
        UsageError: it cannot be made, or not be written to.

    """
    why = DENIED
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        why = error.strerror or why
    if os.path.isdir(directory) and os.access(directory, os.W_OK):
        return
    there = directory
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    is_there = os.path.exists(there)
    status = os.stat(there, follow_symlinks=is_there)
    found = f"that user {os.geteuid()} cannot write to {there} of user {status.st_uid}"
    if not is_there:
        found = f"that {there} is a link to {os.readlink(there)}, which is not there"
    raise UsageError(
        "the run directory must be writable", f"{found} on {node} ({why})", remedy(why, status)
    )
