"""`make pictures`: the same every time, and nothing in them that a viewer would fetch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MAKER = ROOT / "docs/make_pictures.py"


def made(out: Path, *names: str, reported: str = "") -> subprocess.CompletedProcess[str]:
    """Make pictures into a folder."""
    return subprocess.run(
        [sys.executable, str(MAKER), "--out", str(out), *names],
        input=reported, text=True, capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_pictures_are_the_same_every_time(tmp_path: Path) -> None:
    """Byte for byte; they show what went wrong, and name no address but XML's own."""
    names = ("report", "watch", "plot")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        done = made(tmp_path / folder, *(names if folder == "a" else names[2:]))
        assert done.returncode == 0, done.stderr
    first, second = ((tmp_path / folder / "plot.svg").read_bytes() for folder in "ab")
    assert first == second
    for name in names:
        text = (tmp_path / "a" / f"{name}.svg").read_text()
        fetched = re.findall(r"""(?:href|src)=["'](?!#|data:)|url\((?!["']?#)|@import""", text)
        assert not fetched
    assert "lost" in (tmp_path / "a/watch.svg").read_text()


def test_a_demo_is_drawn_from_its_first_step_on(tmp_path: Path) -> None:
    """Settings before it and the lines of other ranks are left out."""
    reported = "DDP_OUT  /out\n[1] a warning\n[0] trainer: 2 ranks\n[1] again\n[0] step 50/234\n"
    assert made(tmp_path, "demo", reported=reported).returncode == 0
    text = (tmp_path / "demo.svg").read_text()
    assert "2&#160;ranks" in text
    assert "step&#160;50/234" in text
    assert "DDP_OUT" not in text
    assert "again" not in text


@pytest.mark.slow
def test_an_unknown_picture_is_refused(tmp_path: Path) -> None:
    """With the names of those that there are."""
    done = made(tmp_path, "portrait")
    assert done.returncode == 2
    assert "report, watch, plot, page, demo; found portrait" in done.stderr
