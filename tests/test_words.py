"""A number and its noun agree, wherever a person reads them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from rundir.text import counted

ROOT = Path(__file__).resolve().parents[1]
MODULES = [p for room in ("trainer", "monitor") for p in sorted((ROOT / room).rglob("*.py"))]
OTHERS = {
    "is",
    "has",
    "was",
    "does",
    "its",
    "unless",
    "lacks",
    "names",
    "counts",
    "loss",
    "reaches",
}
"""Verbs and the like."""
RATES = {"samples/s", "tokens/s"}
SEVERAL = (
    r"_?(\w+\.)?[A-Z_]+|self\._num_in_a_row|num_nodes|rounds|pp|num_stages|count|length"
    r"|len\(blocks\)|np\.mean\(ratios\)"
)
"""What is a constant, or two or more where it occurs."""


@pytest.mark.parametrize("num", [0, 1, 2, 11, 21, 101, 1001])
def test_one_alone_is_singular(num: int) -> None:
    """Thousands have commas."""
    reported = {0: "0 ranks", 1: "1 rank", 2: "2 ranks", 11: "11 ranks", 21: "21 ranks"}
    expected = reported.get(num) or {101: "101 ranks", 1001: "1,001 ranks"}[num]
    assert counted(num, "rank") == expected


def test_a_number_that_is_rounded_to_one_is_one() -> None:
    """As it is read."""
    assert [counted(num, "row") for num in (0.6, 1.4, 1.6)] == ["1 row", "1 row", "2 rows"]


def by_hand(module: Path) -> list[str]:
    """Texts in which a plural follows a number that may be one."""
    found = []
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            if not (isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant)):
                continue
            noun = re.match(r" (?:(?:more|other|CPU) )?([A-Za-z]+s(?:/s)?)\b", str(after.value))
            name = ast.unparse(value.value)
            is_several = re.fullmatch(SEVERAL, name)
            if noun and noun[1] not in OTHERS | RATES and not is_several:
                found.append(f"{module.relative_to(ROOT)}:{node.lineno}: {{{name}}}{noun[0]}")
    return found


def test_no_plural_follows_a_number_by_hand() -> None:
    """There is `counted` for that; sizes in bytes, of which there is never one, aside."""
    found = [reported for module in MODULES for reported in by_hand(module)]
    assert not [reported for reported in found if not reported.endswith(" bytes")]
