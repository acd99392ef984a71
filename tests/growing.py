"""Files that somebody still writes to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that are there so far; of the last one a part may be, which a reader leaves out."""
    return JsonLines(path)()


def events_below(directory: Path, name: str) -> list[dict[str, Any]]:
    """The events of one name so far, in the runs that lie in `out/` there."""
    return [
        event
        for path in directory.glob("out/*/events.jsonl")
        for event in json_lines(path)
        if event["event"] == name
    ]


class JsonLines:
    """The lines of a file that only grows, each read once: for readers that poll very often."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: list[dict[str, Any]] = []
        self._num_bytes = 0

    def __call__(self) -> list[dict[str, Any]]:
        """The lines so far, as `json_lines` gives them."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._num_bytes)
                text = file.read()
            text = text[: text.rfind(b"\n") + 1]  # a part may end within a character
            self._num_bytes += len(text)
            self._read += [json.loads(line) for line in text.splitlines()]
        return self._read
