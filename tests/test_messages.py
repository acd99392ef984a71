"""A message about wrong input has one form: `RULE; found X; REMEDY`."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from jobs.messages import UsageError
from monitor.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("jobs", "container", "monitor", "trainer", "tests/cluster")
SOURCES = [
    path
    for room in ROOMS
    for kind in ("py", "sh")
    for path in sorted((ROOT / room).rglob(f"*.{kind}"))
]
JOINED = re.compile(r"""["']\n *f?["']""")
"""Where a text goes on in the next line."""
FORMER = re.compile(r"""["'][^"\n]*(, found |: must |[;,] found [^";\n]*: (?!\{))[^"\n]*["']""")
"""A comma before what was found, a colon before the rule or before the remedy."""


def former(text: str) -> list[str]:
    """Texts of the former forms."""
    return [found[0] for found in FORMER.finditer(JOINED.sub("", text))]


@pytest.mark.parametrize(
    "text",
    [
        'die "the port must be free, found 1 in use: unset it"',
        'say(f"--out: must be a file; found {out}; name one")',
        'say(f"--out must be a file; found {out}:"\n    " name another")',
    ],
)
def test_the_former_forms_are_known(text: str) -> None:
    """Else nothing would be found below."""
    assert former(text)


def test_no_source_has_a_former_form() -> None:
    """Neither in Python nor in bash."""
    assert len(SOURCES) > 100
    output = {str(path.relative_to(ROOT)): former(path.read_text("utf-8")) for path in SOURCES}
    assert not {name: texts for name, texts in output.items() if texts}


def test_errors_have_the_form() -> None:
    """Those of the jobs and of the monitor, the latter also from another process."""
    reported = "--lr must be positive; found -1; give another"
    parts = ("--lr must be positive", -1, "give another")
    assert str(UsageError(parts[0], "-1", parts[2])) == str(UserError(*parts)) == reported
    error = pickle.loads(pickle.dumps(UserError(*parts)))  # noqa: S301 -- our own
    assert str(error) == reported
