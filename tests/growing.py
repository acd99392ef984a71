"""Files that somebody still writes to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that are there so far; of the last one a part may be, which a reader leaves out."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
