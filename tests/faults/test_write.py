"""docs/faults.md is written from the measured rows, and from all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.faults import rows, storm_page, table, write

if TYPE_CHECKING:
    from pathlib import Path


def measured(name: str) -> rows.Row:
    """A row with a bit of everything."""
    return rows.Row(name=name, how="a | b", seen_s=0.04, steps_lost=3, code=70, last_line="x")


def test_a_row_is_kept_and_shown(tmp_path: Path) -> None:
    """What was not measured is a dash; a bar does not end a cell."""
    rows.save(measured("b"), tmp_path, 11)
    rows.save(measured("a"), tmp_path, 2)
    text = rows.render(rows.load(tmp_path)).splitlines()
    assert len({line.replace("\\|", "").count("|") for line in text}) == 1
    assert [line.split("|")[1].strip() for line in text[2:]] == ["a", "b"]
    assert text[2] == r"| a | a \| b | 0.0 | - | - | 3 | 70 | - |  | `x` |"


def test_what_takes_too_long_is_named() -> None:
    """Of those that start again; the time until a hang is seen is no part of it."""
    again = rows.Row(name="a", how="x", outcome="starts again in the allocation")
    good = replace(again, seen_s=9.0, down_s=18.5, recovered_s=28.0)
    bad = replace(again, name="b", seen_s=0.1, down_s=0.2, recovered_s=10.3)
    assert write.targets([good, measured("c")]).endswith(
        "9.5 s after that (allowed: 10 s each, met)."
    )
    early = replace(again, name="c", seen_s=2.2, down_s=0.0, recovered_s=10.6)
    assert write.targets([good, early]).endswith("met).")
    reported = write.targets([good, bad])
    assert reported.startswith(
        "Of 2 that start again in the allocation the slowest was torn down 9.5 s"
    )
    assert reported.endswith("trained again 10.1 s after that (allowed: 10 s each, missed by: b).")


def test_the_document_needs_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault without a row is named, and nothing is written; with all of them it is."""
    monkeypatch.setattr(write, "DOCUMENT", tmp_path / "faults.md")
    results = tmp_path / "results"
    for order, name in enumerate(table.NAMES[:-1]):
        rows.save(measured(name), results, order)
    with pytest.raises(SystemExit, match=table.SAVE_KILLS):
        write.main(results)
    assert not write.DOCUMENT.exists()
    rows.save(measured(table.SAVE_KILLS), results, 99)
    assert write.main(results) == 0
    assert write.DOCUMENT.read_text().count("\n| ") >= len(table.NAMES)
    assert f"{len(table.NAMES)} rows" in capsys.readouterr().out


def test_the_storm_has_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured alone it replaces its section; without it the section stays."""
    monkeypatch.setattr(write, "DOCUMENT", tmp_path / "faults.md")
    results = tmp_path / "results"
    for order, name in enumerate(table.NAMES):
        rows.save(measured(name), results, order)
    (results / storm_page.FILE).write_text("One.\n")
    assert write.main(results) == 0
    first = write.DOCUMENT.read_text()
    assert first.endswith("|\n\n## A storm\nOne.\n")
    (results / storm_page.FILE).unlink()
    assert write.main(results) == 0
    assert write.DOCUMENT.read_text() == first
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / storm_page.FILE).write_text("Two.\n")
    assert write.main(alone) == 0
    assert write.DOCUMENT.read_text() == first.replace("One.", "Two.")
