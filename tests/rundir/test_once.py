"""What all sides agree on is written down once, in rundir/, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    path for room in ("jobs", "trainer", "monitor") for path in sorted((ROOT / room).rglob("*.py"))
]
WRITTEN_ONCE = {
    "a file of the run directory": r'"(events|metrics)\.jsonl"|"run\.json"|[/"]rank-\{',
    "a directory of the run directory": r'\}/(checkpoints|logs|debug)\b|"nccl-trace-|[/"]stack-\{',
    "a run's name, and its samples'": r'"slurm-|"\.gutil"',
    "a checkpoint's name": r'"step-|f"step-',
    "an exit code": r"^\w*(CODE|EXIT|STOPPED|FAILED|HUNG|USAGE|USER)\w*\s*(:.*)?= (64|70|75|76)$"
    r"|\b(exit|return)[ (](64|70|75|76)\b|([!=]=|\bin \(.*) ?\b(64|70|75|76)\b",
    "the layout of a heartbeat": r"DDPBEAT1|<8s7q16s",
    "the names of secrets": r"CREDENTIAL",
    "a frame of the channel": r"\\x1eddp",
}


@pytest.mark.parametrize("what", WRITTEN_ONCE)
def test_it_is_written_once(what: str) -> None:
    """A second place would be changed without the first."""
    pattern = re.compile(WRITTEN_ONCE[what], re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in SOURCES
        for match in pattern.finditer(path.read_text("utf-8"))
    ]
    assert not found


@pytest.mark.parametrize("what", WRITTEN_ONCE)
def test_the_search_finds_it_where_it_is(what: str) -> None:
    """The patterns themselves work: rundir/ has each."""
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "rundir").rglob("*.py"))
    assert re.search(WRITTEN_ONCE[what], text, re.MULTILINE)
