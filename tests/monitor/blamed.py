"""Judges a story, as the record of a run does."""

from __future__ import annotations

from typing import Any

from monitor.runs import record

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'


def classified(story: Any) -> dict[str, Any]:
    """The last attempt of a story, as the record has it."""
    return record.read(str(story.write()))["attempts"][-1]


def blame(story: Any) -> tuple[str | None, int | None]:
    """Class and rank of a story's last attempt."""
    attempt = classified(story)
    return attempt["failure_class"], (attempt["failure"] or {}).get("rank")
