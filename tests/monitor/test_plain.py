"""What is no plain file, in the place of a run's own: no reader hangs on it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from monitor import cli
from rundir.plain import open_plain

RUN = Path(__file__).resolve().parents[2] / "examples/run/demo"
ALL = ("why", "compose", "watch", "diagnose", "export --format openmetrics --out -")
pytestmark = pytest.mark.timeout(60)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("put", [_pipe, _device])
@pytest.mark.parametrize("command", ALL)
@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "logs/rank-0.log"])
def test_a_pipe_or_a_device_blocks_no_reader(
    name: str, command: str, put: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Read if it can be done without, else one line."""
    run_dir = tmp_path / "demo"
    shutil.copytree(RUN, run_dir)
    (run_dir / "logs").mkdir(exist_ok=True)
    (run_dir / name).unlink(missing_ok=True)
    put(run_dir / name)
    code = cli.main([*command.split(), str(run_dir)])
    output = capfd.readouterr().err
    assert (code in {0, 3}) or (code == 64 and output.count("\n") == 1)
    if (name, command) in {("events.jsonl", "why"), ("metrics.jsonl", "diagnose")}:
        assert "it is a pipe or a device" in output


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    """A plain one is opened, also through a link."""
    (tmp_path / "plain").write_text("x")
    (tmp_path / "link").symlink_to("plain")
    with open_plain(str(tmp_path / "link")) as file:
        assert file.read() == b"x"
    with pytest.raises(IsADirectoryError):
        open_plain(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        open_plain(str(tmp_path / "none"))
