"""Other people's frameworks under the launcher: every line for a laptop on the examples' pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.examples.conftest import EXAMPLES, laptop_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.examples.conftest import Example

FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/requirements.txt") if (path.parent/"README.md").exists())
COMMANDS = [(folder, line) for folder in FOLDERS for line in laptop_lines(folder)]

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.mark.parametrize(("folder", "command"), COMMANDS)
def test_it_goes_on_from_its_own_checkpoint(
    example: Callable[[str], Example], folder: str, command: str
) -> None:
    """After `kill -9` of a rank the job starts it again, and it resumes at a step above 0."""
    it = example(folder)
    it.start(command)
    it.goes_on_after_a_kill()
