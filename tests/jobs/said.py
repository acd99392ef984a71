"""What the scripts say to people."""

from __future__ import annotations


def one_line(text: str) -> str:
    """The only line that is not part of the printed settings."""
    lines = [line for line in text.splitlines() if line.startswith(("prelaunch: ", "launcher: "))]
    assert len(lines) == 1, text
    return lines[0]
