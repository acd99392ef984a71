"""What a rank's program wrote of its failure by torch's `@record`, in TORCHELASTIC_ERROR_FILE."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from rundir import events
from rundir.plain import open_plain

_MAX_BYTES = 1 << 22
_MAX_CHARACTERS = 1000


class Recorded(NamedTuple):
    """An error."""

    error: str
    """Type and message, in one line."""
    causes: str
    """The exceptions of its traceback, a line each: by them it may only have lost a peer."""


class ErrorFile:
    """The file of one rank in one attempt."""

    def __init__(self, path: str, kept: str) -> None:
        """Forget what an earlier start left.

        Args:
            path: where the program writes it: `kept`, or torchrun's own, which that reads, too.
            kept: where it lies in the run directory, for people.

        """
        self._path, self._kept = path, kept
        with suppress(OSError):
            os.unlink(kept)

    def read(self) -> Recorded | None:
        """Read it; None if nothing was written that can be read."""
        try:
            with open_plain(self._path) as file:
                data = file.read(_MAX_BYTES)  # half an error is none
        except OSError:
            return None
        if self._path != self._kept:
            with suppress(OSError), open(self._kept, "xb") as copy:
                copy.write(data)
        return parse(data)


def parse(data: bytes) -> Recorded | None:
    """Read `{"message": {"message": TEXT, "extraInfo": {"py_callstack": TEXT}}}`.

    The message may also be the text itself.
    """
    message = (events.parse(data) or {}).get("message")
    extra: object = None
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        message = message.get("message")
    if not isinstance(message, str) or not _printable(message):
        return None
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    lines = stack.splitlines() if isinstance(stack, str) else []
    exceptions = (_printable(line) for line in lines if line[:1].strip() and line[-1] != ":")
    return Recorded(_printable(message), "\n".join(exceptions)[:_MAX_CHARACTERS])


def _printable(text: str) -> str:
    """Join lines, and leave out what a terminal would obey, and secrets."""
    from rundir.secrets import hide_in_message  # noqa: PLC0415 -- seldom needed

    shown = (letter if letter.isprintable() else " " for letter in text[:_MAX_CHARACTERS])
    return hide_in_message(" ".join("".join(shown).split()))
