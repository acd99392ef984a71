"""The versions in docs/foreign-programs.md are those that the tests here install."""

from __future__ import annotations

import re

import pytest

from tests.environment import TRIED
from tests.examples.conftest import EXAMPLES, ROOT

PINNED = dict(re.findall(r"^([\w-]+)==([\d.]+)$", TRIED.read_text(), flags=re.MULTILINE))
PACKAGES = {
    path.parent.name: re.findall(r"^[\w-]+", path.read_text(), flags=re.MULTILINE)
    for path in EXAMPLES.glob("*/requirements*.txt")
}
PAGE = (ROOT / "docs" / "foreign-programs.md").read_text()
TRIED_TABLE = PAGE.split("\n## Tried\n")[1].split("\n## ")[0]
ROWS = [
    (link[1], line.split("|")[4])
    for line in TRIED_TABLE.splitlines()
    if (link := re.search(r"\.\./examples/(\w+)/README", line))
]
"""An example's folder, and the cell with the version."""


def test_every_package_of_an_example_is_pinned() -> None:
    """So no release of others changes what the tests test; and nothing else is."""
    assert {name for names in PACKAGES.values() for name in names} == PINNED.keys()


@pytest.mark.parametrize("folder", sorted(PACKAGES))
def test_the_page_has_the_tested_version(folder: str) -> None:
    """Each row of the example's names the pinned version of one of its packages first."""
    seen = [re.findall(r"\d+\.[\d.]+", version)[0] for of, version in ROWS if of == folder]
    assert seen
    assert {*seen} <= {PINNED[name] for name in PACKAGES[folder]}
