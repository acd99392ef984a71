"""events.jsonl, as the supervisor writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.loop import Loop
from jobs.supervisor.journal import Journal
from rundir.paths import RunDir

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_why_an_event_cannot_be_written_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A disk is full, the run directory gone, or a link in its place; the job goes on."""
    (tmp_path / "events.jsonl").symlink_to("mine")
    journal = Journal(Loop(), RunDir(str(tmp_path)), "n0")
    journal.open(1)
    journal.write("start")
    journal.flush()
    why = "events.jsonl: Too many levels of symbolic links; going on"
    assert why in capfd.readouterr().err
    assert not (tmp_path / "mine").exists()
