"""What tests of checkpoints of other programs share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainer import export
from trainer.command import run


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Ends with 64 and one line that has these words, and writes nothing."""

    def check(source: Path, words: str, *options: str) -> None:
        capsys.readouterr()
        assert run(export.main, [str(source), str(tmp_path / "out"), *options]) == 64
        told = capsys.readouterr().err
        assert words in told
        assert told.count("\n") == 1
        assert not list(tmp_path.glob("*out*"))

    return check
