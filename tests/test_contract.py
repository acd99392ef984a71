"""What docs/architecture.md says of events is what the sources write, and the other way round."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
_WRITERS = {"write", "report"}  # methods of event logs, and of the watchdog's channel


def documented() -> dict[str, set[str]]:
    """The events of the table, and who writes them."""
    text = (ROOT / "docs/architecture.md").read_text()
    table = text.split("\n## events.jsonl\n")[1].split("\n## ")[0]
    found: dict[str, set[str]] = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            names, sources = line.split(" | ")[:2]
            for name in re.findall(r"`(\w+)`", names):
                found[name] = set(re.findall(r"\w+", sources))
    return found


def written() -> dict[str, set[str]]:
    """The events that some source file writes, and what writes them."""
    found: dict[str, set[str]] = {}
    sources = {"trainer": "trainer", "monitor": "monitor"}
    sources |= {"jobs/supervisor": "prelaunch", "jobs/agent": "launcher"}
    for package, source in sources.items():
        for name in _of_python(package):
            found.setdefault(name, set()).add(source)
    return found


def _of_python(package: str) -> Iterator[str]:
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (name := _event_of(node)):
                yield name


def _event_of(call: ast.Call) -> str | None:
    """An event is written by its name alone and keywords: `log.write("orphans", node=…)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _WRITERS:
        return None
    if len(call.args) != 1 or not call.keywords or not isinstance(call.args[0], ast.Constant):
        return None
    value = call.args[0].value
    return value if isinstance(value, str) else None


def test_every_event_is_written_and_every_written_one_described() -> None:
    """No row without a source file, no event without a row, each with its true writers."""
    assert written() == documented()


def test_the_sources_are_found() -> None:
    """The search itself works: it sees events of each kind of source."""
    found = written()
    assert found["rank_up"] == {"launcher"}
    assert found["end"] == {"prelaunch"}
    assert found["signal"] == {"prelaunch", "trainer"}
    assert found["orphans"] == {"monitor"}
