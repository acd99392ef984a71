"""The recorded run that ships as an example: every command its page names reads it."""

import json
import re
import shutil
from pathlib import Path

import pytest

from monitor import cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "examples/run/README.md"
COMMANDS = re.findall(r"^    python -m monitor (.+)$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_its_page_tells_true_commands(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each ends well, and what it says or writes is of that run."""
    shutil.copytree(PAGE.parent, tmp_path / "examples/run")
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.split()) == 0
    output = capfd.readouterr().out
    written = [path for path in tmp_path.iterdir() if path.is_file()]
    if "--out" in command:
        assert [path.name for path in written] == [command.rsplit(maxsplit=1)[-1]]
        assert written[0].stat().st_size > 10_000
    else:
        assert not written
        assert {"report": "host CPU", "why": "FINISHED", "watch": "step 234/234"}[
            command.split(maxsplit=1)[0]
        ] in output


def test_it_is_whole_and_small() -> None:
    """Its record is that of its events; no checkpoints, no place but its own."""
    run_dir = PAGE.parent / "demo"
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["outcome"], record["world_size"]) == ("finished", 2)
    files = [path for path in PAGE.parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    assert len(COMMANDS) == 5
