"""The rules and their thresholds, for who wants to know what is looked for and from when on."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from monitor.diagnosis.diagnose import RULES
from monitor.diagnosis.thresholds import MEANINGS, Thresholds

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDTH = 100


def lines(thresholds: Thresholds) -> Iterator[str]:
    """Write every rule with the names of its thresholds, then those, and which are not usual."""
    yield "rules, in the order in which they are told:"
    for rule in RULES:
        yield f"  {rule.name:12} {rule.meaning}"
        if rule.thresholds:
            indent = " " * 17
            names = ", ".join(rule.thresholds)
            yield textwrap.fill(names, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    yield ""
    yield "thresholds (--set NAME=NUMBER, or NAME = NUMBER in a file for --thresholds):"
    usual = Thresholds().as_dict()
    for name, value in thresholds.as_dict().items():
        mine = "" if value == usual[name] else f" (usually {usual[name]:g})"
        yield f"  {f'{name}={value:g}':24} {MEANINGS[name]}{mine}"
