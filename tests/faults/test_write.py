"""docs/faults.md is written from the measured rows, and from all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults import rows, table, write

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
