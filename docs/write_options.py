"""Write the table of options in docs/trainer.md, from trainer/config.py: `make options`."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from trainer import config  # noqa: E402 -- run as a script, it is not on the path

PAGE = ROOT / "docs" / "trainer.md"
_BEGIN, _END = "<!-- options: written by make options -->", "<!-- options: end -->"


def table() -> str:
    """Return a row for each option: its name, its default, what it does."""
    texts, types = _texts(), get_type_hints(config.Config)
    lines = ["| option | default | what it does |", "| --- | --- | --- |"]
    for field in fields(config.Config):
        assert field.default is not MISSING, field.name  # noqa: S101 -- so is every one of them
        name = config.option_name(field.name)
        about = " ".join(texts[field.name].split()).replace("|", "\\|").replace("<", "\\<")
        text = _default(field.default)
        lines.append(f"| `{name}`{_values(types[field.name])} | {text} | {about} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the page with the table of today."""
    pattern = f"(?s)(?<={re.escape(_BEGIN)}\n\n).*?(?=\n\n{re.escape(_END)})"
    written, count = re.subn(pattern, lambda _: table(), text)
    assert count == 1, f"{PAGE} must have the two marks once"  # noqa: S101 -- ours alone to break
    return written


def _texts() -> dict[str, str]:
    """Return the text under each field, which Python itself throws away."""
    tree = ast.parse(Path(config.__file__).read_text("utf-8"))
    (body,) = (n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Config")
    return {
        field.target.id: text.value.value
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _values(kind: object) -> str:
    """Return what may stand behind the name."""
    if get_origin(kind) is Literal:
        return " " + ", ".join(f"`{value}`" for value in get_args(kind))
    return ""


def _default(value: object) -> str:
    """Return a default as it would be typed; a switch is off, or on and turned off by --no-."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value in (None, "") else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
